"""One database, one prefix, one worker at a time: a task is run there, disturbed at one point, and followed to its end.

A worker that took over from one that was killed is the next run's worker, so a run costs one start of a process that
was forked before. Waits of the task (retries, settle times, sleeps) pass at once, in virtual time; nothing needs a person:
questions are answered, and an outcome that is unknown is resolved by what was seen outside.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import asyncpg
import msgspec

from outlive.actors.chaoskit.forks import Fork, ForkFailed, Forks, first
from outlive.actors.chaoskit.points import Point
from outlive.actors.chaoskit.testimony import Passed, Returned, Said
from outlive.actors.testing.clock import VirtualTime, virtual_time
from outlive.actors.testing.server import Server, fresh
from outlive.infra import database, sql
from outlive.infra.bus import Bus
from outlive.protocol import codec, keys
from outlive.protocol.commands import AnyCommand, Approve, Cancel, Reject, Resolve, Signal, Submit
from outlive.protocol.errors import OutliveError
from outlive.protocol.steps import answer_signal
from outlive.protocol.task import Reason, ReasonCode

_SQL: Final = sql.load("explore", "outlive.actors")
_reasons: Final = msgspec.json.Decoder(list[Reason] | None)

SETTINGS: Final[Mapping[str, Any]] = {
    "linger": 0.0, "poll": 0.2, "probe": 0.05, "lease": 3.0, "heartbeat": 0.3, "grace": 5.0, "pool_size": 4,
    "journal_connections": 1, "threads": 8,
}  # fmt: skip
"""Of the workers: what waits leaves memory, a death is seen at once, a frozen worker is given up after three seconds."""

ANSWER: Final = "yes"
"""To a question without choices, where nothing else is said."""

LOOK: Final = 0.02
"""Seconds between two looks at the task, where nothing is heard of its worker."""


class NotExplorable(OutliveError):
    """The task cannot be explored: its submit is refused, or it does not end undisturbed. The message says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What is run, and how its persons answer.

    Attributes:
        kind, input: of the task. ``{trial}`` within a text of the input becomes the name of the run.
        yes: approvals are given; else refused.
        answer: to questions without choices; of those with choices the first one is taken.
        signals: sent to every run behind its submit.
    """

    kind: str
    input: Mapping[str, Any] = field(default_factory=dict[str, Any])
    yes: bool = True
    answer: str = ANSWER
    signals: Sequence[tuple[str, Any]] = ()

    def input_of(self, name: str) -> dict[str, Any]:
        """Return the input of one run."""
        filled: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self.input).replace(b"{trial}", name.encode()))
        return filled


@dataclass(slots=True, kw_only=True)
class Run:
    """What was seen of one run.

    Attributes:
        name: its tenant, and the id of its task.
        point: where it was disturbed, None: nowhere.
        heard: what each of the processes said that had a hand in it, the disturbed one first.
        persons: what a person was asked (tool or question, why), and was answered by the explorer.
        stuck: why it did not come to its end: what it is paused for, or that it hangs.
        tasks, facts: its rows at the end, those of its children too.
        told: messages in the progress stream, by task.
        counts: the user's counter, what this run added to it.
        seconds: how long it took.
    """

    name: str
    point: Point | None = None
    heard: list[list[Said]] = field(default_factory=list[list[Said]])
    persons: list[tuple[str, ReasonCode]] = field(default_factory=list[tuple[str, ReasonCode]])
    stuck: str = ""
    mismatch: bool = False
    tasks: Sequence[Any] = ()
    facts: Sequence[Any] = ()
    told: dict[str, int] = field(default_factory=dict[str, int])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    seconds: float = 0.0
    sent: set[str] = field(default_factory=set[str])
    stream_seq: int = 0

    @property
    def said(self) -> list[Said]:
        """All that its processes said, one process after the other."""
        return [said for each in self.heard for said in each]

    @property
    def reached(self) -> bool:
        """The point was passed: the disturbance took place."""
        point = self.point
        return point is None or any(
            isinstance(said, Passed) and (said.point, said.n) == (point.name, point.n)
            for each in self.heard[:1]
            for said in each
        )


class Lane:
    """Runs tasks one after the other: ``async with Lane(...) as lane: await lane.run("x1", point)``."""

    def __init__(self, forks: Forks, server: Server, bus: Bus, wishes: Wishes, *, patience: float) -> None:
        """Use running servers; `patience` is how long a run may take, in seconds."""
        self._forks = forks
        self._server = server
        self._bus = bus
        self._wishes = wishes
        self.patience = patience
        self._stack = AsyncExitStack()
        self._worker: Fork | None = None
        self._frozen: Fork | None = None
        self._time: VirtualTime
        self.broken = False

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            own = await stack.enter_async_context(fresh(self._server))
            self._own = own.with_settings(**SETTINGS)
            self._connection: Any = await database.connect(own.postgres_dsn, application_name="outlive explorer")
            stack.push_async_callback(self._connection.close, timeout=10)
            self._time = await stack.enter_async_context(virtual_time(own.postgres_dsn))
            stack.push_async_callback(self._end_worker)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def run(self, name: str, point: Point | None = None) -> Run:
        """Run the task once, under a tenant of its own. Raises `ForkFailed`, and `NotExplorable` for a refused submit."""
        worker = await self._armed(point)
        run = Run(name=name, point=point, heard=[worker.said])
        began = time.monotonic()
        await self._submit(run)
        try:
            async with asyncio.timeout(self.patience):
                await self._follow(run)
        except TimeoutError:
            run.stuck = f"it hangs: after {self.patience:.0f} s {await self._picture(run)}"
            self.broken = True
            await self._end_worker()
        run.seconds = time.monotonic() - began
        await self._collect(run)
        return run

    # --- the worker

    async def _living(self) -> Fork:
        if self._worker is None or self._worker.gone.is_set():
            self._worker = await self._forks.take()
            await self._worker.serve(self._own.environment)
        return self._worker

    async def _armed(self, point: Point | None) -> Fork:
        """Arm a living worker; the last run's may just be dying, of what it passed when that run was over."""
        while True:
            worker = await self._living()
            try:
                await worker.arm(point.armed if point else "")
            except ForkFailed:
                if worker.why or not worker.gone.is_set():
                    raise
            else:
                return worker

    async def _mind(self, run: Run) -> None:
        """Replace a worker that has died or was frozen, deliver again, let a frozen one that was given up go on."""
        worker, point = self._worker, run.point
        if point is not None and run.reached and "disturbed" not in run.sent:
            run.sent.add("disturbed")
            if point.fault == "twice":
                await self._publish(run, self._submission(run), again=True)
            elif point.fault == "freeze":
                self._frozen, self._worker = worker, None
                await self._join(run)
                return
        if worker is None or worker.gone.is_set():
            await self._join(run)
        frozen = self._frozen
        if frozen is not None and await self._connection.fetchval(_SQL["fenced"], frozen.pid):
            frozen.cont()
            try:
                async with asyncio.timeout(5):
                    await frozen.gone.wait()
            except TimeoutError:
                frozen.kill()
                await frozen.gone.wait()
            self._frozen = None

    async def _join(self, run: Run) -> None:
        worker = await self._living()
        await worker.arm()
        run.heard.append(worker.said)

    async def _end_worker(self) -> None:
        for worker in filter(None, (self._worker, self._frozen)):
            worker.kill()
            await worker.gone.wait()
        self._worker = self._frozen = None

    # --- the task

    def _submission(self, run: Run) -> Submit:
        return Submit(kind=self._wishes.kind, input=self._wishes.input_of(run.name), command_id=f"submit-{run.name}")

    async def _submit(self, run: Run) -> None:
        await self._publish(run, self._submission(run))
        for n, (name, value) in enumerate(self._wishes.signals):
            await self._publish(run, Signal(name=name, value=value, command_id=f"signal-{n}-{run.name}"))

    async def _publish(self, run: Run, command: AnyCommand, task_id: str | None = None, *, again: bool = False) -> None:
        """Send a command once; `again`: the same message once more, under another id of the broker's."""
        task_id = task_id or run.name
        verb = str(command.__struct_config__.tag)
        command = msgspec.structs.replace(command, by="explorer")
        subject = self._own.subjects.command(run.name, task_id, verb)
        headers = {"Nats-Msg-Id": f"{command.command_id}{'-again' if again else ''}"}
        ack = await self._bus.publish_tracked(subject, msgspec.json.encode(command), headers)
        run.stream_seq = max(run.stream_seq, ack.seq)

    async def _follow(self, run: Run) -> None:
        while True:
            await self._mind(run)
            rows = await self._connection.fetch(_SQL["look"], run.name)
            if not rows:
                await self._refused(run)
            elif all(row["over"] for row in rows) and await self._quiet(run):
                return
            elif self._frozen is None:
                await self._attend(run, rows)
                await self._pass_time(rows)
            await self._listen(run)

    async def _refused(self, run: Run) -> None:
        row = await self._connection.fetchrow(_SQL["answer"], run.name)
        if row is not None and row["code"] not in {"applied", "duplicate"}:
            raise NotExplorable(f"the submit is refused: {row['message']}")

    async def _quiet(self, run: Run) -> bool:
        """Nothing that was sent is unread, and nobody is frozen."""
        return self._frozen is None and await self._connection.fetchval(_SQL["read_to"]) >= run.stream_seq

    async def _listen(self, run: Run) -> None:
        worker = self._worker
        assert worker is not None
        worker.news.clear()
        try:
            async with asyncio.timeout(LOOK):
                await first(worker.gone, worker.news) if run.point and not run.reached else await worker.gone.wait()
        except TimeoutError:
            return

    # --- its persons, and its time

    async def _attend(self, run: Run, rows: Sequence[Any]) -> None:
        for row in rows:
            for reason in _reasons.decode(row["reasons"] or b"null") or ():
                await self._answer(run, row, reason)

    async def _answer(self, run: Run, row: Any, reason: Reason) -> None:
        step, task_id = reason.step_id or "", row["task_id"]
        mark = codec.digest(
            f"{run.name} {task_id} {reason.reason} {step} {reason.operation_id} {reason.since}".encode()
        ).hex()
        if mark in run.sent:
            return
        run.sent.add(mark)
        operation_id = keys.short(step, reason.operation_id or "1")
        match reason.reason:
            case ReasonCode.APPROVAL:
                word = Approve if self._wishes.yes else Reject
                await self._publish(run, word(operation_id=operation_id, command_id=mark), task_id)
            case ReasonCode.QUESTION:
                text = reason.choices[0] if reason.choices else self._wishes.answer
                await self._publish(run, Signal(name=answer_signal(step), value=text, command_id=mark), task_id)
            case ReasonCode.OUTCOME_UNKNOWN:
                key = keys.operation_key(run.name, task_id, step, reason.operation_id or "1")
                run.persons.append((reason.message.partition(" ")[0], reason.reason))  # it begins with the tool's name
                await self._publish(run, self._resolve(run, key, operation_id, mark), task_id)
            case ReasonCode.THROTTLED if reason.until is not None:
                return
            case _:
                run.stuck = f"it is paused: {reason.message}"
                run.mismatch = reason.reason is ReasonCode.VERSION_MISMATCH
                await self._publish(run, Cancel(reason="explored", command_id=mark), task_id)

    def _resolve(self, run: Run, key: str, operation_id: str, mark: str) -> Resolve:
        """Say what was seen outside: that it returned, with its result; or else that it did not happen."""
        returned = [said for said in run.said if isinstance(said, Returned) and said.key == key]
        if not returned:
            return Resolve(operation_id=operation_id, verdict="did_not_happen", command_id=mark)
        if returned[0].result is None:
            return Resolve(operation_id=operation_id, verdict="happened_result_lost", command_id=mark)
        result = msgspec.json.decode(returned[0].result)
        return Resolve(operation_id=operation_id, verdict="happened", result=result, command_id=mark)

    async def _pass_time(self, rows: Sequence[Any]) -> None:
        """Where all that lives waits for a time, let the first of these times come."""
        living = [row for row in rows if not row["over"]]
        due = [row["due_in"] for row in living if row["due_in"] is not None]
        busy = any(row["owner"] or row["mail"] or len(row["reasons"] or "") > len("[]") for row in living)
        if due and not busy and min(due) > 0:
            with contextlib.suppress(asyncpg.DeadlockDetectedError):  # with a worker that just starts: at the next look
                await self._time.advance(min(due) + 0.01)

    # --- the end

    async def _picture(self, run: Run) -> str:
        rows = await self._connection.fetch(_SQL["look"], run.name)
        if not rows:
            return "no worker has taken it in"
        row = next((row for row in rows if not row["over"]), rows[0])
        waits = f", waits for {row['waiting_for']}" if row["waiting_for"] else ""
        return f"it is {row['status']} at step {row['current_step'] or 'none'}{waits}"

    async def _collect(self, run: Run) -> None:
        run.tasks = await self._connection.fetch(_SQL["look"], run.name)
        run.facts = await self._connection.fetch(_SQL["facts"], run.name)
        subjects = self._own.subjects
        body = {"subjects_filter": subjects.progress(run.name, "*")}
        info = await self._bus.api(f"STREAM.INFO.{subjects.progress_stream}", body)
        found: dict[str, int] = info["state"].get("subjects") or {}
        run.told = {subject.rpartition(".")[2]: count for subject, count in found.items()}
