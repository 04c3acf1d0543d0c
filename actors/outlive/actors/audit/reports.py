"""The audit's three reports: `sbom.cdx.json` for machines, `REPORT.md` for people, `report.json` with every fact."""

import contextlib
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from outlive.actors.audit.findings import Finding, Inspection
from outlive.actors.audit.sbom import sbom

NAMES: Final = ("sbom.cdx.json", "REPORT.md", "report.json")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the audit found.

    Attributes:
        serial: the id of this report, shared with the bill of materials.
        at: when the audit was finished, by the task's time.
    """

    serial: UUID
    at: datetime
    inspections: list[Inspection]

    @property
    def findings(self) -> list[Finding]:
        """All findings, package by package."""
        return [finding for inspection in self.inspections for finding in inspection.findings]


def write(report: Report, folder: str) -> list[str]:
    """Write the three reports and return their absolute paths. The same report twice leaves the same files.

    Each file is replaced at once: a reader (and a crash in between) sees the old or the new one, never half of it.
    """
    target = Path(folder).resolve()
    target.mkdir(parents=True, exist_ok=True)
    texts = (
        sbom(report.inspections, serial=report.serial, at=report.at),
        markdown(report),
        msgspec.json.format(msgspec.json.encode(report)).decode() + "\n",
    )
    for name, text in zip(NAMES, texts, strict=True):
        _replace(target / name, text)
    return [str(target / name) for name in NAMES]


def _replace(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise


def markdown(report: Report) -> str:
    """Return the report for people: counts, findings, then every package on a line."""
    return "\n".join([*_head(report), *_findings(report.findings), *_packages(report.inspections), ""])


def _head(report: Report) -> Iterator[str]:
    files = sum(inspection.files for inspection in report.inspections)
    size = sum(inspection.size for inspection in report.inspections) / 1e6
    unverified = sum(not inspection.verified for inspection in report.inspections)
    kinds = Counter(finding.kind.value for finding in report.findings)
    yield "# Licence audit"
    yield ""
    yield f"{report.at:%Y-%m-%d %H:%M} UTC, {report.serial}"
    yield ""
    yield f"{len(report.inspections)} packages, {files} files ({size:.0f} MB) read and hashed."
    if unverified:
        yield f"{unverified} of them came without digests, so altered files cannot be seen there."
    counted = ", ".join(f"{number} {kind}" for kind, number in sorted(kinds.items()))
    findings = "1 finding" if len(report.findings) == 1 else f"{len(report.findings)} findings"
    yield f"{findings}: {counted}." if counted else "No finding."


def _findings(findings: list[Finding]) -> Iterator[str]:
    yield from ("", "## Findings", "")
    if not findings:
        yield "None."
    for finding in findings:
        yield f"- **{finding.kind.value}** {finding.package} {finding.version}: {_plain(finding.summary)}"
        yield from (f"    - {_plain(line)}" for line in finding.details)


def _packages(inspections: list[Inspection]) -> Iterator[str]:
    yield from ("", "## Packages", "", "| package | version | licence | from | files |", "|---|---|---|---|---:|")
    for one in inspections:
        package, licence = one.package, one.expression or "unknown"
        yield f"| {_plain(package.name)} | {_plain(package.version)} | {licence} | {one.source} | {one.files} |"


def _plain(text: str) -> str:
    """Keep text from foreign metadata on its line and in its cell."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
