"""What must hold after a soak, whatever was broken: I1 to I8, from the tables, the streams, and the service outside."""

import re
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
from nats.js.api import AckPolicy, ConsumerConfig

from outlive.actors.testing.fake_service import Effect, FakeService
from outlive.actors.testing.server import Server
from outlive.infra import sql
from outlive.infra.bus import Bus
from outlive.protocol.events import SEQ_HEADER

_TOLERANCE: Final = 0.25
"""Seconds by which the clocks of the database and of the service may differ."""
_BATCH: Final = 500
_CHECK: Final = re.compile(r"i\d_|end_")


class Violation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that must not be: which promise, of which task, and where it can be seen."""

    what: str
    task_id: str
    seq: int | None = None
    key: str | None = None
    evidence: str = ""

    def __str__(self) -> str:
        """One line."""
        where = "".join(
            f", {name} {value}" for name, value in (("seq", self.seq), ("key", self.key)) if value is not None
        )
        return f"{self.what}: task {self.task_id}{where}: {self.evidence}"


class Audit:
    """Judges a soak after its end.

    Args:
        server: where it was.
        service: what was done outside.
        connection: to its database, in which nothing else is.
        submitted: tasks whose submit was answered.
    """

    def __init__(self, server: Server, service: FakeService, connection: Any, submitted: Sequence[str]) -> None:
        self.effects = 0
        """How many things were done outside; known after `run`."""
        self._server = server
        self._service = service
        self._connection = connection
        self._submitted = submitted
        self._sql = sql.load("audit_of_soak", "outlive.actors")

    async def run(self) -> list[Violation]:
        """Return everything that is not as it must be."""
        effects = await self._service.effects()
        self.effects = len(effects)
        found = [violation for what in self._sql if _CHECK.match(what) for violation in await self._ask(what)]
        found += await self._tasks()
        found += outside(effects, await self._rows("operations"), await self._rows("given"))
        found += cancels(effects, await self._rows("cancelled"))
        async with self._bus() as bus:
            found += await self._commands(bus)
            found += await self._progress(bus)
        return found

    async def _ask(self, what: str) -> list[Violation]:
        return [Violation(what=what.replace("_", " ").capitalize(), **row) for row in await self._rows(what)]

    async def _rows(self, statement: str, *arguments: Any) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(self._sql[statement], *arguments)]

    async def _tasks(self) -> list[Violation]:
        there = {row["task_id"] for row in await self._rows("tasks")}
        what = "I2 a submit was answered, and there is no task"
        return [Violation(what=what, task_id=task_id) for task_id in self._submitted if task_id not in there]

    async def _commands(self, bus: Bus) -> list[Violation]:
        """Compare the command stream with the inbox: all there, in the stream's order within each task."""
        inbox = {row["command_id"]: row for row in await self._rows("inbox")}
        found, last, end = list[Violation](), dict[str, int](), 0
        async for sequence, subject, _, data in read(bus, self._server.subjects.commands_stream):
            end, task_id = sequence, subject.split(".")[3]
            command_id = msgspec.json.decode(data)["command_id"]
            row = inbox.get(command_id)
            if row is None:
                what = "I2 a command of the stream is not in the inbox"
                found.append(Violation(what=what, task_id=task_id, seq=sequence, key=command_id))
            elif (pos := row.pop("pos", None)) is not None:  # sent twice: its first place counts
                if pos < last.get(task_id, 0):
                    what, evidence = "I2 commands changed their order", f"place {pos} after {last[task_id]}"
                    found.append(Violation(what=what, task_id=task_id, seq=sequence, key=command_id, evidence=evidence))
                last[task_id] = pos
        read_to = [row["seq"] for row in await self._rows("cursor", self._server.subjects.commands_stream)]
        if read_to != [end]:
            what = "I2 the command stream was not read to its end"
            found.append(Violation(what=what, task_id="", seq=end, evidence=f"read to {read_to}"))
        return found

    async def _progress(self, bus: Bus) -> list[Violation]:
        """Compare the progress stream with the history: the same events, in the same order, each once."""
        told, found = defaultdict[str, list[tuple[int, bytes]]](list), list[Violation]()
        async for _, subject, headers, data in read(bus, self._server.subjects.progress_stream):
            told[subject.rpartition(".")[2]].append((int(headers[SEQ_HEADER]), data))
        history = defaultdict[str, list[tuple[int, bytes]]](list)
        for row in await self._rows("facts"):
            history[row["task_id"]].append((row["seq"], row["event"]))
        for task_id in told.keys() | history.keys():
            if told[task_id] != history[task_id]:
                numbers = [seq for seq, _ in told[task_id]]
                evidence = f"stream {numbers}, history 1 to {len(history[task_id])}"
                found.append(Violation(what="I5 stream and history differ", task_id=task_id, evidence=evidence))
        return found

    @asynccontextmanager
    async def _bus(self) -> AsyncGenerator[Bus]:
        async with Bus.of(self._server.settings, name="outlive soak") as bus:
            yield bus


