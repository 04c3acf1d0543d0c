"""An actor: the running incarnation of one task. The main flow is `Actor.run`; read it first.

    recover    history and ledger are loaded; what a dead worker left open is known
    attend     commands are applied as they come; steps run, each made durable; waits may let the task go
    conclude   the end, a pause, a cancel or a leave becomes durable, in one record

Only what is recorded counts. Whatever happens to this process between two records, the next owner begins at the last.
"""

import asyncio
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import anyio
import msgspec
import structlog

from outlive.actors import compensation, context
from outlive.actors.failures import failure_of, fits, printable
from outlive.actors.flow import Flow, Stopped
from outlive.actors.mailbox import Mailbox
from outlive.actors.places import Branch, branch
from outlive.actors.supervision import unwrap
from outlive.actors.task import Restart, Task
from outlive.actors.world import World
from outlive.infra import happenings
from outlive.infra.claims import Claimed, Mail
from outlive.infra.clerk import ends_by_itself
from outlive.infra.journal import Line, Refused
from outlive.infra.records import Fact, Record, State
from outlive.protocol import codec, lifecycle, secrets, steps
from outlive.protocol.effects import Effects, cancel_message, summarize
from outlive.protocol.errors import StepFailed, TaskCancelled, TaskFailed
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Failure, Reason, ReasonCode, Status
from outlive.protocol.tools import AnyKind

Ending = Literal["ended", "left", "kept", "fenced", "crashed", "unstorable"]
"""Why an actor is gone: the task is final; let go (waiting, paused, drained); kept to the end of the process;
another owns it; its code raised; a record of it was refused."""

STORED_ERRORS: Final = (StepFailed, TaskFailed, TaskCancelled)
"""Errors that are facts: the function would raise them again on every run, so it is not tried again."""

_log = structlog.get_logger("outlive.actor")


class StoredInput(msgspec.Struct):
    """What the task's row holds of its submit."""

    input: msgspec.Raw = msgspec.Raw(b"{}")
    goal: str | None = None


_inputs: Final = msgspec.json.Decoder(StoredInput)


@dataclass(slots=True)
class Crash:
    """An exception that left the function and is no stored fact: a bug, until it is seen twice."""

    failure: Failure
    steps: int  # how many were done: it counts until the next one is; -1: it never counts

    @property
    def signature(self) -> tuple[str, str, str | None]:
        """Two crashes are the same when class, message and step are."""
        return (self.failure.type, self.failure.message, self.failure.step_id)


