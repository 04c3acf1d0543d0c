"""Values as bytes: one JSON encoding for everything that is stored or sent, and the rules for what may be stored.

`encode` and `decode` are for our own structs. `pack` and `unpack` are for values of users: `pack` proves that a value
comes back equal before anything depends on it, and names the path of what does not. The rules, for any language:

* whole numbers keep all their digits (up to Python's limit of 4,300); ``true`` is not 1;
* NaN, Infinity and lone surrogates are refused; a NUL inside a text is kept;
* a datetime must have a zone; its instant and offset are kept, the zone's name is not;
* under a declared type of Any a value is what JSON has: a tuple or a datetime there would come back as another type,
  so it is refused.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from pathlib import PurePath
from typing import Any, Final, NoReturn, TypeVar, overload

import msgspec

T = TypeVar("T")

CODEC_JSON: Final = 0
"""The codec number stored beside every body: JSON in UTF-8."""

_REFUSED: Final = (TypeError, ValueError, OverflowError, msgspec.MsgspecError)
"""What encoding or decoding a user's value may raise."""


class NotStorable(ValueError):
    """A value cannot be stored; the message begins with the path of the part that is at fault.

    Causes: NaN or Infinity, a lone surrogate, a datetime without a zone, an object of a class that has no JSON form,
    a value unlike its declared type, or one that would come back different (a tuple where Any is declared).
    """

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path: Final = path
        self.why: Final = why


class NotJson(ValueError):
    """A body is no JSON text (or nests too deep, or has a number of more than 4,300 digits)."""


def _to_builtin(value: Any) -> Any:
    """Give msgspec something it knows, for what it does not."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=False, round_trip=True)
    if isinstance(value, PurePath):
        return str(value)
    for base in (str, int, float):
        if isinstance(value, base):  # a subclass, for instance of numpy
            return base(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _from_builtin(cls: Any, value: Any) -> Any:
    if cls is object:
        return value
    if hasattr(cls, "model_validate_json"):
        return cls.model_validate_json(encode(value), by_alias=False, by_name=True)
    if issubclass(cls, PurePath) and isinstance(value, str):
        return cls(value)
    raise TypeError(f"Expected `{cls.__name__}`, got `{type(value).__name__}`")


encode: Final[Callable[[Any], bytes]] = msgspec.json.Encoder(enc_hook=_to_builtin).encode
"""Encode as JSON, fast and unchecked: NaN becomes null, a tuple a list. For our own structs."""

canonical: Final[Callable[[Any], bytes]] = msgspec.json.Encoder(enc_hook=_to_builtin, order="deterministic").encode
"""Encode with sorted keys and sets: equal values give equal bytes in every process. For digests and arguments."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Codec:
    decode: Callable[[bytes], Any]
    strict: bool  # == alone does not tell: datetimes and pydantic models


def _build(type: Any) -> _Codec:  # noqa: A002  # msgspec's word for it
    decoder = msgspec.json.Decoder(type, dec_hook=_from_builtin)
    return _Codec(decoder.decode, any(map(_inexact, _parts(type))))


def _inexact(part: msgspec.inspect.Type) -> bool:
    if isinstance(part, msgspec.inspect.CustomType):
        return part.cls is not object
    return isinstance(part, msgspec.inspect.DateTimeType)


_cached: Final = functools.lru_cache(maxsize=4096)(_build)


def _codec(type: Any) -> _Codec:  # noqa: A002  # msgspec's word for it
    try:
        return _cached(type)
    except TypeError:  # not hashable (metadata of an Annotated), or a type that msgspec refuses
        check_type(type)
        return _build(type)


@overload
def decode(body: bytes, type: type[T]) -> T: ...
@overload
def decode(body: bytes, type: Any = Any) -> Any: ...
def decode(body: bytes, type: Any = Any) -> Any:  # noqa: A002  # msgspec's word for it
    """Decode JSON as `type`.

    Raises:
        msgspec.DecodeError: no JSON, or another type (then it is a `msgspec.ValidationError` with the path).
    """
    return _codec(type).decode(body)


