"""The audit of one package: read it, work out its licence, and say what deserves a ticket."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from outlive.actors.audit import licences, packages
from outlive.actors.audit.findings import Finding, FindingKind, Inspection, Package

SHOWN: Final = 10
PYTHON_LICENCE: Final = "PSF-2.0"


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a package says of its licence, source by source.

    Attributes:
        expression: its ``License-Expression`` in canonical spelling, if it is one.
        field: what its ``License`` field means, if that is understood: an expression or a family.
        classifiers: the licences that its classifiers name.
        texts: the licences whose texts it carries.
        bundled: copyleft licences of bundled code, each with the paths of its texts.
        raw: the declaration as written, for people.
    """

    expression: str | None = None
    field: str | None = None
    classifiers: list[str] = []
    texts: list[str] = []
    bundled: dict[str, list[str]] = {}
    raw: str = ""

    @property
    def declared(self) -> str | None:
        """The licence that the package's author wrote down: the expression, else the field."""
        return self.expression or self.field


def inspect(package: Package) -> Inspection:
    """Read every file of a package and return what was found; changes nothing."""
    entries = packages.record(package)
    listed = packages.files(package, entries)
    reading = packages.read(package, listed)
    evidence = _evidence(package, listed)
    expression, source = resolve(evidence)
    findings = [*_licence_findings(package, evidence, expression), *_file_findings(package, reading)]
    return Inspection(
        package=package,
        expression=expression,
        source=source,
        classifiers=evidence.classifiers,
        texts=evidence.texts,
        files=reading.files,
        size=reading.size,
        digest=reading.digest,
        verified=any(entry.digest for entry in listed),
        findings=findings,
    )


def _evidence(package: Package, listed: list[packages.Entry]) -> Evidence:
    if not package.installed:
        return Evidence(expression=PYTHON_LICENCE, raw=PYTHON_LICENCE)
    metadata = packages.metadata(Path(package.where))
    expression, field = metadata["License-Expression"] or "", metadata["License"] or ""
    texts, bundled = _texts(package, listed)
    return Evidence(
        expression=licences.spdx(expression),
        field=_field(field),
        classifiers=licences.of_classifiers(metadata.get_all("Classifier") or []),
        texts=texts,
        bundled=bundled,
        raw=(expression or field).partition("\n")[0][:80],
    )


def _texts(package: Package, listed: list[packages.Entry]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the licences of a package's own texts, and by licence the paths of bundled copyleft texts."""
    own: set[str] = set()
    bundled: dict[str, list[str]] = {}
    for file in packages.licence_texts(package, listed):
        found = licences.of_text(file.text)
        if file.own:
            own.update(found)
            continue
        for licence in filter(licences.copyleft, found):
            bundled.setdefault(licence, []).append(file.path)
    return sorted(own), bundled


def _field(text: str) -> str | None:
    """Understand a ``License`` field: a name, an expression, or a whole licence text."""
    if name := licences.named(text):
        return name
    found = licences.of_text(text)
    return found[0] if len(found) == 1 else None


def resolve(evidence: Evidence) -> tuple[str | None, str]:
    """Return the SPDX expression and where it comes from; the first source that says something exact wins.

    A family without a version (``BSD``) is made exact by a licence text of that family. Several classifiers are read
    as "all apply": nothing says that one may choose.
    """
    if evidence.expression:
        return evidence.expression, "expression"
    for source, said in (("field", evidence.field), ("classifiers", " AND ".join(evidence.classifiers))):
        if said and (exact := licences.spdx(_refined(said, evidence.texts))):
            return exact, source
    if evidence.texts and (exact := licences.spdx(" AND ".join(evidence.texts))):
        return exact, "text"
    return None, "none"


def _refined(said: str, texts: list[str]) -> str:
    return " AND ".join(_exact(part, texts) for part in said.split(" AND "))


def _exact(licence: str, texts: list[str]) -> str:
    if licences.spdx(licence):
        return licence
    fitting = [text for text in texts if licences.same(licence, text)]
    return fitting[0] if len(fitting) == 1 else licence


def _licence_findings(package: Package, evidence: Evidence, expression: str | None) -> Iterator[Finding]:
    if expression is None:
        said = f"metadata says {evidence.raw!r}" if evidence.raw else "metadata says nothing"
        named = f", classifiers {' and '.join(evidence.classifiers)}" if evidence.classifiers else ""
        yield _finding(package, FindingKind.UNKNOWN, f"no exact licence: {said}{named}, and no known text is there")
    likely = expression or evidence.declared or " AND ".join(evidence.classifiers)
    if strength := licences.copyleft(likely):
        yield _finding(package, FindingKind.COPYLEFT, f"{strength.name.lower()} copyleft: {likely}")
    for licence, paths in evidence.bundled.items():
        if not licences.agree([licence], licences.members(likely) if likely else []):
            strength = licences.copyleft(licence)
            summary = f"{strength.name.lower()} copyleft in bundled code: {licence}"
            yield _finding(package, FindingKind.COPYLEFT, summary, paths)
    if reasons := list(_conflicts(evidence)):
        yield _finding(package, FindingKind.CONFLICT, reasons[0], reasons[1:])


def _conflicts(evidence: Evidence) -> Iterator[str]:
    """Yield a sentence for each pair of sources that cannot both be right."""
    declared, classified = evidence.declared, evidence.classifiers
    own = licences.members(declared) if declared else classified
    shown = declared or " and ".join(classified)
    if declared and classified and not licences.agree(own, classified):
        yield f"it declares {shown}, its classifiers say {' and '.join(classified)}"
    if own and evidence.texts and not licences.agree(own, evidence.texts):
        yield f"it declares {shown}, its licence text is {' and '.join(evidence.texts)}"
    elif hidden := [text for text in evidence.texts if own and _hidden(text, own)]:
        yield f"it declares {shown}, and carries the copyleft text of {' and '.join(hidden)}"
    if not declared and len(classified) > 1:
        yield f"its classifiers name {' and '.join(classified)}; nothing says whether both apply or one may be chosen"


def _hidden(text: str, declared: list[str]) -> bool:
    return bool(licences.copyleft(text)) and not licences.agree([text], declared)


def _file_findings(package: Package, reading: packages.Reading) -> Iterator[Finding]:
    for kind, paths, what in (
        (FindingKind.MISSING, reading.missing, "missing or unreadable"),
        (FindingKind.ALTERED, reading.altered, "not what was installed"),
    ):
        if paths:
            counted = "1 file of RECORD is" if len(paths) == 1 else f"{len(paths)} files of RECORD are"
            yield _finding(package, kind, f"{counted} {what}", paths)


def _finding(package: Package, kind: FindingKind, summary: str, details: list[str] | None = None) -> Finding:
    shown = [_storable(line) for line in (details or [])[:SHOWN]]
    return Finding(kind=kind, package=package.name, version=package.version, summary=summary, details=shown)


def _storable(text: str) -> str:
    """Write bytes of a path that are no UTF-8 as escapes: what is stored must be text."""
    return text.encode("utf-8", "backslashreplace").decode()
