"""The list of what defeats us, from docstrings of the code and of the tests.

::

    Defeats: what it is
    Then: what happens then
    Seen: what a person sees of it

A line that is indented further goes on with the one before. Where the docstring is a test's, the test shows it.
"""

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.guarantees.documents import ROOT

_FOLDERS: Final = ("tests", "actors", "infra", "protocol")
_FIELD: Final = re.compile(r"^(Defeats|Then|Seen): (.+(?:\n[ ]+.+)*)", re.MULTILINE)


class Limit(NamedTuple):
    """What defeats a promise, and where that is shown."""

    what: str
    then: str
    seen: str
    path: Path
    test: str | None
    """Name of the test; None: nothing but the code says so."""


def limits() -> list[Limit]:
    """All of them: those that a test shows first, in the order of files and lines."""
    found = [limit for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("*.py")) for limit in _in(path)]
    return sorted(found, key=lambda limit: limit.test is None)


def _in(path: Path) -> Iterator[Limit]:
    source = path.read_text("utf-8")
    if "Defeats: " not in source or path == Path(__file__):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            fields = dict(_FIELD.findall(ast.get_docstring(node) or ""))
            if "Defeats" not in fields:
                continue
            if missing := {"Then", "Seen"} - fields.keys():
                raise ValueError(f"{path}:{getattr(node, 'lineno', 1)}: Defeats without {', '.join(sorted(missing))}")
            what, then, seen = (" ".join(fields[name].split()) for name in ("Defeats", "Then", "Seen"))
            name = "" if isinstance(node, ast.Module) else node.name
            yield Limit(what, then, seen, path, name if name.startswith("test_") else None)


def table(folder: Path) -> str:
    """The table for a document in this folder."""
    rows = ["| what defeats us | what happens then | what a person sees | shown by |", "|---|---|---|---|"]
    for limit in limits():
        shown = limit.test or f"not tested; said in {limit.path.name}"
        link = os.path.relpath(limit.path, folder)
        rows.append(f"| {limit.what} | {limit.then} | {limit.seen} | [{shown}]({link}) |")
    return "\n".join(rows)
