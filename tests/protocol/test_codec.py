import dataclasses
import enum
import math
import subprocess
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import codec
from outlive.protocol.codec import NotJson, NotStorable

ZONE = timezone(timedelta(hours=5, minutes=45))


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


class Point(msgspec.Struct):
    x: int
    y: float = 0.0


@dataclasses.dataclass
class Trip:
    stops: list[Point]
    when: datetime
    tags: frozenset[str] = frozenset()


@dataclasses.dataclass(eq=False)
class ByIdentity:
    value: int


@attrs.define
class Parcel:
    weight: Decimal
    _seal: int = 0


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    depth: int


class Order(pydantic.BaseModel):
    amount: Decimal
    at: datetime
    number: int = pydantic.Field(default=0, alias="orderNumber")
    _cache: int = pydantic.PrivateAttr(default=0)


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    at: datetime

    @pydantic.computed_field
    def year(self) -> int:
        return self.at.year


class Secretive(pydantic.BaseModel):
    shown: int
    hidden: int = pydantic.Field(default=0, exclude=True)


NOON = datetime(2030, 1, 2, 12, 0, 0, 5, tzinfo=ZONE)

STORABLE: list[tuple[Any, Any]] = [
    (None, type(None)),
    (None, None),
    (None, int | None),
    (False, bool),
    (True, Any),
    ("", str),
    ("a\0b", str),
    ("\U0001f600", Any),
    (2**53 + 1, int),
    (-(2**64) - 1, int),
    (10**400, Any),
    ({"n": [2**200]}, dict[str, list[int]]),
    (0.1, float),
    (-0.0, float),
    (5e-324, Any),
    (1, float),
    (Decimal("1.10"), Decimal),
    (uuid.uuid4(), uuid.UUID),
    (b"\0\xff", bytes),
    (Path("a/b"), Path),
    (NOON, datetime),
    (datetime(2030, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")), datetime),
    (date(2030, 1, 1), date),
    (timedelta(days=-1, microseconds=1), timedelta),
    (Colour.RED, Colour),
    (Level.HIGH, Level),
    ((1, "a"), tuple[int, str]),
    ({1, 2}, set[int]),
    (frozenset({"a"}), frozenset[str]),
    ({1: "a"}, dict[int, str]),
    ({date(2030, 1, 1): 1}, dict[date, int]),
    (Point(1, 2.5), Point),
    (Trip([Point(1)], NOON, frozenset({"x"})), Trip),
    ({"t": [Trip([], NOON)]}, dict[str, list[Trip]]),
    (ByIdentity(3), ByIdentity),
    (Parcel(Decimal(1)), Parcel),
    (Pair(1, "a"), Pair),
    ({"depth": 1}, Options),
    (Order(amount=Decimal("9.90"), at=NOON, orderNumber=2**60), Order),
    (Strict(at=NOON), Strict),
    (Secretive(shown=1), Secretive),
    ([Order(amount=Decimal(1), at=NOON)], list[Order | None]),
    ({"a": [1, 2.5, "x", None, True]}, dict),
    ({"a": 1}, dict[str, object]),
    ([1], object),
]


@pytest.mark.parametrize(("value", "declared"), STORABLE)
def test_a_value_comes_back_as_it_was(value: Any, declared: Any) -> None:
    body, back = codec.pack(value, declared)
    again = codec.unpack(body, declared)
    for one in (back, again):
        if isinstance(value, ByIdentity):
            assert one.value == value.value
        else:
            assert one == value
            assert type(one) is type(value) or (declared is float and type(one) is float)
    assert isinstance(body, bytes)


class Text(str):
    __slots__ = ()


SEALED = Parcel(Decimal(1))
SEALED._seal = 7

REFUSED: list[tuple[Any, Any, str, str]] = [
    (True, int, "$", "got `bool`"),
    (1, bool, "$", "got `int`"),
    (1, str, "$", "got `int`"),
    (5, type(None), "$", "got `int`"),
    (2**53 + 1, float, "$", "would come back as 9007199254740992.0"),
    (math.nan, float, "$", "nan is no JSON number"),
    ({"a": math.inf}, dict[str, float], "$.a", "inf is no JSON number"),
    ({"a": [None, -math.inf]}, dict[str, list[float | None]], "$.a[1]", "-inf is no JSON number"),
    ({"a b": math.nan}, Any, "$['a b']", "nan"),
    (Decimal("NaN"), Decimal, "$", "NaN"),
    (Decimal("sNaN"), Decimal, "$", "NaN"),
    ("\ud800", str, "$", "lone surrogate"),
    ({"x": ["ok", "a\udfff"]}, Any, "$.x[1]", "lone surrogate"),
    (datetime(2030, 1, 1), datetime, "$", "has no time zone"),  # noqa: DTZ001  # that is the point
    ({"items": [0, 1, 2, {"when": datetime(2030, 1, 1)}]}, Any, "$.items[3].when", "no time zone"),  # noqa: DTZ001
    ([Trip([], datetime(2030, 1, 1))], list[Trip], "$[0].when", "no time zone"),  # noqa: DTZ001
    ({datetime(2030, 1, 1)}, set[datetime], "$[0]", "no time zone"),  # noqa: DTZ001
    (Order(amount=Decimal(1), at=datetime(2030, 1, 1)), Order, "$.at", "no time zone"),  # noqa: DTZ001
    (NOON, Any, "$", "type datetime would come back as str"),
    ({"a": (1, 2)}, Any, "$.a", "type tuple would come back as list"),
    ({1: 2}, Any, "$", "the keys [1] would come back as ['1']"),
    ({"depth": 1, "more": 2}, Options, "$", "would come back as ['depth']"),
    ({"a": {(1, 2): 3}}, Any, "$.a", "tuple has no JSON form"),
    ({"a": {"\ud800": 3}}, Any, "$.a", "surrogates not allowed"),
    (SEALED, Parcel, "$._seal", "7 would come back as 0"),
    (Secretive(shown=1, hidden=2), Secretive, "$.hidden", "2 would come back as 0"),
    (Trip([Point("1")], NOON), Trip, "$.stops[0].x", "Expected `int`, got `str`"),  # type: ignore[arg-type]  # that is the point
    ({"a": object()}, Any, "$.a", "object has no JSON form"),
    ({"a": [1j]}, Any, "$.a[0]", "complex has no JSON form"),
    ({"a": [10**5000]}, Any, "$.a[0]", "limit (4300 digits)"),
]


@pytest.mark.parametrize(("value", "declared", "path", "why"), REFUSED)
def test_what_would_not_come_back_is_refused_with_its_path(value: Any, declared: Any, path: str, why: str) -> None:
    with pytest.raises(NotStorable) as caught:
        codec.pack(value, declared)
    assert caught.value.path == path
    assert why in caught.value.why
    assert str(caught.value).startswith(f"{path}: ")


def test_what_holds_itself_or_nests_too_deep_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    late: list[Any] = [object()]
    late.append(late)
    bounded: list[Any] = [math.nan]
    for _ in range(700):
        bounded = [bounded]
    for value in (loop, deep):
        with pytest.raises(NotStorable, match="nests too deep"):
            codec.pack(value, Any)
    for value in (late, bounded):
        with pytest.raises(NotStorable):
            codec.pack(value, Any)


def test_the_hour_that_comes_twice_is_kept_as_an_instant() -> None:
    for fold in (0, 1):
        twice = datetime(2030, 10, 27, 2, 30, fold=fold, tzinfo=ZoneInfo("Europe/Berlin"))
        back = codec.pack(twice, datetime)[1]
        assert back.timestamp() == twice.timestamp()
        assert back.utcoffset() == twice.utcoffset()


def test_a_subclass_of_text_or_number_is_stored_as_its_base() -> None:
    body, back = codec.pack(Text("a"), str)
    assert body == b'"a"'
    assert type(back) is str


def test_private_attributes_of_pydantic_models_are_not_stored() -> None:
    order = Order(amount=Decimal(1), at=NOON)
    order._cache = 5
    back = codec.pack(order, Order)[1]
    assert back.amount == 1
    assert back._cache == 0


def test_the_value_handed_on_is_the_decoded_one() -> None:
    assert type(codec.pack(1, float)[1]) is float
    stops = [Point(1)]
    trip = codec.pack(Trip(stops, NOON), Trip)[1]
    assert trip.stops == stops
    assert trip.stops is not stops


def test_a_stored_value_that_no_longer_fits_names_the_path() -> None:
    with pytest.raises(NotStorable) as caught:
        codec.unpack(b'{"x":1,"y":"no"}', Point)
    assert (caught.value.path, caught.value.why) == ("$.y", "Expected `float`, got `str`")
    with pytest.raises(NotStorable):
        codec.unpack(b"{", Point)


def test_metadata_that_cannot_be_hashed_is_no_obstacle() -> None:
    assert codec.pack([1], Annotated[list[int], {"not": "hashable"}])[1] == [1]


def test_storable_types_pass() -> None:
    for _, declared in STORABLE:
        codec.check_type(declared)


class Mixed(enum.Enum):
    ONE = 1
    TWO = "two"


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (complex, "complex has no JSON form"),
        (dict[str, list[complex]], "complex has no JSON form"),
        (Callable[[], int], "has no JSON form"),
        (Mixed, "Enums must contain either all str or all int values"),
        ("NoSuchName", "not supported"),
    ],
)
def test_other_types_are_refused_when_declared(declared: Any, said: str) -> None:
    with pytest.raises(NotStorable, match=said):
        codec.check_type(declared)
    with pytest.raises(NotStorable):
        codec.pack(1, declared)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def exactly(one: Any, other: Any) -> bool:
    """Equal, with 1, 1.0 and True told apart."""
    return repr(one) == repr(other)


