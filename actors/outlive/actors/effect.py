"""A call that may touch the world: asked for, intended, made, and (when its answer is lost) found out about.

    identify    where the tool names the business action: this step alone makes it (`outlive.actors.unique`)
    consent     where the tool wants one: a person's yes to exactly these arguments, used once (`outlive.actors.consent`)
    intend      the operation is durable as `started` before the tool runs
    call        as for any step
    find out    an attempt without an outcome is never repeated blindly: by its key, its reconciler, or a person

What may follow a lost answer is one pure function of the declaration: `outlive.protocol.paths.after_lost_answer`.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from outlive.actors.consent import pos, taken
from outlive.actors.failures import given_up
from outlive.actors.flow import Flow
from outlive.actors.history import OPEN
from outlive.actors.reactions import IfNot, Reaction, Retry, Throttle, Unknown
from outlive.actors.runnable import checked
from outlive.actors.threads import Late
from outlive.actors.unique import Found, Unique
from outlive.infra import failpoints
from outlive.infra.claims import Attempt, Mail, StoredOperation
from outlive.infra.clerk import read_command
from outlive.infra.records import AttemptRow, OperationRow, Record
from outlive.protocol import backoff, codec, paths
from outlive.protocol.commands import Resolve
from outlive.protocol.errors import StepFailed, ToolChanged
from outlive.protocol.operations import ErrorClass, Outcome
from outlive.protocol.task import Failure, ReasonCode
from outlive.protocol.tools import AnyTool, Operation

R = TypeVar("R")
_AFTER_ERROR: Final = {
    ErrorClass.TIMEOUT: "unknown",
    ErrorClass.UNAVAILABLE: "unknown",
    ErrorClass.BUG: "unknown",  # it may have been raised after the request had left
    ErrorClass.NOT_STORABLE: "succeeded",
}
_UNDECIDED: Final = frozenset({"started", "unknown"})
_LEARNED: Final = ("prepared", "awaiting_approval", "failed", "unknown", "succeeded")
"""What the ledger says of an operation that is not under way, the graver the later."""


@dataclass(frozen=True, slots=True)
class Lost:
    """An attempt without an outcome. `deadline` is the last moment at which it could still send."""

    attempt: int
    started_at: datetime
    deadline: datetime
    how: str
    happened: bool = False  # that is known; its result is lost


class Effect(Unique[R]):
    """A tool call that is not read-only."""

    __slots__ = ("_if_not", "_looked_back", "_looked_up", "_lost", "_sent_until", "_stands")

    def __init__(self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any]) -> None:
        """See `ToolStep`."""
        super().__init__(flow, step_id, tool, bound)
        self._lost: Lost | None = None
        self._looked_back = False  # at what another incarnation left open
        self._looked_up = False
        self._sent_until: datetime | None = None  # a thread that outlived its timeout ended then
        self._if_not: tuple[IfNot, str] | None = None  # what follows a lost attempt that did not happen
        self._stands = ""  # "unknown" or "succeeded": what an attempt under the same key has left

    async def before(self) -> Found[R] | None:
        """Have a yes, and know what became of an earlier attempt, before the next one is intended."""
        if self.tool.key_ttl is not None and not self._looked_up:
            self._looked_up = True
            await self._look_up_first()
        lost = self._lost or self._left_open() or self._forgotten()
        operation_id = self.operation_id
        self.attempt = lost.attempt if lost is not None else self.attempt - 1  # until there will be another one
        found = await self._outlived()
        if found is None and lost is not None:
            found = await self._find_out(lost)
            if found is None and self.operation_id == operation_id:
                await self._not_happened()
                found = await self._outlived(for_good=not self.tool.idempotent)
                self._began = self.flow.world.clock.now()
        if found is not None:
            return found
        self.attempt += 1
        if lost is None or self.operation_id != operation_id:
            if (same := await self.identify()) is not None:
                return same
            await self._verify()
        await self.consent()
        self._lost = None
        await self._admit()
        if self._stands and paths.after_lost_answer(self.tool, sent_for=self._sent_for) != "send_again":
            self._lost, self._began = lost, self.flow.world.clock.now()
            return await self.before()  # the remote has forgotten the key while we waited
        await self._intend()
        return None

    async def _outlived(self, *, for_good: bool = False) -> Found[R] | None:
        """Wait for a thread of ours that outlived its timeout, and may still send. What it returned counts.

        After the grace it is taken to hang, and the path of a lost answer is gone without it; `for_good`: waits on.
        """
        threads = self.flow.world.threads
        for number in range(1, int(self.operation_id)):  # earlier operations of the step: no longer than the grace
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.flow.world.settings.grace):
                    await threads.ended(self._key(str(number)))
        if threads.runs(self.key):
            self.flow.outlived.add(self.key)
            if for_good:
                self._tell(f"{self._title()}: sent again as soon as {self._thread} has ended", "waiting")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if for_good else self.flow.world.settings.grace):
                    await threads.ended(self.key)
        if (late := threads.late(self.key)) is None:
            return None
        self._sent_until = self.flow.world.clock.now() - timedelta(seconds=asyncio.get_running_loop().time() - late.at)
        if not late.returned:
            return None
        try:
            return self._had_happened(late.value, "it took longer than its timeout, and has happened", None)
        except codec.NotStorable as error:
            raise self._fail(error) from error

    @property
    def _thread(self) -> str:
        return f"the thread of attempt {self.attempt}, which still runs in process {self.flow.world.pid},"

    def turned_out(self, attempt: Attempt, late: Late) -> None:
        """The thread of an attempt that was given up has ended: tell, if it was taken not to have happened."""
        if late.returned and not self.tool.idempotent:
            self.flow.world.turned_out(attempt)

    async def _verify(self) -> None:
        """Ask nobody about a tool that is no longer what the task knows it as."""
        if self.tool.verify is None:
            return
        with contextlib.suppress(Exception):  # it will be met again by the call, and by its retries
            try:
                async with asyncio.timeout(self.tool.timeout):
                    await self.tool.verify()
            except ToolChanged as error:
                raise self.flow.outdated(self.step_id, str(error)) from error

    async def _not_happened(self) -> None:
        """It is known not to have happened: what the error alone would have led to follows now."""
        (following, why), self._if_not = self._if_not or (Retry(0), ""), None
        match following:
            case Throttle(until):
                self.flow.write(Record(operations=(self._row("failed", ended=self.flow.world.clock.now()),)))
                raise self._turned_away(until, why)
            case Retry(after) if after > 0:
                until = self.flow.world.clock.now() + timedelta(seconds=after)
                self._tell(f"{self._title()}: tried again at {until:%H:%M:%S}", "waiting", wait_until=until)
                await self._wait(until)
            case Retry():
                return
            case _:
                raise self._ended(f"did not happen, and is not tried again: {why}", "NotDone", None)

    def _left_open(self) -> Lost | None:
        """Look for an attempt that began in another incarnation, and record that it was lost with its worker."""
        before = self.flow.history.latest(self.step_id)
        if self._looked_back or not isinstance(before, StoredOperation):
            return None
        self._looked_back = True
        deadline = before.deadline or before.started_at + timedelta(seconds=self.tool.timeout)
        if before.status == "succeeded":  # the step has failed all the same, and a person has it tried again
            self._began = before.started_at
            return Lost(before.attempt, before.started_at, deadline, "its result was lost", happened=True)
        if before.status not in _UNDECIDED:
            return None
        if before.status == "started" or self.flow.claimed.died is not None:
            deadline = max(deadline, self.flow.world.clock.now())  # until it died, a thread of it may have sent
        how = (
            "its answer was lost" if before.status == "unknown" else "its worker ended before the outcome was recorded"
        )
        lost = Lost(before.attempt, before.started_at, deadline, how)
        self.attempt, self._began = before.attempt, before.started_at
        if before.status == "started":
            row = AttemptRow(
                self.step_id, self.operation_id, before.attempt, before.worker, before.started_at, None, ErrorClass.TIMEOUT,
                how,
            )  # fmt: skip
            self._record_unknown(lost, (row,), f"{self._title()}: unknown whether it happened, {how}")
        elif deadline != before.deadline:
            self.flow.write(Record(operations=(self._row_unknown(lost),)))
        return lost

    @property
    def _sent_for(self) -> float:
        """Seconds from the first attempt to the next one: the key must still be known then."""
        first = self._first_began or self._began
        wait = self._if_not[0].after if self._if_not and isinstance(self._if_not[0], Retry) else 0.0
        return (self.flow.world.clock.now() - first).total_seconds() + wait

    def _forgotten(self) -> Lost | None:
        """Earlier attempts are known to have failed, but the remote may have forgotten the key they went under."""
        ttl, first = self.tool.key_ttl, self._first_began or self._began
        if ttl is None or self.attempt < 2 or (self._began - first).total_seconds() < ttl:
            return None
        return Lost(self.attempt - 1, first, first + timedelta(seconds=self.tool.timeout), "an earlier attempt failed")

    def _row(
        self, status: str, *, arguments: bytes = b"", ended: datetime | None = None, deadline: datetime | None = None
    ) -> OperationRow:
        """As for any step; but what an attempt has left is not unsaid by a later one with the same key that failed."""
        row = super()._row(status, arguments=arguments, ended=ended, deadline=deadline)
        if not self._stands or status not in _LEARNED:
            return row
        begun = row.attempt - (status in OPEN)  # the next one waits for a yes
        return row._replace(status=max(status, self._stands, key=_LEARNED.index), attempt=begun)

    # --- intent

    async def _intend(self) -> None:
        """Make the operation durable as started; the yes it rests on is used up in the same transaction."""
        flow = self.flow
        flow.heed(self.step_id)
        record = self.rests()
        record.operations = (self._row("started", arguments=self.shown)._replace(note=self._note),)
        record.state = flow.withdraw(self.step_id, record.state)
        record.current_step, record.point = self.step_id, "intent"
        self._phase = "intended"
        before = list(flow.returned)
        await flow.commit(record)
        for step_id in before:  # what was handed in before this intent is durable with it
            flow.returned.pop(step_id, None)
        self.used()
        await self._covered()
        if flow.stopping:
            flow.write(self._not_started("the task was stopped first"))
            self._phase = ""
            flow.check()

    async def _covered(self) -> None:
        """Begin no effect on a lease that has run out: wait for the next heartbeat."""
        while self.flow.world.heartbeat.covered <= 0 and not self.flow.stopping:  # noqa: ASYNC110  # rare: a beat is late
            await asyncio.sleep(0.05)

    def _not_started(self, why: str) -> Record:
        return Record(
            operations=(self._row("failed", ended=self.flow.world.clock.now()),),
            attempts=(self._attempted(ErrorClass.NOT_SENT, f"not started: {why}"),),
        )

    # --- after an error

    async def follow(self, reaction: Reaction, error: BaseException) -> None:
        """As for any step; where the effect may have happened and may not be repeated, it is found out first."""
        if not isinstance(reaction, Unknown):
            await super().follow(reaction, error)
            return
        failure = self.failure(error)
        self._if_not = (reaction.if_not, failure.message)
        attempt = self._attempted(self.error_class(error), failure.message)
        deadline = max(self._began + timedelta(seconds=self.tool.timeout), self.flow.world.clock.now())
        self._lost = Lost(self.attempt, self._began, deadline, failure.message)
        message = f"{self._title()}: unknown whether it happened ({failure.message})"
        self._record_unknown(self._lost, (attempt,), message)

    def succeeded(self) -> tuple[OperationRow, ...]:
        """What the ledger says of an effect that returned."""
        if not self.tool.idempotent:
            self.flow.returned[self.step_id] = self.about(self.attempt)
        return (self._row("succeeded", ended=self.flow.world.clock.now()),)

    def after_error(self, error: BaseException) -> tuple[OperationRow, ...]:
        """What the ledger says of an effect whose attempt raised this."""
        status = _AFTER_ERROR.get(self.error_class(error), "failed")
        row = self._row(status, ended=self.flow.world.clock.now())
        if status == "unknown":
            self._stands = self._stands or status
        return (row,)

    def interrupted(self, error: asyncio.CancelledError) -> None:
        """An effect that was given up in flight may happen all the same; an intent without a call did not."""
        mine, called = self.flow.gave_up(error), self._phase == "called"
        if not mine and self._phase and self.flow.stop == "cancel" and not called:
            self.flow.write(self._not_started("the task was cancelled first"))
            return
        if not mine and not (called and self.flow.stop in {"pause", "cancel", "ended"}):
            return  # it runs again; an intent without an outcome is found by the next owner
        failure = given_up(self.step_id, self._title())
        reason = failure.message if mine else f"{self._title()} was given up in flight: the task was stopped"
        record = self._not_started(reason) if self._phase == "intended" else Record()
        if called:
            record.operations = (self._row("unknown", ended=self.flow.world.clock.now()),)
            record.attempts = (self._attempted(ErrorClass.TIMEOUT, reason),)
        record.facts = (self._fact("unknown", reason, body=codec.encode(failure)),)
        record.steps, record.current_step, record.state = (
            int(self.flow.stop != "cancel"),
            self.step_id,
            self.flow.withdraw(self.step_id),
        )
        self.flow.write(record)

    def _record_unknown(self, lost: Lost, attempts: tuple[AttemptRow, ...], message: str) -> None:
        self.flow.write(
            Record(
                facts=(self._fact("unknown", message[:500]),), attempts=attempts, current_step=self.step_id, point="unknown",
                operations=(self._row_unknown(lost),),
            )
        )  # fmt: skip

    def _row_unknown(self, lost: Lost) -> OperationRow:
        return self._row("unknown", ended=self.flow.world.clock.now(), deadline=lost.deadline)

    # --- finding out

    async def _find_out(self, lost: Lost) -> Found[R] | None:
        """Learn what became of a lost attempt. None: it is known not to have happened, or may be sent again."""
        self._stands = "succeeded" if lost.happened else self._stands or "unknown"
        match paths.after_lost_answer(self.tool, sent_for=self._sent_for):
            case "send_again":
                return None
            case "ask":
                found = await self._ask_the_world(lost)
            case "person":
                forgotten = "the remote has forgotten its key by now" if self.tool.idempotent else "it has no reconcile"
                found = await self._ask_a_person(lost, forgotten)
        if found is None:
            self._stands = ""
        return found

    async def _ask_the_world(self, lost: Lost) -> Found[R] | None:
        asked = 0
        while True:
            began = self.flow.world.clock.now()
            outcome = await self._reconcile(lost)
            asked += 1
            sure = max(lost.deadline, self._sent_until or lost.deadline) + timedelta(seconds=self.tool.settle or 0)
            match outcome.verdict:
                case "happened":
                    return await self._believe(lost, outcome.result)
                case "happened_result_lost":
                    return await self._ask_a_person(
                        lost, f"{self._reconciler} says that it happened, its result is lost"
                    )
                case "refused":
                    self._stands = ""
                    raise self._ended(f"refused: {outcome.reason}", "Refused", None)
                case "did_not_happen" if lost.happened or self.tool.settle is None:
                    no = "all the same" if lost.happened else "and no settle time says from when on that counts"
                    return await self._ask_a_person(lost, f"{self._reconciler} finds nothing, {no}")
                case "did_not_happen" if began >= sure:
                    self._tell(f"{self._title()}: asked {self._reconciler}, it did not happen. Sent again.")
                    return None
                case "did_not_happen":
                    await self._wait_and_tell(sure, "finds nothing so far")
                case _ if asked >= self.tool.retries.max_attempts:
                    return await self._ask_a_person(lost, f"{self._reconciler} cannot tell: {outcome.reason}")
                case _:
                    policy = self.tool.retries
                    pause = backoff.delay(asked, base=policy.base, cap=policy.cap, random=self.flow.world.random)
                    await self._wait_and_tell(began + timedelta(seconds=pause), f"cannot tell: {outcome.reason}")

    async def _believe(self, lost: Lost, result: Any) -> Found[R] | None:
        try:
            return self._had_happened(result, f"asked {self._reconciler}: it had happened", None)
        except codec.NotStorable as error:
            why = f"{self._reconciler} says that it happened, its result does not fit: {error}"
            return await self._ask_a_person(lost, why)

    async def _reconcile(self, lost: Lost) -> Outcome[Any]:
        assert self.tool.reconciler is not None
        operation = Operation(
            key=self.key,
            started_at=lost.started_at,
            deadline=lost.deadline,
            attempt=lost.attempt,
            original=self.original,
        )
        try:
            if failpoints.armed:
                await failpoints.hit("reconcile.before", self.tool.name)
            outcome = checked(await self.run(self.tool.reconciler, operation))
            if failpoints.armed:
                await failpoints.hit("reconcile.after", self.tool.name)
        except Exception as error:  # noqa: BLE001  # whatever it is: the world could not be asked
            return Outcome.unknown(self.failure(error).message)
        if outcome.matches > 1:
            message = f"{self._reconciler} finds it {outcome.matches} times: it happened more than once"
            await self.flow.world.claims.doubt(self.about(lost.attempt), message)
            self._tell(f"{self._title()}: {message}", alarm=True)
        if outcome.verdict == "did_not_happen" and self.flow.world.threads.runs(self.key):
            return Outcome.unknown(f"it finds nothing so far, and {self._thread} may still send")
        return outcome

    async def _wait_and_tell(self, until: datetime, message: str) -> None:
        self._tell(
            f"{self._title()}: {self._reconciler} {message}. Asked again at {until:%H:%M:%S}.", "waiting",
            wait_until=until,
        )  # fmt: skip
        await self._wait(until)

    async def _ask_a_person(self, lost: Lost, why: str) -> Found[R] | None:
        known = "has happened" if lost.happened else "may or may not have happened"
        message = (
            f"{self.tool.name} {known} ({lost.how}, attempt {lost.attempt}), and {why}. "
            f"Look outside, then: outlive resolve {self._named} ..."
        )
        if self.flow.world.threads.runs(self.key):
            message += f" It is not sent again before {self._thread} has ended; a restart of that worker ends it."
        reason = self._reason(ReasonCode.OUTCOME_UNKNOWN, f"outlive resolve {self._named}", message, None)

        def asked() -> Record:
            return Record(facts=(self._fact("unknown", message[:500]),), point="question")

        while True:
            letter = await self.flow.consult(self.step_id, reason, asked)
            command = read_command(letter) if letter is not None else None
            if letter is None or not isinstance(command, Resolve) or not self._about_this(command):
                self._pass_over(letter, "it does not say what became of the effect")
                continue
            try:
                if (
                    command.new_operation
                    and (found := await self._outlived(for_good=not self.tool.idempotent)) is not None
                ):
                    return found
                return self._resolved(command, letter)
            except codec.NotStorable as error:
                self._pass_over(letter, f"its result does not fit: {error}")

    def _resolved(self, command: Resolve, letter: Mail) -> Found[R] | None:
        """Act on a person's word. Raises `StepFailed` where it ends the step."""
        by = letter.by or "a person"
        match command.verdict:
            case "happened":
                value = codec.unpack(codec.encode(command.result), self.tool.result_type)
                return self._had_happened(value, f"{by} says that it had happened", letter)
            case "happened_result_lost":
                raise self._ended(f"it happened, says {by}; its result is lost", "ResultLost", letter, "succeeded")
            case "did_not_happen" if command.new_operation:
                self._renew(by, letter)
                return None
            case "did_not_happen":
                self._tell(f"{self._title()}: {by} says that it did not happen. Sent again.", letter=letter)
                return None
            case _:
                raise self._ended(f"given up by {by}", "GivenUp", letter, "unknown")

    def _renew(self, by: str, letter: Mail) -> None:
        """Leave the operation as what a person says of it, and begin the next one: the same arguments, another key."""
        now, self._stands = self.flow.world.clock.now(), ""
        renewed = self.flow.history.renew(self.step_id, self.tool.name, self.shown)
        over = self._row("failed", ended=now)._replace(note=f"did not happen, says {by}")
        message = f"{self._title()}: {by} says that it did not happen. Sent as {self.step_id}:{renewed.operation_id}."
        self.flow.write(
            Record(
                facts=(self._fact("unknown", message[:500], **pos(letter)),), operations=(over, renewed.row(now)),
                answers=taken(letter), current_step=self.step_id,
            )
        )  # fmt: skip
        self.operation_id, self.attempt, self._began, self._first_began = renewed.operation_id, 0, now, now
        self._if_not, self._looked_up, self._agreed = None, False, False
        self.payload = renewed.digest

    # --- ends without a call

    def _had_happened(self, value: Any, how: str, letter: Mail | None) -> Found[R]:
        self.flow.heed(self.step_id)
        body, value = codec.pack(value, self.tool.result_type)
        message = f"{self._title()}: {how}. Not sent again."[:500]
        self.flow.write(
            Record(
                facts=(self._fact("completed", message, body=body, **pos(letter)),), answers=taken(letter), steps=1,
                operations=(self._row("succeeded", ended=self.flow.world.clock.now()),), current_step=self.step_id,
                point="outcome",
            )
        )  # fmt: skip
        return Found(value)

    def _ended(self, message: str, kind: str, letter: Mail | None, status: str = "failed") -> StepFailed:
        self.flow.heed(self.step_id)
        failure = Failure(
            type=kind, message=f"{self._title()}: {message}", error_class=kind.lower(), step_id=self.step_id
        )
        self.flow.write(
            Record(
                facts=(self._fact("failed", failure.message[:500], body=codec.encode(failure), **pos(letter)),),
                operations=(self._row(status, ended=self.flow.world.clock.now()),), answers=taken(letter), steps=1,
                current_step=self.step_id, point="outcome",
            )
        )  # fmt: skip
        return StepFailed(failure)

    @property
    def _reconciler(self) -> str:
        fn = self.tool.reconciler
        return fn.name if fn is not None else ""
