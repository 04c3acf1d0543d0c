"""Licences: what metadata, classifiers and texts say, in SPDX's words, and whether they agree.

Expressions and the categories of licences (permissive, copyleft, copyleft limited) come from the library
``license-expression`` and the licence list that it ships.
"""

import enum
import functools
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from license_expression import (
    ExpressionError,
    LicenseWithExceptionSymbol,
    Licensing,
    get_license_index,
    get_spdx_licensing,
)


class Copyleft(enum.IntEnum):
    """How much a licence asks of what is shipped together with it."""

    NONE = 0
    WEAK = 1  # changes to its own files (MPL) or to the library (LGPL) stay under it
    STRONG = 2  # so does the whole work


CLASSIFIER_PREFIX: Final = "License :: "

NAMES: Final = {
    "academic free license (afl)": "AFL",
    "apache": "Apache",
    "apache 2": "Apache-2.0",
    "apache 2.0": "Apache-2.0",
    "apache license": "Apache",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "apache software license": "Apache",
    "apache software license 2.0": "Apache-2.0",
    "boost software license 1.0 (bsl-1.0)": "BSL-1.0",
    "bsd": "BSD",
    "bsd license": "BSD",
    "new bsd": "BSD-3-Clause",
    "new bsd license": "BSD-3-Clause",
    "bsd 2-clause license": "BSD-2-Clause",
    "bsd 3-clause license": "BSD-3-Clause",
    "2-clause bsd license": "BSD-2-Clause",
    "3-clause bsd license": "BSD-3-Clause",
    "bsd 3-clause": "BSD-3-Clause",
    "cc0 1.0 universal (cc0 1.0) public domain dedication": "CC0-1.0",
    "eclipse public license 1.0 (epl-1.0)": "EPL-1.0",
    "eclipse public license 2.0 (epl-2.0)": "EPL-2.0",
    "european union public licence 1.2 (eupl 1.2)": "EUPL-1.2",
    "gnu affero general public license v3": "AGPL-3.0-only",
    "gnu affero general public license v3 or later (agplv3+)": "AGPL-3.0-or-later",
    "gnu general public license (gpl)": "GPL",
    "gnu general public license v2 (gplv2)": "GPL-2.0-only",
    "gnu general public license v2 or later (gplv2+)": "GPL-2.0-or-later",
    "gnu general public license v3 (gplv3)": "GPL-3.0-only",
    "gnu general public license v3 or later (gplv3+)": "GPL-3.0-or-later",
    "gnu lesser general public license v2 (lgplv2)": "LGPL-2.0-only",
    "gnu lesser general public license v2 or later (lgplv2+)": "LGPL-2.0-or-later",
    "gnu lesser general public license v3 (lgplv3)": "LGPL-3.0-only",
    "gnu lesser general public license v3 or later (lgplv3+)": "LGPL-3.0-or-later",
    "gnu library or lesser general public license (lgpl)": "LGPL",
    "gpl": "GPL",
    "gnu gpl": "GPL",
    "gpl v2": "GPL-2.0-only",
    "gpl v3": "GPL-3.0-only",
    "gplv2": "GPL-2.0-only",
    "gplv2+": "GPL-2.0-or-later",
    "gplv3": "GPL-3.0-only",
    "gplv3+": "GPL-3.0-or-later",
    "historical permission notice and disclaimer (hpnd)": "HPND",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "lgpl": "LGPL",
    "lgpl v3": "LGPL-3.0-only",
    "lgplv3": "LGPL-3.0-only",
    "lgplv3+": "LGPL-3.0-or-later",
    "mit license": "MIT",
    "the mit license": "MIT",
    "the mit license (mit)": "MIT",
    "mit no attribution license (mit-0)": "MIT-0",
    "mozilla public license 1.1 (mpl 1.1)": "MPL-1.1",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "mpl 2.0": "MPL-2.0",
    "psf": "PSF-2.0",
    "psfl": "PSF-2.0",
    "psf license": "PSF-2.0",
    "python software foundation license": "PSF-2.0",
    "the unlicense (unlicense)": "Unlicense",
    "zero-clause bsd (0bsd)": "0BSD",
    "zlib/libpng license": "Zlib",
    "zope public license": "ZPL",
}
"""Names that people and classifiers use, lower case. A name without a version is a family, not an SPDX id."""

_BSD: Final = (
    "redistribution and use in source and binary forms",
    "redistributions of source code must retain",
    "redistributions in binary form must reproduce",
)
_ENDORSE: Final = re.compile(r"endorse or promote products")
_MIT: Final = "permission is hereby granted, free of charge, to any person obtaining a copy of this software"
_KEEP_NOTICE: Final = "copyright notice and this permission notice"
_ISC: Final = "permission to use, copy, modify, and or distribute this software for any purpose with or without fee"

