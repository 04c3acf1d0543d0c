"""What the audit says: packages, findings and inspections, as small stored values."""

import enum

import msgspec


class FindingKind(enum.StrEnum):
    """What is wrong with a package, or what a person must know before shipping it."""

    UNKNOWN = "unknown"  # no SPDX expression can be worked out
    COPYLEFT = "copyleft"  # the licence asks something of what is shipped with it
    CONFLICT = "conflict"  # expression, classifiers and text do not say the same
    MISSING = "missing"  # files of RECORD are not there
    ALTERED = "altered"  # files of RECORD have other content than was installed


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to audit.

    Attributes:
        name: as its metadata writes it; for the standard library the package's import name.
        version: its version; for the standard library the interpreter's.
        where: absolute path of its ``.dist-info`` or ``.egg-info``, or of the standard library's package.
        installed: false for a package of the standard library, which has no metadata of its own.
    """

    name: str
    version: str
    where: str
    installed: bool = True


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that deserves a ticket: a sentence, and the files or names behind it (at most ten)."""

    kind: FindingKind
    package: str
    version: str
    summary: str
    details: list[str] = []

    @property
    def title(self) -> str:
        """A line for a ticket."""
        return f"{self.kind}: {self.package} {self.version}"

    @property
    def text(self) -> str:
        """Everything, for a ticket."""
        return "\n".join([self.summary, *self.details])


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """What one step found out about one package.

    Attributes:
        expression: the SPDX expression, or None when none can be worked out.
        source: where the expression comes from: ``expression``, ``field``, ``classifiers``, ``text`` or ``none``.
        classifiers: the licences that its classifiers name.
        texts: the licences whose texts it carries in its metadata folder.
        files: files read; ``size`` is their bytes together.
        digest: sha256 (hex) over the sorted list of paths and digests of these files.
        verified: its RECORD gave digests to compare with.
    """

    package: Package
    expression: str | None
    source: str
    classifiers: list[str]
    texts: list[str]
    files: int
    size: int
    digest: str
    verified: bool
    findings: list[Finding]


class Audit(msgspec.Struct, frozen=True, kw_only=True):
    """The task's result: what was counted, where the reports lie (absolute paths), and the Message-ID of a mail."""

    packages: int
    files: int
    size: int
    findings: int
    tickets: int
    reports: list[str]
    mail: str | None = None
