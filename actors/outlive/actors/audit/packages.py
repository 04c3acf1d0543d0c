"""Packages on a disk: which there are, what their metadata says, and whether their files are what was installed."""

import base64
import csv
import email
import hashlib
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from typing import Final

import msgspec

from outlive.actors.audit.findings import Package

FEW: Final = 20
"""Below this number of distributions the interpreter's own packages are audited too."""

_LICENCE_FILE: Final = re.compile(r"^(un)?licen[cs]e|^copying|\.licen[cs]e$", re.IGNORECASE)
_NO_TEXT: Final = frozenset({".py", ".pyc", ".pyi", ".js", ".ts", ".json", ".html", ".svg", ".png", ".css", ".about"})
_LONGEST_TEXT: Final = 1 << 20
_ALGORITHMS: Final = frozenset({"sha256", "sha384", "sha512", "blake2b", "sha224", "sha1", "md5"})


class Entry(msgspec.Struct, frozen=True):
    """One line of a RECORD: the file's path as written, and its digest (``sha256``, base64url) if it has one."""

    path: str
    algorithm: str
    digest: str


class Reading(msgspec.Struct, kw_only=True):
    """What reading the files of one package gave; paths as RECORD writes them."""

    files: int = 0
    size: int = 0
    digest: str = ""
    missing: list[str] = []
    altered: list[str] = []


class LicenceText(msgspec.Struct, frozen=True, kw_only=True):
    """A licence file: of the package itself, or (``own`` false) of code that it bundles."""

    path: str
    text: str
    own: bool


def site_packages(path: str | None = None) -> list[str]:
    """Return the folders to search: the one given (it must exist), else those of this environment."""
    if path is None:
        return list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib")))
    if not Path(path).is_dir():
        raise NotADirectoryError(f"{path} is no folder; give a site-packages folder, or no path for this environment")
    return [str(Path(path).resolve())]


def installed(path: str | None = None) -> list[Package]:
    """List the distributions of a folder (default: this environment), sorted by name; the first of a name counts.

    Below `FEW` the packages of the interpreter's standard library follow.
    """
    found: dict[str, Package] = {}
    for folder in site_packages(path):
        for where in sorted(Path(folder).iterdir()):
            if where.suffix in {".dist-info", ".egg-info"}:
                package = _package(where)
                found.setdefault(re.sub(r"[-_.]+", "-", package.name).lower(), package)
    packages = [found[name] for name in sorted(found)]
    return packages if len(packages) >= FEW else packages + list(standard_library())


def _package(where: Path) -> Package:
    name, _, version = where.stem.partition("-")
    headers = metadata(where)
    return Package(name=headers["Name"] or name, version=headers["Version"] or version, where=str(where))


def metadata(where: Path) -> Message:
    """Return the metadata headers of a ``.dist-info`` or ``.egg-info``; empty when it has none."""
    for file in (where / "METADATA", where / "PKG-INFO", where):
        if file.is_file():
            return email.message_from_string(file.read_text(encoding="utf-8", errors="replace"))
    return Message()


def standard_library() -> Iterator[Package]:
    """Yield the import packages of the running interpreter's standard library, without its own tests."""
    root, version = Path(sysconfig.get_path("stdlib")), platform.python_version()
    for name in sorted(sys.stdlib_module_names):
        if name != "test" and (root / name / "__init__.py").is_file():
            yield Package(name=name, version=version, where=str(root / name), installed=False)


def record(package: Package) -> list[Entry] | None:
    """Return the lines of a package's RECORD, or None if it has none (then nothing can be compared).

    It is read here, since newer versions of ``importlib.metadata`` leave missing files out.
    """
    try:
        text = (Path(package.where) / "RECORD").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return None
    rows = (row for row in csv.reader(text.splitlines()) if row and row[0])
    return [Entry(row[0], *_digest_of(row[1] if len(row) > 1 else "")) for row in rows]


def _digest_of(column: str) -> tuple[str, str]:
    algorithm, _, digest = column.partition("=")
    return (algorithm, digest.rstrip("=")) if algorithm in _ALGORITHMS else ("", "")


def root(package: Package) -> Path:
    """Return the folder that the paths of a package's files start from."""
    return Path(package.where).parent


def files(package: Package, entries: list[Entry] | None) -> list[Entry]:
    """Return what to read: the RECORD's files, else those in the package's own folder; sorted by path."""
    if entries is not None:
        return sorted(entries, key=lambda entry: entry.path)
    here = sorted(path for path in Path(package.where).rglob("*") if path.is_file() and path.suffix != ".pyc")
    return [Entry(path.relative_to(root(package)).as_posix(), "", "") for path in here]


def read(package: Package, entries: list[Entry]) -> Reading:
    """Read and hash every file; say which cannot be read and which are not what RECORD says.

    Byte code is a cache: it may be missing, and is not part of the package's digest.
    """
    reading, everything = Reading(), hashlib.sha256()
    for entry in entries:
        cache = entry.path.endswith(".pyc")
        try:
            digest, size = _hash(root(package) / entry.path, entry.algorithm or "sha256")
        except OSError:
            reading.missing += [] if cache else [entry.path]
            continue
        reading.files += 1
        reading.size += size
        if entry.digest and base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != entry.digest:
            reading.altered.append(entry.path)
        if not cache:
            everything.update(entry.path.encode("utf-8", "surrogateescape") + b"\0" + digest)
    reading.digest = everything.hexdigest()
    return reading


def _hash(path: Path, algorithm: str) -> tuple[bytes, int]:
    """Return digest and size of a regular file; anything else (a folder, a pipe) is an `OSError`."""
    if not path.is_file():
        raise FileNotFoundError(path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).digest(), file.tell()


def licence_texts(package: Package, entries: list[Entry]) -> Iterator[LicenceText]:
    """Yield the texts of a package's licence files: its own lie in the metadata folder, all others are bundled."""
    folder = re.escape(Path(package.where).name)
    own = re.compile(rf"{folder}/(licen[cs]es/|license_files/)?[^/]+", re.IGNORECASE)
    for entry in entries:
        file = root(package) / entry.path
        if not _LICENCE_FILE.search(file.name) or file.suffix.lower() in _NO_TEXT:
            continue
        if file.is_file() and file.stat().st_size <= _LONGEST_TEXT:
            text = file.read_text(encoding="utf-8", errors="replace")
            yield LicenceText(path=entry.path, text=text, own=bool(own.fullmatch(entry.path)))
