"""What is broken when: from a file (JSON or TOML), or at random from a seed; and its run against living workers.

::

    [[fault]]
    at = 2.0                # seconds from the start
    fault = "cut-nats"      # any of `orders.KINDS`, or "kill-worker", "kill-actor"
    target = "any"          # "any" worker (chosen by the seed), "all", an incarnation, a process id; a task for an actor
    for = 3.0               # seconds
"""

import tomllib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, Literal, TypeAlias

import anyio
import msgspec
from msgspec import Meta

from outlive.actors.chaos.control import Control, NotBroken, refused
from outlive.actors.chaos.orders import LONGEST, Fault, FaultKind, Report, check_measure
from outlive.infra.bus import BusError

Happening: TypeAlias = FaultKind | Literal["kill-worker", "kill-actor"]
Actors: TypeAlias = Callable[[], Awaitable[Sequence[tuple[str, str]]]]
"""Gives running tasks with the incarnations that hold them."""


class InvalidSchedule(ValueError):
    """A schedule cannot be read; the message says where and why."""


class Entry(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, rename={"seconds": "for"}
):
    """One line of a schedule; see `Fault` for what the fields mean."""

    at: Annotated[float, Meta(ge=0)]
    fault: Happening
    target: str = "any"
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)] = 5.0
    by: float | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        """Refuse a measure that means nothing."""
        check_measure(self.fault, self.by)


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What was done: when it should be and was (seconds from the start), and what the workers said."""

    entry: Entry
    at: float
    ok: bool
    message: str


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    fault: list[Entry]


def read(path: Path) -> list[Entry]:
    """Read a schedule: a table ``fault`` of entries, in the order of their times. Raises `InvalidSchedule`, `OSError`."""
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = tomllib.loads(text) if path.suffix == ".toml" else msgspec.json.decode(text)
        entries = msgspec.convert(found if isinstance(found, dict) else {"fault": found}, _File).fault
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise InvalidSchedule(f"{path} is no schedule: {error}") from None
    return sorted(entries, key=lambda entry: entry.at)


_USUAL: Final[Sequence[tuple[Happening, float, float, float]]] = (  # weight, shortest and longest time in seconds
    ("kill-worker", 4, 1, 1), ("kill-actor", 4, 1, 1), ("freeze-worker", 3, 0.5, 6), ("freeze-actor", 2, 0.5, 4),
    ("drop-commands", 2, 1, 4), ("duplicate-commands", 2, 1, 5), ("delay-commands", 2, 1, 4), ("lose-answers", 3, 0.1, 1),
    ("skew-clock", 2, 2, 10), ("cut-nats", 2, 0.2, 4), ("slow-nats", 2, 1, 5), ("cut-postgres", 2, 0.2, 4),
    ("slow-postgres", 2, 1, 5),
)  # fmt: skip


def at_random(seed: int, seconds: float, every: float = 4.0) -> Iterator[Entry]:
    """Make a schedule: some fault each `every` seconds on average, the same ones for the same seed."""
    random, at = Random(seed), 0.0
    while (at := at + random.uniform(0.5, 1.5) * every) < seconds:
        fault, _, shortest, longest = random.choices(_USUAL, [weight for _, weight, _, _ in _USUAL])[0]
        lasts, share = round(random.uniform(shortest, longest), 1), random.choice([0.1, 0.5, 1.0])
        by = {
            "skew-clock": random.choice([-86400.0, -60.0, 60.0, 86400.0]),
            "slow-nats": random.choice([0.05, 0.3]),
            "slow-postgres": random.choice([0.02, 0.1]),
            "delay-commands": random.choice([0.05, 1.0]),
        }.get(fault)
        hits = share if fault.endswith("commands") else 1.0
        yield Entry(at=round(at, 1), fault=fault, seconds=lasts, by=by, share=hits)


class Run:
    """Plays a schedule against running workers.

    Args:
        control: gives the orders.
        actors: where an actor is found for ``kill-actor`` and ``freeze-actor``.
        seed: chooses among workers and actors.
        tell: is told everything as it happens.
    """

    def __init__(self, control: Control, actors: Actors, seed: int, tell: Callable[[Told], None]) -> None:
        self._control = control
        self._actors = actors
        self._random = Random(seed)
        self._tell = tell

    async def play(self, entries: Sequence[Entry]) -> None:
        """Do each at its time; returns when the last one has begun."""
        began = anyio.current_time()
        for entry in entries:
            await anyio.sleep(max(entry.at - (anyio.current_time() - began), 0))
            at = round(anyio.current_time() - began, 1)
            try:
                ok, message = await self._do(entry)
            except (NotBroken, BusError) as error:
                ok, message = False, str(error)
            self._tell(Told(entry=entry, at=at, ok=ok, message=message))

    async def _do(self, entry: Entry) -> tuple[bool, str]:
        if entry.fault.endswith("actor"):
            return await self._do_to_actor(entry)
        if entry.fault == "kill-worker":
            killed = await self._control.kill(str(await self._worker(entry.target)))
            return killed.ok, killed.message
        return await self._begin(entry, None if entry.target == "all" else await self._worker(entry.target), None)

    async def _do_to_actor(self, entry: Entry) -> tuple[bool, str]:
        running = await self._actors()
        found = [each for each in running if entry.target in ("any", each[0])]
        if not found:
            return False, f"no worker holds {'a task' if entry.target == 'any' else f'task {entry.target}'} now"
        task_id, incarnation = self._random.choice(found)
        if entry.fault == "kill-actor":
            killed = await self._control.kill(incarnation, task_id)
            return killed.ok, killed.message
        return await self._begin(entry, incarnation, task_id)

    async def _begin(self, entry: Entry, incarnation: str | None, task_id: str | None) -> tuple[bool, str]:
        assert entry.fault != "kill-worker" and entry.fault != "kill-actor"  # noqa: PLR1714, PT018  # types see no sets
        fault = Fault(
            fault=entry.fault, incarnation=incarnation, task_id=task_id, seconds=entry.seconds, by=entry.by, share=entry.share
        )  # fmt: skip
        reports = await self._control.begin(fault)
        return refused(reports) is None, "; ".join(report.message for report in reports)

    async def _worker(self, target: str) -> str:
        reports = await self._control.list()
        named: Sequence[Report] = [each for each in reports if target in ("any", each.incarnation, str(each.pid))]
        if not named:
            raise NotBroken(f"no worker that was started with --chaos answers to {target!r} now")
        return self._random.choice(named).incarnation
