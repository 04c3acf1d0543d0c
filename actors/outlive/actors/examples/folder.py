"""The folder that the examples work in: what a model names outside of it is refused."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from outlive.protocol.errors import InvalidArguments, PermissionDenied

FOLDER: Final = "OUTLIVE_EXAMPLE_FOLDER"
"""Environment variable with the folder; the current one if it is not set."""

MAX_BYTES: Final = 400_000
"""Larger files are no text that a model should read."""

_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv", "build", "dist"})


def root() -> Path:
    """Return the folder, absolute."""
    return Path(os.environ.get(FOLDER, ".")).resolve()


def inside(path: str) -> Path:
    """Return a file of the folder.

    Raises:
        PermissionDenied: it lies outside, also by a link.
        InvalidArguments: there is no such file, or it is too large.
    """
    found = (root() / path).resolve()
    if not found.is_relative_to(root()):
        raise PermissionDenied(f"{path} lies outside of the folder")
    if not found.is_file():
        raise InvalidArguments(f"there is no file {path}")
    if found.stat().st_size > MAX_BYTES:
        raise InvalidArguments(f"{path} has more than {MAX_BYTES:,} bytes")
    return found


def text_of(path: str) -> str:
    """Return the text of a file, its line ends as they are. Raises like `inside`; `InvalidArguments` if it is no text."""
    try:
        return inside(path).read_bytes().decode()
    except UnicodeDecodeError:
        raise InvalidArguments(f"{path} is no text") from None


def names(*suffixes: str) -> list[str]:
    """Return the files with these suffixes, relative to the folder, in order; hidden folders are passed over."""
    return sorted(str(path.relative_to(root())) for path in _files() if path.suffix in suffixes)


def _files() -> Iterator[Path]:
    for where, folders, files in os.walk(root()):
        folders[:] = [name for name in folders if name not in _PASSED_OVER and not name.startswith(".")]
        for name in files:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_BYTES:
                yield path


def search(text: str, *suffixes: str, limit: int = 60) -> list[str]:
    """Return ``path:line: text`` for the first lines that contain a text."""
    found: list[str] = []
    for name in names(*suffixes):
        for number, line in enumerate((root() / name).read_text(errors="replace").splitlines(), 1):
            if text in line:
                found.append(f"{name}:{number}: {line.strip()[:160]}")
                if len(found) == limit:
                    return found
    return found


def write(path: Path, text: str) -> None:
    """Write a file so that a crash leaves the old text or the new one, never a part."""
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=".outlive-")
    with os.fdopen(handle, "wb") as file:
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    Path(made).chmod(path.stat().st_mode & 0o777 if path.exists() else 0o644)
    Path(made).replace(path)


def write_result(name: str, text: str) -> str:
    """Write a result into the current folder of the worker; return its path. Raises `InvalidArguments` for other names."""
    if Path(name).name != name or not name.endswith(".md"):
        raise InvalidArguments(f"{name!r} is no plain file name that ends in .md")
    path = Path.cwd() / name
    write(path, text)
    return str(path)