def pack(value: Any, type: Any) -> tuple[bytes, Any]:  # noqa: A002  # msgspec's word for it
    """Encode a user's value of a declared type, and prove that it comes back equal.

    Returns:
        The bytes to store, and the value as it will be after a crash: hand this one on, so that the first run and a
        resumed one see the same.

    Raises:
        NotStorable: with the path of what is at fault.
    """
    try:
        return _pack(value, _codec(type))
    except RecursionError as error:
        raise NotStorable("$", "it nests too deep, or holds itself") from error


def _pack(value: Any, codec: _Codec) -> tuple[bytes, Any]:
    try:
        body = encode(value)
        back = codec.decode(body)
    except _REFUSED as error:
        _explain(value, error)
    if codec.strict or not _equal(value, back):
        _refuse_faults(value)
        if difference := _difference(value, back, "$"):
            raise NotStorable(*difference)
    return body, back


@overload
def unpack(body: bytes, type: type[T]) -> T: ...
@overload
def unpack(body: bytes, type: Any) -> Any: ...
def unpack(body: bytes, type: Any) -> Any:  # noqa: A002  # msgspec's word for it
    """Decode what `pack` made.

    Raises:
        NotStorable: the bytes do not fit `type` (it was changed since); names the path.
    """
    try:
        return _codec(type).decode(body)
    except _REFUSED as error:
        raise NotStorable(*_placed(error)) from error


def check_type(type: Any) -> None:  # noqa: A002  # msgspec's word for it
    """Prove that values of a declared type can be stored at all.

    Raises:
        NotStorable: the type, or a part of it, has no JSON form; the path is ``$``.
    """
    try:
        _build(type)
        parts = list(_parts(type))
    except (TypeError, NameError, ValueError) as error:
        raise NotStorable("$", str(error)) from error
    for part in parts:
        if isinstance(part, msgspec.inspect.CustomType) and not _supported(part.cls):
            name = getattr(part.cls, "__name__", repr(part.cls))
            raise NotStorable("$", f"{name} has no JSON form. Use a dataclass, a msgspec.Struct or a pydantic model")


def _supported(cls: Any) -> bool:
    return cls is object or hasattr(cls, "model_validate_json") or (isinstance(cls, type) and issubclass(cls, PurePath))


def _parts(declared: Any) -> Iterator[msgspec.inspect.Type]:
    """Go through a declared type and all types inside it, each once."""
    seen: set[int] = set()
    queue: list[Any] = [msgspec.inspect.type_info(declared)]
    while queue:
        part = queue.pop()
        if isinstance(part, tuple):
            queue.extend(part)
        elif isinstance(part, msgspec.inspect.Field):
            queue.append(part.type)
        elif isinstance(part, msgspec.inspect.Type) and id(part) not in seen:
            seen.add(id(part))
            yield part
            queue.extend(getattr(part, name) for name in part.__struct_fields__)


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  # a user's __eq__
        return False


@functools.lru_cache(maxsize=4096)
def _fields(cls: Any) -> tuple[str, ...]:
    """Name the stored attributes of a class that has some; private ones of pydantic models are not stored."""
    if hasattr(cls, "__struct_fields__"):
        return tuple(cls.__struct_fields__)
    if hasattr(cls, "__attrs_attrs__"):
        return tuple(attribute.name for attribute in cls.__attrs_attrs__)
    if dataclasses.is_dataclass(cls):
        return tuple(field.name for field in dataclasses.fields(cls))
    return tuple(getattr(cls, "model_fields", ()))