@given(JSON)
def test_json_values_come_back_exactly(value: Any) -> None:
    body, back = codec.pack(value, Any)
    assert exactly(back, value)
    assert exactly(codec.unpack(body, Any), value)
    assert codec.encode(back) == body


@given(st.dictionaries(st.integers(), st.sets(st.text()) | st.none()))
def test_declared_keys_and_sets_come_back(value: dict[int, set[str] | None]) -> None:
    assert codec.pack(value, dict[int, set[str] | None])[1] == value


@given(st.datetimes(timezones=st.timezones(), min_value=datetime(1980, 1, 1), max_value=datetime(2100, 1, 1)))  # noqa: DTZ001  # hypothesis wants them so
def test_instants_and_offsets_are_kept(value: datetime) -> None:
    back = codec.pack(value, datetime)[1]
    assert back.astimezone(UTC) == value.astimezone(UTC)
    assert back.utcoffset() == value.utcoffset()


@given(st.text(st.characters(codec=None), max_size=20))
def test_any_text_is_kept_or_refused(value: str) -> None:
    if any("\ud800" <= char <= "\udfff" for char in value):
        with pytest.raises(NotStorable, match=r"^\$\.t: the text holds a lone surrogate"):
            codec.pack({"t": value}, dict[str, str])
    else:
        assert codec.pack({"t": value}, dict[str, str])[1] == {"t": value}