class Actor:
    """One task in memory.

    Args:
        claimed: the task with its history.
        kind: its code.
        line: the only way to write it.
        world: what all actors of the worker share.
        crashes: what it died of before in this worker; a repeated one is final.
    """

    def __init__(
        self, claimed: Claimed, kind: AnyKind, line: Line, world: World, crashes: Sequence[Crash] = ()
    ) -> None:
        """See the class."""
        self.claimed = claimed
        self.claim = claimed.claim
        self.flow = Flow(claimed, kind, line, world)
        self.crash: Crash | None = None
        self.life: Final = anyio.CancelScope()  # around `run`, for `kill`
        self._kind = kind
        self._world = world
        self._crashes = crashes
        self._mailbox = Mailbox(self.flow)
        self._returned: Any = None
        self._raised: BaseException | None = None
        self._details: dict[tuple[str, str], str] = {}  # why an effect stays, by step and operation
        self._finished = asyncio.Event()
        self._over = False  # the function came to its own end: nothing was refused to it, nobody cut it short
        self._draining = False

    # --- the main flow

    async def run(self) -> Ending:
        """Recover, run step by step, conclude. Never raises for what the task's own code does."""
        try:
            if (failure := self._hopeless()) is not None:
                return await self._failed(failure, f"{failure.type}: {failure.message}")
            while True:
                self._recover()
                async with anyio.create_task_group() as group:
                    group.start_soon(self._perform)
                    await self._attend()
                    self._over = self._finished.is_set() and not self.flow.struck
                    if not self._over:
                        group.cancel_scope.cancel()
                await self.flow.abandon()
                if (ending := await self._conclude()) is not None:
                    return ending
        except (Refused, Stopped):
            return "unstorable" if self.claim.refused == "unstorable" else "fenced"
        finally:
            self._raised = None  # its traceback leads back to this actor: without it memory is freed at once

    async def stand_by(self, turn: Callable[[], Awaitable[Any]]) -> bool:
        """Wait for a turn before `run`. False: told to stop meanwhile, it is not our turn."""
        flow, came = self.flow, False

        async def wait() -> None:
            nonlocal came
            await turn()
            came = True
            flow.news.set()

        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            while not came and not flow.stop:
                flow.news.clear()
                await flow.news.wait()
            group.cancel_scope.cancel()
        return came

    async def suspend(self, reason: Reason) -> Ending:
        """Pause for a person without running a line of the task's code."""
        self.flow.suspend(reason)
        try:
            return await self._paused()
        except (Refused, Stopped):
            return "fenced"

    def _hopeless(self) -> Failure | None:
        """Return what the actor itself (not the task's code) has died of twice at the same place."""
        last = [(crash.steps, crash.signature) for crash in self._crashes[-2:]]
        return self._crashes[-1].failure if len(last) == 2 and last[0] == last[1] and last[0][0] >= 0 else None

    def _recover(self) -> None:
        """Take in the mail that came before, and say that the task runs."""
        if self.flow.cancelling and self.flow.compensating:
            self._begin_undo()
        elif self.flow.cancelling:
            self.flow.halt("cancel")
        if self.flow.status is Status.PAUSED:  # claimed because a question has run out of time
            self._goes_on()
        if self.flow.status is Status.QUEUED:
            self.flow.status = Status.RUNNING
            started = happenings.status(
                self.claim, self._now(), Status.RUNNING, f"Started: {self._title().removesuffix('.')}."
            )
            self.flow.write(
                Record(facts=(started,), state=State(status="running", code_version=self._kind.code_version))
            )
        mail, self.claimed.mail = self.claimed.mail, []
        self._mailbox.recover(mail)

    def _goes_on(self) -> None:
        now, flow = self._now(), self.flow
        self.flow.status = Status.RUNNING
        flow.standing = tuple(
            reason for reason in flow.standing
            if reason.reason is not ReasonCode.THROTTLED or reason.until is None or reason.until > now
        )  # fmt: skip
        fact = happenings.status(self.claim, now, Status.RUNNING, "Goes on.", reasons=flow.standing)
        state = State(status="running", reasons=codec.encode(list(flow.standing)))
        flow.write(Record(facts=(fact,), state=state))

    async def _perform(self) -> None:
        """Run the durable function from its first line; recorded steps answer from the record."""
        run = self.flow.run
        branch.set(Branch("" if run == 1 else f"r{run}-", asyncio.current_task()))
        context.current.set(Task(self.flow))
        structlog.contextvars.bind_contextvars(
            tenant=self.claim.tenant, task=self.claim.task_id, worker=self._world.worker, epoch=self.claim.epoch
        )
        try:
            self.flow.check()
            if self.flow.undoing:
                await compensation.undo(self.flow, self._details)
            else:
                self._check_policy()
                self._returned = await self._kind.fn(Task(self.flow), **self._input())
        except BaseException as error:  # noqa: BLE001  # judged in _conclude
            self._raised = error
        finally:
            branch.get().owner = None  # the context of this asyncio task leads back to it
            self._finished.set()
            self.flow.news.set()

    def _input(self) -> dict[str, Any]:
        """Return the function's arguments; a stranger's submit may hold others."""
        try:
            given = _inputs.decode(self.claimed.input)
            body = bytes(given.input)
            if given.goal is not None and "goal" in self._kind.arguments.types:
                body = codec.encode({"goal": given.goal, **codec.decode(body, dict[str, msgspec.Raw])})
            return self._kind.decode_input(body)
        except codec.NotStorable as error:
            wrong = Failure(
                type="InvalidInput", message=self._clean(str(error)), error_class=str(ErrorClass.INVALID_ARGUMENTS)
            )
            raise StepFailed(wrong) from None

    def _clean(self, text: str) -> str:
        """Return a text of the task's author, or of an error, without the secrets of its input."""
        secret = self._kind.arguments.secrets
        return secrets.scrub(text, secret, bytes(_inputs.decode(self.claimed.input).input)) if secret else text

    def _check_policy(self) -> None:
        """Refuse a submit that wants a yes for tools that the app has not: it would get none, and not know."""
        named = self.flow.history.policy.tools if self.claimed.parent is None else ()
        for name in named:
            tool = self._world.tools.get(name)
            if tool is None or tool.read_only:
                known = (
                    ", ".join(sorted(each for each, one in self._world.tools.items() if not one.read_only)) or "none"
                )
                message = f"requires_approval names {name!r}, which is no effect of this app; it has: {known}"
                wrong = Failure(type="InvalidPolicy", message=message, error_class=str(ErrorClass.INVALID_ARGUMENTS))
                raise StepFailed(wrong)

    async def _attend(self) -> None:
        """Stay until the function has ended, must stop, or has waited so long that the task is let go."""
        flow = self.flow
        while not self._finished.is_set():
            if flow.stop in {"fenced", "unstorable"}:
                return
            if flow.stop in {"pause", "cancel", "drain"} and await self._stopped():
                return
            if flow.stop == "leave":
                if flow.asleep and await self._let_go():
                    return
                if flow.stop == "leave":
                    flow.stop = "drain" if self._draining else ""
                continue
            flow.news.clear()
            await self._news()
        flow.halt("ended")
        while flow.in_flight and not await self._stopped():
            pass  # told to stop for another reason: a cancel gives its own grace

    async def _stopped(self) -> bool:
        """Let steps in flight end: a pause however long they take, all else within the grace."""
        flow, deadline = self.flow, asyncio.get_running_loop().time() + self._world.settings.grace
        stop = flow.stop
        while flow.in_flight and flow.stop == stop:
            flow.news.clear()
            timeout = None if stop == "pause" else deadline - asyncio.get_running_loop().time()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await flow.news.wait()
            if timeout is not None and asyncio.get_running_loop().time() >= deadline:
                break
        return flow.stop == stop

    async def _news(self) -> None:
        """Wait for something to look at; a task that waits for longer than `linger` is told to leave."""
        flow = self.flow
        if flow.idle_since is None or flow.stop:
            await flow.news.wait()
            return
        linger = 0.0 if flow.needs_person else self._world.settings.linger
        left = flow.idle_since + linger - asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(max(0.0, left)):
                await flow.news.wait()
        except TimeoutError:
            flow.halt("leave")

    # --- ends

    async def _conclude(self) -> Ending | None:
        """Make the end of this incarnation durable. None: the task begins a new run at once."""
        flow = self.flow
        if flow.stop in {"fenced", "unstorable"} or self.claim.refused is not None:
            return "unstorable" if self.claim.refused == "unstorable" else "fenced"
        if self.claim.left:
            return "left"
        if flow.stop == "cancel":
            return await self._cancelled()
        if self._over:
            return await self._returns()
        if flow.stop == "pause" and (self.flow.standing or flow.reasons):
            return await self._paused()
        if any(self._world.threads.runs(key) for key in flow.outlived):
            return "kept"
        await flow.depart(Record(state=State(leave="always", due_at=self._now()), point="leave"))
        return "left"

    async def _returns(self) -> Ending | None:
        """The function has come to its end by itself."""
        flow = self.flow
        error = flow.misplaced or self._raised
        if flow.undoing and error is None:
            return await self._cancelled()
        if (error is None or isinstance(error, Restart)) and flow.left_out():
            return await self._paused()
        if error is None:
            return await self._succeeded()
        if isinstance(error, Restart):
            await flow.room()
            self._begin_run(error.body)
            return None
        if isinstance(error, asyncio.CancelledError):
            cancelled, error = (
                error,
                RuntimeError("the function ended with asyncio.CancelledError, although nobody had cancelled the task"),
            )
            error.__cause__ = cancelled
        return await self._broken(unwrap(error))

    async def _succeeded(self) -> Ending:
        try:
            body, _ = codec.pack(self._returned, self._kind.result_type)
            fits(body, self._world.settings.result_limit)
        except codec.NotStorable as error:
            return await self._failed(failure_of(error), f"its result cannot be stored: {error}")
        return await self._final(Status.SUCCEEDED, f"Succeeded after {self.claim.steps} steps.", body)

    async def _broken(self, error: BaseException) -> Ending:
        """A stored failure fails the task; a bug restarts its actor once, and the same bug again fails the task."""
        step_id = next(reversed(self.flow.waits), None)
        failure = error.failure if isinstance(error, StepFailed | TaskFailed) else failure_of(error, step_id)
        trace = "".join(traceback.format_exception(error))[-8000:]
        failure = msgspec.structs.replace(
            failure, message=self._clean(failure.message), traceback=self._clean(printable(trace))
        )
        self.crash = Crash(failure, self.claim.steps)
        earlier = [crash for crash in self._crashes if crash.steps == self.claim.steps]
        known = any(crash.signature == self.crash.signature for crash in earlier)
        if isinstance(error, STORED_ERRORS) or known or len(earlier) >= self._world.settings.restart_intensity:
            return await self._failed(failure, f"{failure.type}: {failure.message}")
        _log.warning("the task's code raised; its actor restarts once", error=failure.message, type=failure.type)
        await self.flow.flushed()
        return "crashed"

    async def _failed(self, failure: Failure, message: str) -> Ending:
        return await self._final(Status.FAILED, f"Failed: {message}", codec.encode(failure))

    async def _cancelled(self) -> Ending | None:
        """Find out what can be found out, and say what the task did. None: that is undone first."""
        flow = self.flow
        if flow.compensating and not flow.undoing:
            self._begin_undo()
            return None
        if not flow.undoing:
            await compensation.find_out(flow)
        effects = summarize(await compensation.ledger(flow), self._details)
        message = cancel_message(flow.cancelled_by, effects, compensated=flow.undoing)
        return await self._final(Status.CANCELLED, message, None, effects)

    def _begin_undo(self) -> None:
        """The function runs no more; what it asked of people is void."""
        flow = self.flow
        if flow.undoing:
            return
        flow.undoing, flow.struck, flow.misplaced, flow.reasons = True, False, None, ()
        stopped = flow.stop == "cancel"  # else another incarnation has begun to undo, or the clerk has told it
        if stopped:
            flow.stop = "drain" if self._draining else ""
        self._returned, self._raised = None, None
        self._finished.clear()
        standing = tuple(one for one in flow.standing if one.step_id is not None and steps.is_undo(one.step_id))
        if stopped or standing != flow.standing:
            message = "Stopped. What it did is undone, newest first."
            fact = happenings.status(self.claim, self._now(), Status.RUNNING, message, reasons=standing)
            flow.write(Record(facts=(fact,), state=State(reasons=codec.encode(list(standing)), waiting_for="")))
        flow.standing = standing

    async def _final(self, status: Status, message: str, body: bytes | None, effects: Effects | None = None) -> Ending:
        now = self._now()
        lifecycle.check_transition(self.flow.status, status)
        fact = happenings.status(self.claim, now, status, message[:2000], final=True, body=body, effects=effects)
        state = State(
            status=str(status), reasons=b"[]", waiting_for="", leave="always",
            tell=self.claimed.parent is not None or status is Status.CANCELLED,
        )  # fmt: skip
        await self.flow.depart(Record(facts=(fact,), state=state, point="final", attention=(status, message, [], now)))
        return "ended"

    async def _paused(self) -> Ending:
        """Write the reasons and let go; a resume or cancel that came in between is honoured by whoever is next."""
        now, reasons = self._now(), [*self.flow.standing, *self.flow.reasons]
        message = "; ".join(dict.fromkeys(reason.headline for reason in reasons))
        facts: tuple[Fact, ...] = ()
        if self.flow.status is not Status.PAUSED:
            facts = (happenings.status(self.claim, now, Status.PAUSED, f"Paused: {message}", reasons=reasons),)
        state = State(status="paused", reasons=codec.encode(reasons), leave="always", due_at=ends_by_itself(reasons))
        attention = (Status.PAUSED, message, reasons, now)
        await self.flow.depart(Record(facts=facts, state=state, point="leave", attention=attention))
        return "left"

    def _begin_run(self, body: bytes) -> None:
        stored = codec.encode({"input": msgspec.Raw(body), "policy": self.flow.history.policy.stored()})
        run = self.flow.run + 1
        fact = happenings.status(self.claim, self._now(), Status.RUNNING, f"Run {run} begins with a new input.")
        self.flow.begin_run(fact)
        self.flow.write(
            Record(facts=(fact,), state=State(run=run, run_from=fact.seq, input=stored, plan_version=0, plan_total=0))
        )
        self.claimed.input = stored
        self._raised, self._returned = None, None
        self._finished.clear()

    async def _let_go(self) -> bool:
        """Leave memory while waiting. False when mail came first: then all goes on."""
        flow = self.flow
        state = flow.waiting()
        state.leave, state.due_at = "drained", state.wait_until
        record = Record(state=state, point="leave")
        if flow.needs_person:
            self._ask_person(record)
        left = await flow.depart(record)
        deferred, self._mailbox.deferred = self._mailbox.deferred, []
        if not left:
            if self.flow.status is Status.PAUSED:
                self._goes_on()
            self.deliver(deferred)
        return left

    def _ask_person(self, record: Record) -> None:
        """Nothing goes on until a person acts: the task is let go as paused."""
        now, reasons = self._now(), list(self.flow.standing)
        message = "; ".join(dict.fromkeys(reason.headline for reason in reasons))
        self.flow.status = Status.PAUSED
        record.facts = (happenings.status(self.claim, now, Status.PAUSED, f"Paused: {message}", reasons=reasons),)
        assert record.state is not None
        record.state.status, record.state.reasons = "paused", codec.encode(reasons)
        record.attention = (Status.PAUSED, message, reasons, now)

    # --- told by the worker

    def deliver(self, letters: Sequence[Mail]) -> None:
        """Apply mail in its order; what was applied before is passed over."""
        self._mailbox.deliver(letters)

    def drain(self) -> None:
        """Begin nothing more and hand the task back."""
        self._draining = True
        self.flow.halt("leave" if self.flow.idle_since is not None and not self.flow.in_flight else "drain")

    def evict(self) -> None:
        """Leave memory if it only waits."""
        if self.flow.idle_since is not None:
            self.flow.halt("leave")

    def fence(self) -> None:
        """Another worker owns the task."""
        self.flow.halt("fenced")

    def kill(self) -> None:
        """End here and now, as a mistake of ours would; the task begins again at its checkpoint."""
        self.crash = Crash(Failure(type="Killed", message="the actor was killed"), steps=-1)
        self.fence()  # what is cut short now is no fact
        self.life.cancel()

    def _title(self) -> str:
        try:
            return self._kind.describe(self._input())
        except StepFailed:
            return self._kind.name

    def _now(self) -> datetime:
        return self._world.clock.now()
