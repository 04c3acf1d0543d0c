"""Named queries: every statement lives in ``queries/STEM.sql`` below a line ``-- name: NAME``."""

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Final

_HEADING: Final = re.compile(r"^-- name: (\w+)[^\n]*\n", re.MULTILINE)


@cache
def load(stem: str, package: str = "outlive.infra") -> Mapping[str, str]:
    """Return the statements of ``queries/STEM.sql`` of a package, by name; what stands before the first name is prose.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: two statements have the same name.
    """
    text = resources.files(package).joinpath("queries", f"{stem}.sql").read_text(encoding="utf-8")
    _, *parts = _HEADING.split(text)
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"queries/{stem}.sql names a statement twice: {', '.join(sorted(names))}")
    return MappingProxyType({name: body.strip().rstrip(";") for name, body in zip(names, bodies, strict=True)})
