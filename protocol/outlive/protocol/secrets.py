"""Marked secrets: arguments that are used, and never shown.

``password: Secret[str]`` marks a parameter of a tool or a kind. Wherever its value would be shown or kept for people
(events, questions, the ledger, receipts, error messages), a short digest stands in its place: enough to see that two
calls had the same one, too little to guess a long one. What is short or common can be found by trying: it is no
encryption. A kind's input must be kept to run the task: it lies in the store as it came, and is not given out.
"""

import re
import typing
from collections.abc import Collection, Iterator
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from outlive.protocol import codec

T = TypeVar("T")

Secret: TypeAlias = Annotated[T, msgspec.Meta(extra_json_schema={"writeOnly": True})]
"""A value that is not shown: ``password: Secret[str]``."""

_SHORTEST: Final = 4
"""Characters from which on a value is looked for in texts; shorter ones would be found everywhere."""


def is_secret(declared: Any) -> bool:
    """Say whether a declared type, or a part of it, is marked."""
    marks: tuple[Any, ...] = getattr(declared, "__metadata__", ())
    if any(isinstance(mark, msgspec.Meta) and (mark.extra_json_schema or {}).get("writeOnly") for mark in marks):
        return True
    return any(is_secret(part) for part in typing.get_args(declared))


def mark(value: bytes) -> str:
    """What stands in the place of a value, given as JSON."""
    return f"secret:{codec.digest(b'secret', value)[:4].hex()}"


def veil(body: bytes, names: Collection[str]) -> bytes:
    """Return a JSON object with marks in the place of these fields; what is no object is returned as it is."""
    if not names:
        return body
    try:
        fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return body
    shown = {name: mark(bytes(raw)) if name in names else raw for name, raw in fields.items()}
    return codec.encode(shown)


def without(body: bytes, names: Collection[str]) -> bytes:
    """Return a JSON object without these fields."""
    return codec.encode({name: raw for name, raw in _fields(body).items() if name not in names}) if names else body


def unveil(stored: bytes, names: Collection[str], whole: bytes) -> bytes:
    """Return a stored object with these fields as `whole` has them."""
    if not names:
        return stored
    kept = _fields(without(stored, names))
    own = {name: raw for name, raw in _fields(whole).items() if name in names}
    return codec.encode(dict(sorted({**kept, **own}.items())))


def scrub(text: str, names: Collection[str], body: bytes) -> str:
    """Return a text with marks in the place of what these fields of a JSON object hold."""
    if not names:
        return text
    for name, raw in _fields(body).items():
        if name in names:
            for found in sorted(set(_words(msgspec.json.decode(raw))), key=len, reverse=True):
                text = text.replace(found, mark(bytes(raw)))
    return text


def _fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError:
        return {}


def _words(value: Any) -> Iterator[str]:
    """What of a value may stand in a text: its texts and numbers, plain and as Python or JSON would write them."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _words(part)
    elif isinstance(value, str | int | float) and not isinstance(value, bool) and len(str(value)) >= _SHORTEST:
        yield str(value)
        if isinstance(value, str):
            yield repr(value)[1:-1]
            yield codec.encode(value).decode()[1:-1]
            yield from (part for part in re.split(r"\s*[\r\n]+\s*", value) if len(part) >= 2 * _SHORTEST)