def _children(value: Any) -> list[tuple[str, Any]]:
    """List the parts of a value, each with what it adds to the path."""
    if isinstance(value, dict):
        return [(f".{key}" if str(key).isidentifier() else f"[{key!r}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple | AbstractSet):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    cls: Any = type(value)
    parts = ((f".{name}", getattr(value, name, None)) for name in _fields(cls))
    return [(suffix, part) for suffix, part in parts if part is not msgspec.UNSET]


def _fault(value: Any) -> str | None:
    """Say what is wrong with a value that has no parts, whatever its type is declared to be."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is no JSON number. Use None or a text"
    if isinstance(value, datetime) and value.utcoffset() is None:
        return f"the datetime {value.isoformat()} has no time zone. Use datetime.now(UTC)"
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        return "the text holds a lone surrogate, which UTF-8 cannot write"
    return None


def _explain(value: Any, error: BaseException) -> NoReturn:
    """Raise NotStorable for a value that could not be encoded, or whose bytes did not fit the declared type."""
    _refuse_faults(value)
    if isinstance(error, msgspec.MsgspecError):
        raise NotStorable(*_placed(error)) from error
    raise NotStorable(_culprit(value, "$"), str(error)) from error


def _refuse_faults(value: Any) -> None:
    for path, part in _walk(value, "$"):
        if why := _fault(part):
            raise NotStorable(path, why)


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, value
    for suffix, part in _children(value):
        yield from _walk(part, path + suffix)


def _culprit(value: Any, path: str) -> str:
    """Find the innermost part that cannot be encoded."""
    for suffix, part in _children(value):
        try:
            encode(part)
        except _REFUSED:
            return _culprit(part, path + suffix)
    return path


def _placed(error: BaseException) -> tuple[str, str]:
    """Split msgspec's message into path and reason."""
    why, _, path = str(error).rpartition(" - at `")
    return (path.rstrip("`"), why) if why else ("$", str(error))


def _difference(one: Any, other: Any, path: str) -> tuple[str, str] | None:
    """Find the first part that came back different, as (path, why)."""
    parts, others = _children(one), _children(other)
    if not parts and not others:
        return None if _same(one, other) else (path, _changed(one, other))
    if _shape(one) is not _shape(other) or [name for name, _ in parts] != [name for name, _ in others]:
        return path, _changed(one, other)
    if isinstance(one, AbstractSet):
        return None if one == other else (path, _changed(one, other))
    pairs = zip(parts, others, strict=True)
    return next(filter(None, (_difference(a, b, path + suffix) for (suffix, a), (_, b) in pairs)), None)


def _shape(value: Any) -> Any:
    """Return the class that must come back: for containers the built-in one, a subclass of it may become it."""
    kinds = (dict, list, tuple, AbstractSet)
    return next((kind for kind in kinds if isinstance(value, kind)), type(value))


def _same(one: Any, other: Any) -> bool:
    """Compare two values without parts; datetimes by instant, since == lies about the hour that comes twice."""
    if _equal(one, other):
        return isinstance(one, bool) is isinstance(other, bool)
    both = isinstance(one, datetime) and isinstance(other, datetime)
    return both and _equal(one.astimezone(UTC), other.astimezone(UTC))


def _changed(one: Any, other: Any) -> str:
    if _shape(one) is _shape(other) is dict:
        return f"the keys {_short(list(one))} would come back as {_short(list(other))}. Declare their type"
    if _shape(one) is _shape(other) or isinstance(one, int):
        return f"{_short(one)} would come back as {_short(other)}"
    return f"a value of type {type(one).__name__} would come back as {type(other).__name__}. Declare it, or convert it"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


_plain: Final = msgspec.json.Decoder(float_hook=lambda text: msgspec.Raw(text.encode()))


def plain(body: bytes) -> Any:
    """Decode JSON to plain values for an identity: fractions are kept as they were written.

    Raises:
        NotJson: no JSON text.
    """
    try:
        return _plain.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotJson(f"the body is no JSON: {error}") from error


def digest(*parts: bytes) -> bytes:
    """Return 16 bytes (BLAKE2b) that name these parts; each is framed by its length, so no two lists look alike."""
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(8))
        state.update(part)
    return state.digest()


def command_digest(tenant: str, task_id: str, verb: str, body_value: Any) -> bytes:
    """Return what a command says, as 16 bytes: two commands with one id and one digest are the same command.

    Args:
        tenant: from the subject.
        task_id: from the subject.
        verb: from the subject.
        body_value: the body as `plain` gives it. Its ``command_id`` is left out, unknown fields count.
    """
    if isinstance(body_value, dict):
        body_value = {name: part for name, part in body_value.items() if name != "command_id"}
    return digest(tenant.encode(), task_id.encode(), verb.encode(), canonical(body_value))


def submit_digest(
    kind: str,
    input: Any,  # noqa: A002  # the field's name on the wire
    goal: str | None,
    policy: Any = None,
) -> bytes:
    """Return what a submit asks for, as 16 bytes: the same kind and input again is the same task.

    Args:
        kind: the task's kind.
        input: its arguments as `plain` gives them; ``{}`` where the body has none.
        goal: for kinds that take a goal.
        policy: as given; one that asks for nothing counts as none.
    """
    asked = (canonical(policy),) if policy else ()
    return digest(kind.encode(), canonical(input), canonical(goal), *asked)