def test_canonical_bytes_are_the_same_in_every_process() -> None:
    script = "from outlive.protocol import codec; print(codec.canonical({'b': {'y', 'x', 'z'}, 'a': 1}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert found == {b"b'" + b'{"a":1,"b":["x","y","z"]}' + b"'\n"}


def test_digest_frames_its_parts() -> None:
    assert len(codec.digest()) == 16
    assert codec.digest(b"ab", b"c") != codec.digest(b"a", b"bc")
    assert codec.digest(b"a") != codec.digest(b"a", b"")


def identity(body: bytes, *, tenant: str = "t", task_id: str = "a", verb: str = "signal") -> bytes:
    return codec.command_digest(tenant, task_id, verb, codec.plain(body))


def test_a_command_is_identified_by_all_but_its_id() -> None:
    one = identity(b'{"command_id":"1","name":"go","value":{"b":1,"a":[1.50]}}')
    assert identity(b'{ "value": {"a":[1.50],"b":1}, "name":"go" }') == one
    others = [
        identity(b'{"name":"go","value":{"b":1,"a":[1.5]}}'),  # numbers as written
        identity(b'{"name":"go","value":{"b":1.0,"a":[1.50]}}'),
        identity(b'{"name":"go","value":{"b":true,"a":[1.50]}}'),
        identity(b'{"name":"go","value":{"b":1,"a":[1.50]},"extra":null}'),
        identity(b'{"name":"go","value":{"b":1,"a":[1.50],"command_id":"1"}}'),
        identity(b'{"name":"go","value":{"b":1,"a":[1.50]}}', task_id="b"),
        identity(b'{"name":"go","value":{"b":1,"a":[1.50]}}', tenant="u"),
        identity(b'{"name":"go","value":{"b":1,"a":[1.50]}}', verb="pause"),
    ]
    assert len({one, *others}) == 9


def test_huge_numbers_have_an_identity() -> None:
    assert identity(b'{"value":1e999}') != identity(b'{"value":1e998}')
    assert identity(b'{"value":18446744073709551617}') != identity(b'{"value":18446744073709551616}')


@pytest.mark.parametrize(
    "body", [b"", b"{", b"nope", b"\xff", b'"\\ud800"', b"[" * 100_000, b"1" * 5000, b"NaN", b'{"a":1}x']
)
def test_what_is_no_json_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(NotJson, match="no JSON"):
        codec.plain(body)


def test_a_submit_is_identified_by_kind_input_and_goal() -> None:
    one = codec.submit_digest("k", {"a": 1}, None)
    assert one == codec.submit_digest("k", codec.plain(b'{"a":1}'), None)
    assert len({one, codec.submit_digest("k", {}, None), codec.submit_digest("l", {"a": 1}, None),
                codec.submit_digest("k", {"a": 1}, "g")}) == 4  # fmt: skip
