"""After a cancel: finding out what became of effects that nobody saw end, and undoing what happened.

    find out    the reconciler of each effect whose outcome is unknown is asked, all within one more grace
    undo        where the cancel wants it: each effect that happened, newest first, by its tool's compensator. That is an
                operation of its own, with all that an effect has: key, intent, retries, a person's yes, and a path of
                its own when its answer is lost. So a crash at any point neither skips one nor does it twice.

Steps that undo are called ``undo-4`` and lie in the history like any other; what is recorded there is not done again.
"""

import asyncio
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

import anyio

from outlive.actors.effect import Effect, Lost
from outlive.actors.flow import Flow
from outlive.infra import happenings
from outlive.infra.claims import LedgerEntry
from outlive.infra.clerk import LOST, lost
from outlive.infra.records import Record
from outlive.protocol import codec, keys, steps
from outlive.protocol.effects import Entry, Key
from outlive.protocol.errors import StepFailed
from outlive.protocol.operations import Outcome
from outlive.protocol.task import Failure, Status
from outlive.protocol.tools import AnyTool, Original

AT_ONCE = 16
"""Reconcilers that are asked at the same time."""


async def ledger(flow: Flow) -> list[Entry]:
    """Return all operations of a task as they stand, in the order begun."""
    return [one.entry for one in await _ledger(flow)]


async def find_out(flow: Flow) -> None:
    """Ask what became of each effect of which nobody knows whether it happened, within the grace."""
    unknown = [one for one in await _ledger(flow) if one.status in {"started", "unknown"} and not _undoes(one)]
    for one in unknown:
        if one.status == "started":
            _record_lost(flow, one)
    inquiries = [inquiry for one in unknown if (inquiry := await _inquiry(flow, one)) is not None]
    grace, turn = flow.world.settings.grace, asyncio.Semaphore(AT_ONCE)
    until = asyncio.get_running_loop().time() + grace
    with anyio.move_on_after(grace):
        async with anyio.create_task_group() as group:
            for inquiry in inquiries:
                group.start_soon(inquiry.inquire, turn, until)
    for inquiry in inquiries:
        if not inquiry.answered:
            inquiry.tell("could not be asked in time")


async def undo(flow: Flow, details: dict[Key, str]) -> None:
    """Undo what happened, newest first. Raises `Stopped` where it has to go on in another incarnation.

    Args:
        flow: of the task; its function has stopped.
        details: takes why an effect stays or could not be undone.
    """
    await find_out(flow)
    entries, claim = await _ledger(flow), flow.claim
    undone = {one.step_id for one in entries if one.status == "succeeded"}
    happened = [one for one in entries if one.status == "succeeded" and not _undoes(one)]
    results = await flow.world.claims.completed(claim.tenant, claim.task_id) if happened else {}
    for one in sorted(happened, key=_ended_at, reverse=True):
        if steps.undo(one.step_id, one.operation_id) in undone:
            continue
        if why := await _undo(flow, one, results.get(one.step_id, 0)):
            details[one.step_id, one.operation_id] = why


class Inquiry(Effect[Any]):
    """An effect of a stopped task of which nobody knows whether it happened."""

    __slots__ = ("_deadline", "answered")

    def __init__(self, flow: Flow, one: LedgerEntry, tool: AnyTool, arguments: bytes) -> None:
        """Take up what the ledger has. Raises `codec.NotStorable` where the stored arguments do not fit the code."""
        super().__init__(flow, one.step_id, tool, tool.decode_arguments(arguments))
        self.operation_id, self.digest, self.payload = one.operation_id, one.digest, one.digest
        self.attempt, self._began = one.attempt, one.started_at
        self._deadline = one.deadline or one.started_at + timedelta(seconds=tool.timeout)
        self.answered = False

    async def inquire(self, turn: asyncio.Semaphore, until: float) -> None:
        """Ask now, and once more when a "no" counts, if that is before `until` (the event loop's time)."""
        world, settle = self.flow.world, timedelta(seconds=self.tool.settle or 0)
        sure = None if self.tool.settle is None else self._deadline + settle
        while True:
            began, sends = world.clock.now(), world.threads.runs(self.key)  # a thread outlives its timeout
            async with turn:
                outcome = await self._reconcile(Lost(self.attempt, self._began, self._deadline, LOST))
            early = sure is not None and outcome.verdict == "did_not_happen" and (began < sure or sends)
            pause = max(0.0, (sure - world.clock.now()).total_seconds()) if early and sure is not None else 0.0
            if not early or asyncio.get_running_loop().time() + pause > until:
                break
            if sends:
                await world.threads.ended(self.key)
                sure = max(world.clock.now(), self._deadline) + settle
            else:
                await asyncio.sleep(pause)
        self._answer(outcome, sure, early=early)

    def _answer(self, outcome: Outcome[Any], sure: datetime | None, *, early: bool) -> None:
        asked = f"asked {self._reconciler}:"
        match outcome.verdict:
            case "happened":
                try:
                    body, _ = codec.pack(outcome.result, self.tool.result_type)
                except codec.NotStorable as error:
                    self._end("succeeded", f"{asked} it had happened; its result does not fit: {error}")
                else:
                    self._end("succeeded", f"{asked} it had happened", body)
            case "happened_result_lost":
                self._end("succeeded", f"{asked} it had happened; its result is lost")
            case "refused":
                self._end("failed", f"{asked} it was refused: {outcome.reason}")
            case "did_not_happen" if sure is None:
                self.tell("finds nothing, and no settle time says from when on that counts")
            case "did_not_happen" if early:
                self.tell(f"finds nothing so far; that counts from {sure:%H:%M:%S} on")
            case "did_not_happen":
                self._end("failed", f"{asked} it did not happen")
            case _:
                self.tell(f"cannot tell: {outcome.reason}")

    def _end(self, status: str, message: str, body: bytes | None = None) -> None:
        """Record what is known now; without a result the step has failed, whatever became of its effect."""
        self.answered = True
        message = f"{self._title()}: {message}"[:500]
        if body is None:
            failure = Failure(type="Cancelled", message=message, error_class="cancelled", step_id=self.step_id)
            fact = self._fact("failed", message, body=codec.encode(failure))
        else:
            fact = self._fact("completed", message, body=body)
        row = self._row(status, ended=self.flow.world.clock.now())
        self.flow.write(Record(facts=(fact,), operations=(row,), steps=1, current_step=self.step_id, point="outcome"))

    def tell(self, message: str) -> None:
        """Say that it stays unknown, and why."""
        self.answered = True
        self._tell(f"{self._title()}: still unknown whether it happened: {self._reconciler} {message}")


