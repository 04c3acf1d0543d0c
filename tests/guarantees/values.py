"""Kinds whose steps return every sort of value, for workers that are killed: ``tests.guarantees.values:app``."""

import asyncio
import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from random import Random
from typing import Any
from uuid import UUID

import msgspec
from pydantic import BaseModel

from outlive.actors import App, Operation, StepFailed, Task
from tests.chaos.remote import service

app = App("values")
go = app.signal("go", str)
calls: list[str] = []


class Point(msgspec.Struct, frozen=True):
    x: int
    inner: dict[str, list["Point"]] = {}


@dataclass(frozen=True)
class Pair:
    one: str
    two: tuple[int, ...]


class Colour(enum.Enum):
    RED = "red"


class Model(BaseModel):
    name: str
    at: datetime
    parts: list[Decimal] = []


AT = datetime(2026, 10, 25, 2, 30, 0, 123456, tzinfo=timezone(timedelta(hours=5, minutes=45)))
VALUES: dict[str, tuple[Any, Any]] = {
    "none": (None, None),
    "false": (bool, False),
    "zero": (int, 0),
    "empty": (str, ""),
    "nul": (str, "a\0b"),
    "beyond_doubles": (int, 2**53 + 1),
    "beyond_64_bits": (int, 2**70),
    "negative": (int, -(2**70)),
    "datetime": (datetime, AT),
    "struct": (Point, Point(1, {"a": [Point(2), Point(3, {"b": []})]})),
    "dataclass": (Pair, Pair("a", (1, 2))),
    "model": (Model, Model(name="m", at=AT, parts=[Decimal("1.10")])),
    "models": (dict[str, Model | None], {"a": Model(name="m", at=datetime(2026, 1, 1, tzinfo=UTC)), "b": None}),
    "decimal": (Decimal, Decimal("0.10")),
    "uuid": (UUID, UUID(int=7)),
    "bytes": (bytes, b"\x00\xff"),
    "enum": (Colour, Colour.RED),
    "path": (PurePosixPath, PurePosixPath("a/b")),
    "set": (set[int], {1, 2}),
    "list": (list[Any], [None, False, "", 0, 1.5, {"k": [2**70]}]),
}
REFUSED: dict[str, tuple[Any, Any, str]] = {
    "nan": (dict[str, float], {"a": float("nan")}, "$.a: nan is no JSON number. Use None or a text"),
    "infinity": (dict[str, list[float]], {"b": [1.0, float("-inf")]}, "$.b[1]: -inf is no JSON number. Use None or a text"),
    "surrogate": (list[str], ["ok", "\ud800"], "$[1]: the text holds a lone surrogate, which UTF-8 cannot write"),
    "naive": (datetime, datetime(2026, 1, 1), "$: the datetime 2026-01-01T00:00:00 has no time zone. Use datetime.now(UTC)"),  # noqa: DTZ001
    "another_type": (int, "five", "$: Expected `int`, got `str`"),
    "tuple_as_any": (Any, {"t": (1, 2)}, "$.t: a value of type tuple would come back as list. Declare it, or convert it"),
    "object": (Any, {"o": object()}, "$.o: object has no JSON form"),
}  # fmt: skip


def _tool(name: str, returns: Any, value: Any) -> Any:
    def fn() -> Any:
        calls.append(name)
        return value

    fn.__annotations__["return"] = returns
    return app.tool(read_only=True, name=name)(fn)


TOOLS = {name: _tool(name, returns, value) for name, (returns, value) in VALUES.items()}
BAD_TOOLS = {name: _tool(f"bad_{name}", returns, value) for name, (returns, value, _) in REFUSED.items()}


@app.task
async def every_value(task: Task, upto: int) -> list[str]:
    """What each step returned, as text; after `upto` of them it waits for the signal."""
    seen: list[str] = []
    for number, (name, tool) in enumerate(TOOLS.items()):
        value = await task.call(tool)
        assert value == VALUES[name][1] and type(value) is type(VALUES[name][1])
        seen.append(f"{type(value).__name__} {value!r}")
        if number + 1 == upto:
            await task.wait_for(go)
    return seen


@app.task
async def every_refusal(task: Task) -> list[str]:
    seen: list[str] = []
    for tool in BAD_TOOLS.values():
        try:
            await task.call(tool)
        except StepFailed as failed:
            seen.append(f"{failed.failure.error_class} {failed.failure.message}")
    return seen


# --- branches


@app.tool(idempotent=True)
def post(op: Operation, name: str, n: int) -> int:
    """An effect in the fake service."""
    return service().effect(name, {"n": n}, key=op.key)


@app.tool(read_only=True)
async def pause(label: str, seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return label


@app.task
async def branches(task: Task, seed: int) -> list[str]:
    """Branches within branches, with delays that differ from run to run; returns what each saw."""
    jitter = Random()  # every run is another race

    def while_() -> float:
        return jitter.uniform(0, 0.01)

    async def leaf(name: str) -> str:
        await asyncio.sleep(while_())
        first = await task.call(pause, f"{name}-1", 0.001)
        await asyncio.sleep(while_())
        number = await task.call(post, f"leaf-{seed}", len(name))
        await task.progress(name)
        return f"{first}:{number > 0}"

    async def limb(name: str, depth: int) -> list[str]:
        await asyncio.sleep(while_())
        inner = await task.gather(*(leaf(f"{name}{n}") for n in range(depth)))
        calls = [task.call(pause, f"{name}-g{n}", 0.002) for n in range(3)]
        gathered: list[str] = await asyncio.gather(*calls)
        return [*inner, *gathered]

    limbs = await task.gather(limb("a", 2), limb("b", 3), leaf_list(leaf))
    direct = await asyncio.gather(*(task.call(pause, f"d{n}", 0.001 * n) for n in range(4)))
    return [*(entry for limb_ in limbs for entry in limb_), *direct]


async def leaf_list(leaf: Callable[[str], Any]) -> list[str]:
    """One leaf as a list."""
    return [await leaf("c")]