def outside(
    effects: Iterable[Effect], operations: Iterable[Mapping[str, Any]], given: Iterable[Mapping[str, Any]]
) -> list[Violation]:
    """Compare what was done outside with the ledger: I3, I4 and approvals."""
    found, done = list[Violation](), defaultdict[str, list[Effect]](list)
    for effect in effects:
        done[str(effect.key)].append(effect)
    approved = {f"{row['task_id']}:{row['step_id']}:1": row["at"].timestamp() for row in given}
    ledger = {row["key"]: row for row in operations}
    for key in done.keys() - ledger.keys():
        found.append(Violation(what="I3 an effect is not in the ledger", task_id="", key=key))
    for key, row in ledger.items():
        one = {"task_id": row["task_id"], "key": key}
        mine = done.get(key, [])
        ids = [effect.id for effect in mine]
        if len(mine) > 1:
            found.append(Violation(what="I4 an effect happened more than once", evidence=f"effects {ids}", **one))
        if mine and mine[0].at < row["began"].timestamp() - _TOLERANCE:
            evidence = f"done at {mine[0].at}, intended at {row['began'].timestamp()}"
            found.append(Violation(what="I3 an effect came before its intent", evidence=evidence, **one))
        if row["status"] == "succeeded" and row["result"] is not None and row["result"] not in map(str, ids):
            evidence = f"result {row['result']}, outside {ids}"
            found.append(Violation(what="I4 a result is not what happened outside", evidence=evidence, **one))
        if row["status"] == "failed" and mine:
            found.append(Violation(what="I4 an operation failed, and it happened", evidence=f"effects {ids}", **one))
        if row["name"] == "mail" and mine and mine[0].at < approved.get(key.partition("/")[2], 1e12) - _TOLERANCE:
            found.append(Violation(what="I4 a mail was sent without a yes before it", evidence=f"effects {ids}", **one))
    return found


def cancels(effects: Iterable[Effect], cancelled: Iterable[Mapping[str, Any]]) -> list[Violation]:
    """Compare what the ends of cancelled tasks say with what was done outside: I6."""
    found, done = list[Violation](), defaultdict[str, list[Effect]](list)
    for effect in effects:
        done[str(effect.key).partition("/")[2].partition(":")[0]].append(effect)
    for row in cancelled:
        counts = msgspec.json.decode(row["event"]).get("effects", {}).get("counts", {})
        mine, happened = len(done[row["task_id"]]), counts.get("happened", 0)
        if not happened <= mine <= happened + counts.get("unknown", 0):
            evidence = f"{mine} effects outside, the end says {counts}"
            what = "I6 the end of a cancelled task does not tell what happened"
            found.append(Violation(what=what, task_id=row["task_id"], seq=row["seq"], evidence=evidence))
    return found


async def read(bus: Bus, stream: str) -> AsyncGenerator[tuple[int, str, Mapping[str, str], bytes]]:
    """Read a stream from its first message to its present end: sequence, subject, headers, data."""
    context = bus.nc.jetstream()
    config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=60.0)
    reading = await context.pull_subscribe("", stream=stream, config=config)
    left = (await reading.consumer_info()).num_pending or 0
    while left > 0:
        messages = await reading.fetch(min(left, _BATCH), timeout=20)
        left -= len(messages)
        for message in messages:
            yield message.metadata.sequence.stream, message.subject, message.headers or {}, message.data
    await reading.unsubscribe()
