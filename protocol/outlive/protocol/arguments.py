"""The arguments of a declared function: bound by its signature, encoded and recognised by value.

Everything that depends on the signature alone is worked out once, when the function is declared: binding is on the
path of every step.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from outlive.protocol import codec, secrets

_EXACT: Final = frozenset({str, int, bool, float, bytes, type(None)})
"""Types whose ``==`` says the same as their encoding, among values of one type."""


class Arguments:
    """How a function is called, and what its arguments look like when stored.

    Bound arguments are a dict by name, in the order of the signature, without those that equal their default: a new
    parameter with a default changes nothing of what was stored before.

    Attributes:
        name: the name of the tool or kind, for digests and messages.
        signature: what a caller passes; annotations are types, an operation or task in front is not part of it.
        defaults: the default of each parameter that has one.
        secrets: the parameters that are marked (`outlive.protocol.secrets`).
        struct: the msgspec type of the stored object; its fields are sorted by name, so the order of parameters may
            change.
    """

    __slots__ = (
        "__dict__",
        "_name",
        "_names",
        "_positional",
        "_required",
        "defaults",
        "name",
        "secrets",
        "signature",
        "struct",
    )

    def __init__(self, name: str, signature: inspect.Signature) -> None:
        parameters = signature.parameters
        self.name = name
        self.signature = signature
        self.struct = _struct(name, signature)
        self.secrets = frozenset(n for n, p in parameters.items() if secrets.is_secret(p.annotation))
        self._name = name.encode()
        self._names = frozenset(parameters)
        self._positional = tuple(n for n, p in parameters.items() if p.kind is not p.KEYWORD_ONLY)
        self._required = tuple(n for n, p in parameters.items() if p.default is p.empty)
        self.defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}

    @property
    def types(self) -> dict[str, Any]:
        """The declared type of each parameter."""
        return {name: parameter.annotation for name, parameter in self.signature.parameters.items()}

    def __str__(self) -> str:
        return f"{self.name}{self.signature}".replace("NoneType", "None")

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, or raise `TypeError` with the signature when they do not fit it."""
        positional = self._positional
        bound = dict(zip(positional, args, strict=False))
        if kwargs:
            if not self._names.issuperset(kwargs) or not bound.keys().isdisjoint(kwargs):
                raise self._misfit(args, kwargs)
            bound.update(kwargs)
        if len(args) > len(positional):
            raise self._misfit(args, kwargs)
        for name in self._required:
            if name not in bound:
                raise self._misfit(args, kwargs)
        if kwargs or self.defaults:
            return self._canonical(bound)
        return bound

    def encode(self, bound: Mapping[str, Any]) -> bytes:
        """Return bound arguments as bytes, the same in every process.

        Raises:
            codec.NotStorable: an argument does not fit its type or would not come back equal; the path begins with
                the name of the tool or kind.
        """
        try:
            return codec.canonical(codec.pack(self.struct(**bound), self.struct)[1])
        except codec.NotStorable as error:
            raise self._unfit(error) from error

    def decode(self, body: bytes) -> dict[str, Any]:
        """Return the bound arguments from their bytes; raises `codec.NotStorable` when they do not fit."""
        try:
            values: Any = codec.unpack(body, self.struct)
        except codec.NotStorable as error:
            raise self._unfit(error) from error
        pairs = ((name, getattr(values, name)) for name in self.signature.parameters)
        return self._canonical({name: value for name, value in pairs if value is not msgspec.UNSET})

    def veil(self, encoded: bytes) -> bytes:
        """Return encoded arguments as they are kept and shown."""
        return secrets.veil(encoded, self.secrets) if self.secrets else encoded

    def unveil(self, stored: bytes, encoded: bytes) -> bytes:
        """Return arguments that were kept, with the secrets of these encoded ones."""
        return secrets.unveil(stored, self.secrets, encoded) if self.secrets else stored

    def scrub(self, text: str, encoded: bytes) -> str:
        """Return a text without the secrets of these encoded arguments."""
        return secrets.scrub(text, self.secrets, encoded) if self.secrets else text

    def public(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        """Return bound arguments and defaults as they may be shown."""
        shown = {**self.defaults, **bound}
        for name in self.secrets & bound.keys():
            shown[name] = secrets.mark(codec.encode(bound[name]))
        return shown

    def digest(self, encoded: bytes) -> bytes:
        """Return the digest by which a call is recognised: the name and the encoded arguments (16 bytes)."""
        return codec.digest(self._name, encoded)

    @functools.cached_property
    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the stored object, defaults included."""
        components: dict[str, Any] = {}
        (root,), own = msgspec.json.schema_components(
            (self.struct,), schema_hook=functools.partial(_foreign, components)
        )
        schema: dict[str, Any] = own.pop(root["$ref"].rpartition("/")[2])
        for name, default in self.defaults.items():
            schema["properties"][name]["default"] = codec.decode(codec.encode(default))
        for name in self.secrets:
            schema["properties"][name]["writeOnly"] = True  # where a part of its type is marked, too
        if own or components:
            schema["$defs"] = {**own, **components}
        return schema

    def _canonical(self, bound: Mapping[str, Any]) -> dict[str, Any]:
        defaults = self.defaults
        return {
            name: bound[name]
            for name in self.signature.parameters
            if name in bound and not (name in defaults and _same(bound[name], defaults[name]))
        }

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> TypeError:
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return TypeError(f"{self}: {error}")
        raise AssertionError(f"{self}: inspect and bind disagree")

    def _unfit(self, error: codec.NotStorable) -> codec.NotStorable:
        path = error.path.removeprefix("$").removeprefix(".")
        return codec.NotStorable(f"{self.name}({path})" if path else str(self), error.why)


def _foreign(components: dict[str, Any], declared: Any) -> dict[str, Any]:
    """Return the schema of a type that msgspec does not know; what it refers to is put beside ours."""
    if not hasattr(declared, "model_json_schema"):
        return {"type": "string"}  # a path
    schema: dict[str, Any] = declared.model_json_schema(ref_template="#/$defs/{model}")
    components.update(schema.pop("$defs", {}))
    return schema


def _struct(name: str, signature: inspect.Signature) -> type[msgspec.Struct]:
    fields = [
        (p.name, p.annotation) if p.default is p.empty else (p.name, p.annotation | msgspec.UnsetType, msgspec.UNSET)
        for _, p in sorted(signature.parameters.items())
    ]
    return msgspec.defstruct(name, fields, kw_only=True, frozen=True, forbid_unknown_fields=True)


def _same(value: Any, default: Any) -> bool:
    if value is default:
        return True
    if type(value) is not type(default):
        return False
    if type(value) in _EXACT:
        return bool(value == default)
    return codec.encode(value) == codec.encode(default)
