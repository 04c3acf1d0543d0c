"""The audit as a CycloneDX 1.6 bill of materials."""
# The decorators of py-serializable hide CycloneDX's classes from pyright (mypy sees them):
# pyright: reportCallIssue=false, reportAttributeAccessIssue=false, reportArgumentType=false

from datetime import datetime
from typing import Final
from uuid import UUID

from cyclonedx.contrib.this.builders import this_component
from cyclonedx.exception import MissingOptionalDependencyException
from cyclonedx.model import Property
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from outlive.actors.audit.findings import Inspection, Package

ROOT: Final = "audited-environment"


def sbom(inspections: list[Inspection], *, serial: UUID, at: datetime) -> str:
    """Return the bill of materials as JSON: the same bytes for the same arguments.

    Raises:
        ValueError: the document breaks CycloneDX's own schema (checked where its validator is installed).
    """
    components = [_component(inspection) for inspection in inspections]
    environment = Component(name=ROOT, type=ComponentType.APPLICATION, bom_ref=ROOT)
    metadata = BomMetaData(component=environment, timestamp=at, tools=[])
    metadata.tools.components.add(this_component())
    bom = Bom(serial_number=serial, metadata=metadata, components=components)
    bom.register_dependency(environment, components)
    text = JsonV1Dot6(bom).output_as_string(indent=2)
    if error := _error(text):
        raise ValueError(f"the bill of materials breaks the CycloneDX schema: {error}")
    return text + "\n"


def _component(inspection: Inspection) -> Component:
    package = inspection.package
    url = _url(package)
    facts = {"files": str(inspection.files), "sha256": inspection.digest, "licence-source": inspection.source}
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=url.to_string(),
        purl=url,
        licenses=[LicenseExpression(inspection.expression)] if inspection.expression else None,
        properties=[Property(name=f"outlive:{name}", value=value) for name, value in facts.items()],
    )


def _url(package: Package) -> PackageURL:
    if package.installed:
        return PackageURL(type="pypi", name=package.name, version=package.version)
    return PackageURL(type="generic", name="cpython", version=package.version, subpath=f"Lib/{package.name}")


def _error(text: str) -> str | None:
    try:
        found = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    except MissingOptionalDependencyException:
        return None
    return str(found.data) if found else None