TEXTS: Final = {
    "AGPL-3.0": ("gnu affero general public license version 3, 19 november 2007",),
    "Apache-2.0": ("apache license version 2.0, january 2004", "licensed under the apache license, version 2.0"),
    "Artistic-2.0": ("the artistic license 2.0",),
    "BSL-1.0": ("boost software license - version 1.0",),
    "CC-BY-4.0": ("creative commons attribution 4.0 international",),
    "CC0-1.0": ("cc0 1.0 universal",),
    "EPL-2.0": ("eclipse public license - v 2.0",),
    "GPL-2.0": ("gnu general public license version 2, june 1991",),
    "GPL-3.0": ("gnu general public license version 3, 29 june 2007",),
    "LGPL-2.1": ("gnu lesser general public license version 2.1, february 1999",),
    "LGPL-3.0": ("gnu lesser general public license version 3, 29 june 2007",),
    "MPL-2.0": ("mozilla public license version 2.0", "mozilla public license, v. 2.0"),
    "OFL-1.1": ("sil open font license version 1.1",),
    "PSF-2.0": ("python software foundation license version 2", "psf license agreement for python"),
    "Unlicense": ("this is free and unencumbered software released into the public domain",),
    "Zlib": ("altered source versions must be plainly marked as such",),
}
"""Sentences that only the licence itself or its standard notice has, lower case; any one of them identifies it."""


@functools.cache
def _licensing() -> Licensing:
    return get_spdx_licensing()


@functools.cache
def _categories() -> dict[str, str]:
    return {
        entry["spdx_license_key"]: entry["category"] for entry in get_license_index() if entry.get("spdx_license_key")
    }


def spdx(text: str) -> str | None:
    """Return the SPDX expression that ``text`` is, in canonical spelling, or None if it is not one."""
    try:
        parsed = _licensing().parse(text, validate=True, strict=True)
    except ExpressionError:
        return None
    return str(parsed) if parsed is not None else None


def named(text: str) -> str | None:
    """Return the licence that a name as people write it means: an SPDX expression, a family such as ``BSD``, or None."""
    name = NAMES.get(" ".join(text.lower().split()))
    return spdx(name or text) or name


def of_classifiers(classifiers: Iterable[str]) -> list[str]:
    """Return the licences that trove classifiers name, sorted (``OSI Approved`` alone names none)."""
    leaves = (line.rpartition(" :: ")[2] for line in classifiers if line.startswith(CLASSIFIER_PREFIX))
    return sorted({licence for leaf in leaves if (licence := named(leaf))})


def of_text(text: str) -> list[str]:
    """Return the licences whose text (or standard notice) is in ``text``, sorted."""
    flat = " ".join(re.sub(r"[^a-z0-9.,()+-]+", " ", text.lower()).split())
    found = {spdx_id for spdx_id, sentences in TEXTS.items() if any(sentence in flat for sentence in sentences)}
    return sorted(found | set(_short_licences(flat)))


def _short_licences(flat: str) -> Iterator[str]:
    """Yield the licences that share sentences and differ by what they leave out."""
    if all(sentence in flat for sentence in _BSD):
        yield "BSD-3-Clause" if _ENDORSE.search(flat) else "BSD-2-Clause"
    if _MIT in flat:
        yield "MIT" if _KEEP_NOTICE in flat else "MIT-0"
    if _ISC in flat:
        yield "ISC" if "provided that the above copyright notice" in flat else "0BSD"


def members(expression: str) -> list[str]:
    """Return the single licences of an expression or family name, exceptions left out, sorted."""
    try:
        symbols = _licensing().license_symbols(_licensing().parse(expression), unique=True, decompose=True)
    except ExpressionError:
        return [expression]
    keys = {str(getattr(symbol, "key", "")): getattr(symbol, "is_exception", False) for symbol in symbols}
    return sorted(key for key, exception in keys.items() if not exception)


def _identity(licence: str) -> tuple[str, str]:
    family = re.search(r"[A-Za-z]+", licence.replace("Python-", "PSF-"))
    version = re.search(r"[\d.]+", licence)
    return (family[0] if family else licence, version[0] if version else "")


def same(one: str, other: str) -> bool:
    """Tell whether two single licences can be the same: one family, and a version that both allow."""
    (family, version), (other_family, other_version) = _identity(one), _identity(other)
    if family != other_family:
        return False
    later = one.endswith("-or-later") and version <= other_version
    other_later = other.endswith("-or-later") and other_version <= version
    return version == other_version or not version or not other_version or later or other_later


def agree(some: Iterable[str], others: Iterable[str]) -> bool:
    """Tell whether two lists of single licences have one in common."""
    others = list(others)
    return any(same(one, other) for one in some for other in others)


def copyleft(expression: str) -> Copyleft:
    """Return what an expression asks at least: the strongest of an AND, the weakest choice of an OR.

    An exception (``GPL-2.0-only WITH Classpath-exception-2.0``) makes a strong licence a weak one.
    """
    try:
        return _strength(_licensing().parse(expression))
    except ExpressionError:
        return Copyleft.NONE


def _strength(node: Any) -> Copyleft:
    if isinstance(node, LicenseWithExceptionSymbol):
        return min(_strength(node.license_symbol), Copyleft.WEAK)
    if arguments := getattr(node, "args", ()):
        strengths = [_strength(argument) for argument in arguments]
        return min(strengths) if node.operator.strip() == "OR" else max(strengths)
    return Copyleft.NONE if node is None else _category(str(node.key))


def _category(licence: str) -> Copyleft:
    category = _categories().get(licence) or _categories().get(f"{licence}-3.0-only", "")
    if not category.startswith("Copyleft"):
        return Copyleft.NONE
    return Copyleft.WEAK if category == "Copyleft Limited" else Copyleft.STRONG
