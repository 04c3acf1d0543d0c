"""Arguments of tools that are known by their JSON Schema alone: those of a server, or of somebody else's agent."""

import inspect
import keyword
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, cast

from outlive.protocol import codec
from outlive.protocol.arguments import Arguments

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: (
        (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer())
    ),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}


class _LeftOut:
    def __repr__(self) -> str:
        return "..."


_LEFT_OUT: Final = _LeftOut()


class JsonArguments(Arguments):
    """Keyword arguments as JSON values, under a schema that somebody else wrote.

    Names, those that are required, and the outermost types are checked here; what the schema says beyond that (of a
    stranger: patterns that never end, references into the network) is left to the one who wrote it. Nothing is left out
    when it equals a default: the default is not ours.
    """

    __slots__ = ("_properties",)

    def __init__(self, name: str, schema: Mapping[str, Any]) -> None:
        properties = schema.get("properties")
        self._properties: dict[str, Any] = dict(properties) if isinstance(properties, Mapping) else {}
        super().__init__(name, inspect.Signature())
        self.signature = _shown(self._properties, _required(schema))
        self._required = _required(schema)
        self.__dict__["schema"] = dict(schema)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, or raise `TypeError` with the signature when they do not fit it."""
        if args:
            raise TypeError(
                f"{self}: arguments go by name: {self.name}({', '.join(f'{n}=...' for n in self._properties)})"
            )
        if (wrong := self._wrong(kwargs)) is not None:
            raise TypeError(f"{self}: {wrong}")
        return dict(kwargs)

    def encode(self, bound: Mapping[str, Any]) -> bytes:
        """Return bound arguments as bytes, the same in every process; raises `codec.NotStorable`."""
        try:
            return codec.canonical(codec.pack(dict(bound), dict[str, Any])[1])
        except codec.NotStorable as error:
            raise self._unfit(error) from error

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the bound arguments from their bytes; raises `codec.NotStorable` when they do not fit."""
        try:
            values: dict[str, Any] = codec.unpack(body, dict[str, Any])
        except codec.NotStorable as error:
            raise self._unfit(error) from error
        if (wrong := self._wrong(values)) is not None:
            raise codec.NotStorable(str(self), wrong)
        return values

    def _wrong(self, values: Mapping[str, Any]) -> str | None:
        """Say what does not fit the schema, if anything."""
        for name in self._required:
            if name not in values:
                return f"missing a required argument: {name!r}"
        closed = self.schema.get("additionalProperties") is False and "patternProperties" not in self.schema
        for name, value in values.items():
            if name in self._properties:
                if (expected := _misfit(value, self._properties[name])) is not None:
                    return f"{name!r} must be {expected}, not {_short(value)}"
            elif closed:
                return f"got an unexpected argument {name!r}"
        return None


def _required(schema: Mapping[str, Any]) -> tuple[str, ...]:
    named = schema.get("required")
    return tuple(name for name in named if isinstance(name, str)) if isinstance(named, list) else ()


def _misfit(value: Any, schema: Any) -> str | None:
    """Return the outermost type that a schema asks for, if the value has another one."""
    if not isinstance(schema, dict):
        return None
    asked: Any = cast("dict[str, Any]", schema).get("type")
    types = [asked] if isinstance(asked, str) else asked
    if not isinstance(types, list) or not all(isinstance(each, str) and each in _TYPES for each in types):
        return None
    names = cast("list[str]", types)
    return None if any(_TYPES[each](value) for each in names) else " or ".join(names)


def _short(value: Any) -> str:
    text = codec.encode(value).decode(errors="replace")
    return text if len(text) <= 80 else text[:77] + "..."


def _shown(properties: Mapping[str, Any], required: Sequence[str]) -> inspect.Signature:
    """Return a signature for people, and for the order in which arguments are shown."""
    names = sorted(
        (name for name in properties if name.isidentifier() and not keyword.iskeyword(name)),
        key=lambda name: name not in required,
    )  # fmt: skip
    empty = inspect.Parameter.empty
    return inspect.Signature(
        [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=empty if name in required else _LEFT_OUT)
            for name in names
        ]
    )