class Undo(Effect[Any]):
    """A compensator's call: an effect like any other, that knows what it undoes."""

    __slots__ = ("_original",)

    def __init__(self, flow: Flow, one: LedgerEntry, tool: AnyTool, bound: dict[str, Any], original: Original) -> None:
        """Take the place beside the step whose effect is undone."""
        super().__init__(flow, steps.undo(one.step_id, one.operation_id), tool, bound)
        self._original = original

    @property
    def original(self) -> Original:
        """The effect that this call undoes."""
        return self._original

    def _as_before(self) -> None:
        """A no to undoing one effect is none to undoing another one with the same arguments."""


async def _undo(flow: Flow, one: LedgerEntry, seq: int) -> str:
    """Undo one effect; why it stays, if it does: that is told, and the others go on."""
    tool, claim = flow.world.tools.get(one.name), flow.claim
    if tool is None or tool.compensator is None:
        return "no compensator" if tool is not None else "its tool is gone"
    place = steps.undo(one.step_id, one.operation_id)
    told_before = place in flow.history.done
    arguments, body = await flow.world.claims.effect(*claim.key, one.step_id, one.operation_id, seq)
    try:
        bound = tool.decode_arguments(arguments)
        result = None if body is None else codec.unpack(body, tool.result_type)
        original = Original(
            key=keys.operation_key(*claim.key, one.step_id, one.operation_id), result=result, started_at=one.started_at
        )
        await Undo(flow, one, tool.compensator, bound, original)
    except StepFailed as failed:
        why = failed.failure.message
    except codec.NotStorable as error:
        why = f"what is stored does not fit the code: {error}"
    else:
        return ""
    if not told_before:
        now, message = flow.world.clock.now(), f"Could not be undone: {one.name} (step {one.step_id}): {why}"[:500]
        fact = happenings.status(claim, now, Status.RUNNING, message)
        flow.write(Record(facts=(fact,), attention=(Status.RUNNING, message, [], now)))
    return why


async def _ledger(flow: Flow) -> list[LedgerEntry]:
    await flow.flushed()
    return await flow.world.claims.ledger(*flow.claim.key) if flow.touched else []


async def _inquiry(flow: Flow, one: LedgerEntry) -> Inquiry | None:
    """Make the question about an effect, where there is somebody to ask."""
    tool = flow.world.tools.get(one.name)
    if tool is None or tool.reconciler is None or tool.arguments.secrets:
        return None  # nobody to ask, or (secrets are not kept) nothing to ask with
    arguments, _ = await flow.world.claims.effect(*flow.claim.key, one.step_id, one.operation_id, 0)
    try:
        return Inquiry(flow, one, tool, arguments)
    except codec.NotStorable:
        return None  # the code has changed: it stays unknown


def _record_lost(flow: Flow, one: LedgerEntry) -> None:
    now = flow.world.clock.now()
    operation, attempt = lost(one, now)
    message = f"{one.name}: unknown whether it happened, {LOST}"
    fact = happenings.step(
        flow.claim, now, one.step_id, one.name, "unknown", message, digest=one.digest, attempt=one.attempt
    )
    flow.write(Record(facts=(fact,), operations=(operation,), attempts=(attempt,), current_step=one.step_id))


def _undoes(one: LedgerEntry) -> bool:
    return steps.is_undo(one.step_id)


def _ended_at(one: LedgerEntry) -> datetime:
    return one.ended_at or one.started_at


def compensators(tools: Iterable[AnyTool]) -> dict[str, AnyTool]:
    """Return the tools that undo these, by name."""
    return {tool.compensator.name: tool.compensator for tool in tools if tool.compensator is not None}
