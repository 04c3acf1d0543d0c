"""One tool call as a durable step: intend, call, classify, record.

The order is the guarantee (I3): an operation that may touch the world is durable as `started` before the tool runs;
afterwards outcome, result, checkpoint and progress become durable together. A read-only call needs no intent.
"""

import asyncio
import contextlib
from collections.abc import Callable, Generator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

from outlive.actors import context
from outlive.actors.flow import Flow, Stopped
from outlive.actors.history import OPERATION, call_text
from outlive.actors.reactions import classify, wait_before_retry
from outlive.infra import failpoints, happenings
from outlive.infra.claims import StoredFact
from outlive.infra.records import AttemptRow, OperationRow, Record, State
from outlive.protocol import codec, keys
from outlive.protocol.errors import StepFailed
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Failure, Reason, ReasonCode
from outlive.protocol.tools import AnyTool, Operation

R = TypeVar("R")
_Phase = Literal["", "intended", "called"]
_AFTER_ERROR: Final = {
    ErrorClass.TIMEOUT: "unknown",
    ErrorClass.UNAVAILABLE: "unknown",
    ErrorClass.BUG: "unknown",  # it may have been raised after the request had left
    ErrorClass.NOT_STORABLE: "succeeded",
}
SHORT: Final = 200
"""Bytes of a read-only step's arguments that are kept to show them; longer ones are known by their digest alone."""

MESSAGE_LENGTH: Final = 20_000
"""Characters of an error's message that are stored."""


def printable(text: str) -> str:
    """Make a text one that can be stored: lone surrogates (of file names, for instance) become question marks."""
    return text.encode("utf-8", "replace").decode()


def given_up(step_id: str, what: str) -> Failure:
    """Return what is stored where the function gave a step up in flight: raised as `TimeoutError` on every run."""
    message = f"{what} was given up in flight by the task's own timeout"
    return Failure(type="TimeoutError", message=message, error_class="timeout", step_id=step_id)


def failure_of(error: BaseException, step_id: str | None = None) -> Failure:
    """Describe an exception so that anybody can read it without its class."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # reason: a broken __str__ must not hide the error
        message = f"(its message cannot be shown: {type(error).__name__}.__str__ fails)"
    message = printable(message)[:MESSAGE_LENGTH]
    return Failure(type=type(error).__name__, message=message, error_class=str(classify(error)), step_id=step_id)


class ToolStep(Generic[R]):
    """A call that has taken its place; awaiting it gives the stored result, or runs it."""

    __slots__ = (
        "_awaited",
        "_began",
        "_first",
        "_phase",
        "_thread",
        "attempt",
        "bound",
        "digest",
        "encoded",
        "flow",
        "step_id",
        "tool",
    )

    def __init__(self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any]) -> None:
        """Encode the arguments: they are part of what the step is recognised by."""
        self.flow = flow
        self.step_id = step_id
        self.tool = tool
        self.bound = bound
        self.encoded = tool.encode_arguments(bound)
        self.digest = tool.digest(self.encoded)
        self.attempt = 0
        self._phase: _Phase = ""  # of the attempt under way
        self._first: datetime | None = None  # when the first attempt began, in whatever worker
        self._thread: asyncio.Event | None = None  # set when the thread of the last attempt has ended
        self._awaited = False

    def __await__(self) -> Generator[Any, None, R]:
        """Return the result. Raises `StepFailed`, the same one on every run."""
        if self._awaited:
            raise RuntimeError(f"step {self.step_id} ({self.tool.name}) was awaited twice: keep its result instead")
        self._awaited = True
        done = self.flow.recall(self.step_id, self.tool.name, self.digest, self._show)
        if done is not None:
            return self._stored(done)
        return (yield from self._perform().__await__())

    def _show(self, arguments: bytes | None = None) -> str:
        """Show this call, or one of the same tool with other arguments."""
        order = tuple(self.tool.arguments.signature.parameters)
        return call_text(self.tool.name, arguments or self.encoded, order)

    def _stored(self, fact: StoredFact) -> R:
        if fact.status != "completed":
            failure = codec.decode(fact.body or b"{}", Failure)
            raise TimeoutError(failure.message) if fact.status == "unknown" else StepFailed(failure)
        try:
            result: R = codec.unpack(fact.body or b"null", self.tool.result_type)
        except codec.NotStorable as error:
            raise self.flow.outdated(
                self.step_id,
                f"The result of step {self.step_id} ({self.tool.name}) is stored and does not fit the type that is now "
                f"declared: {error}. Nothing was run. Deploy code that reads it, or: "
                f"outlive cancel {self.flow.claim.task_id}",
            ) from error
        return result

    async def _perform(self) -> R:
        flow = self.flow
        await flow.enter(self.step_id, self.tool.name, read_only=self.tool.read_only)
        try:
            return await self._attempts()
        except asyncio.CancelledError as error:
            self._interrupted(error)
            raise
        finally:
            flow.leave(self.step_id)

    async def _attempts(self) -> R:
        self.attempt, wait_until = self.flow.history.attempt(self.step_id)
        if wait_until is not None:
            await self._wait(wait_until)
        while True:
            self.attempt += 1
            if self._thread is not None and not self.tool.read_only:
                await self._thread.wait()
            self._began = self.flow.world.clock.now()
            if not self.tool.read_only:
                await self._intend()
            self._phase = "called"
            try:
                started = asyncio.get_running_loop().time()
                body, value = codec.pack(await self._invoke(), self.tool.result_type)
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # a tool may raise anything
                if isinstance(error, asyncio.CancelledError) and _cancelled():
                    raise
                self._phase = ""
                await self._retry_or_fail(error)
            else:
                self._phase = ""
                took = int((asyncio.get_running_loop().time() - started) * 1e6)
                await self._complete(body, took)
                return value  # type: ignore[no-any-return]  # packed by the tool's declared type

    async def _retry_or_fail(self, error: BaseException) -> None:
        """Wait for the next attempt. Raises what ends the step: `StepFailed`, or a pause for a person."""
        pause = wait_before_retry(self.tool, error, self.attempt, self.flow.world.random)
        if pause is not None:
            await self._retry_later(error, pause)
        elif classify(error) is ErrorClass.RATE_LIMITED:
            raise self._throttled(error) from error
        else:
            raise self._fail(error) from error

    # --- before the effect

    async def _intend(self) -> None:
        """Make the operation durable as started. An attempt that was lost with its worker counts."""
        flow, tool = self.flow, self.tool
        lost: list[AttemptRow] = []
        before = flow.history.operations.pop((self.step_id, OPERATION), None)
        if before is not None and before.status in {"started", "unknown"}:
            self.attempt = max(self.attempt, before.attempt + 1)
            if before.status == "started":
                lost.append(
                    AttemptRow(
                        self.step_id, OPERATION, before.attempt, before.worker, before.started_at, None,
                        ErrorClass.TIMEOUT, "its worker ended before the outcome was recorded",
                    )
                )  # fmt: skip
        if tool.key_ttl is not None:
            await self._within_key_ttl(tool.key_ttl)
        row = self._row("started", arguments=self.encoded)
        self._phase = "intended"
        self._settle("started")
        await flow.commit(Record(operations=(row,), attempts=lost, current_step=self.step_id, point="intent"))
        await self._covered()
        if flow.stopping:
            self.flow.write(self._not_started("the task was stopped first"))
            flow.check()

    async def _covered(self) -> None:
        """Begin no effect on a lease that has run out: wait for the next heartbeat."""
        while self.flow.world.heartbeat.covered <= 0 and not self.flow.stopping:  # noqa: ASYNC110  # rare: a beat is late
            await asyncio.sleep(0.05)

    async def _within_key_ttl(self, ttl: float) -> None:
        """Pause when the remote may have forgotten the key since the first attempt."""
        flow, claim = self.flow, self.flow.claim
        if self._first is None:
            self._first = (
                await flow.world.claims.first_attempt(claim.tenant, claim.task_id, self.step_id) or self._began
            )
        if (self._began - self._first).total_seconds() < ttl:
            return
        raise flow.suspend(
            Reason(
                reason=ReasonCode.OUTCOME_UNKNOWN, since=self._began, do=f"outlive cancel {claim.task_id}",
                step_id=self.step_id, operation_id=OPERATION,
                message=f"{self.tool.name} may or may not have happened, and the remote has forgotten its key "
                f"(kept for {ttl:g} s): it is not sent again by itself.",
            )
        )  # fmt: skip

    def _not_started(self, why: str) -> Record:
        self._settle("failed")
        return Record(
            operations=(self._row("failed", ended=self.flow.world.clock.now()),),
            attempts=(self._attempted(ErrorClass.NOT_SENT, f"not started: {why}"),),
        )

    # --- the call

    async def _invoke(self) -> Any:
        tool, loop = self.tool, asyncio.get_running_loop()
        arguments = self._operation() if tool.takes_operation else ()
        telling = loop.call_later(self.flow.world.settings.started_after, self._tell_started)
        if failpoints.armed and not tool.read_only:
            await failpoints.hit("effect.before")
        outside = context.current.set(None)  # what a tool calls is its own business
        try:
            async with asyncio.timeout(tool.timeout):
                if tool.is_async:
                    result = await tool.fn(*arguments, **self.bound)
                else:
                    result = await self.flow.world.threads.call(self._threaded(arguments))
        finally:
            context.current.reset(outside)
            telling.cancel()
        if failpoints.armed and not tool.read_only:
            await failpoints.hit("effect.after")
        return result

    def _threaded(self, arguments: tuple[Any, ...]) -> Callable[[], Any]:
        """Return the call for a thread, which tells when it has ended: it outlives its timeout, and may still send."""
        tool, bound, loop = self.tool, self.bound, asyncio.get_running_loop()
        ended = self._thread = asyncio.Event()

        def run() -> Any:
            try:
                return tool.fn(*arguments, **bound)
            finally:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(ended.set)

        return run

    def _operation(self) -> tuple[Operation]:
        claim = self.flow.claim
        key = keys.operation_key(claim.tenant, claim.task_id, self.step_id, OPERATION)
        deadline = self.flow.world.clock.now() + timedelta(seconds=self.tool.timeout)
        return (Operation(key=key, started_at=self._began, deadline=deadline, attempt=self.attempt),)

    def _tell_started(self) -> None:
        fact = self._fact("started", f"{self._title()} has begun")
        with contextlib.suppress(Stopped):  # fenced: whoever awaits the step is told
            self.flow.write(Record(facts=(fact,), current_step=self.step_id))

    # --- after the call

    async def _complete(self, body: bytes, took: int) -> None:
        flow = self.flow
        try:
            fits(body, flow.world.settings.result_limit)
        except codec.NotStorable as error:
            raise self._fail(error) from error
        record = Record(
            facts=(self._fact("completed", self._title(), took=took, body=body),),
            steps=1, current_step=self.step_id, point="outcome",
        )  # fmt: skip
        if not self.tool.read_only:
            self._settle("succeeded")
            record.operations = (self._row("succeeded", ended=flow.world.clock.now()),)
        if self.tool.durable == "before_next":
            await flow.commit(record)
        else:
            flow.write(record)
            await flow.room()

    def _fail(self, error: BaseException) -> StepFailed:
        """Record that the step failed for good; returns what is raised now and on every resume."""
        failure = failure_of(error, self.step_id)
        message = f"{self._title()} failed: {failure.type}: {failure.message}"[:500]
        self.flow.write(
            Record(
                facts=(self._fact("failed", message, body=codec.encode(failure)),), steps=1,
                operations=self._after_error(error), attempts=(self._attempted(classify(error), failure.message),),
                current_step=self.step_id, point="outcome",
            )
        )  # fmt: skip
        return StepFailed(failure)

    def _throttled(self, error: BaseException) -> Stopped:
        """The remote did not let us in however often we waited: a person decides when to ask again."""
        task_id = self.flow.claim.task_id
        self.flow.write(
            Record(
                operations=self._after_error(error),
                attempts=(self._attempted(classify(error), failure_of(error).message),), current_step=self.step_id,
            )
        )  # fmt: skip
        return self.flow.suspend(
            Reason(
                reason=ReasonCode.THROTTLED, since=self.flow.world.clock.now(), do=f"outlive resume {task_id}",
                step_id=self.step_id,
                message=f"{self._title()} was turned away {self.attempt} times: {failure_of(error).message}"[:500],
            )
        )  # fmt: skip

    def _after_error(self, error: BaseException) -> Sequence[OperationRow]:
        """What the ledger says of an effect whose attempt raised this."""
        if self.tool.read_only:
            return ()
        status = _AFTER_ERROR.get(classify(error), "failed")
        self._settle(status)
        return (self._row(status, ended=self.flow.world.clock.now()),)

    def _settle(self, status: str) -> None:
        """Remember what an end of the task will say of this effect."""
        self.flow.effects[self.step_id] = (self.tool.name, status)

    async def _retry_later(self, error: BaseException, pause: float) -> None:
        now = self.flow.world.clock.now()
        until = now + timedelta(seconds=pause)
        failure = failure_of(error)
        message = (
            f"{self._title()}: {classify(error).replace('_', ' ')} until {until:%H:%M:%S}, "
            f"attempt {self.attempt} of {self.tool.retries.max_attempts}: {failure.message}"
        )[:500]
        self.flow.write(
            Record(
                facts=(self._fact("waiting", message, wait_until=until),), operations=self._after_error(error),
                attempts=(self._attempted(classify(error), failure.message, until),), current_step=self.step_id,
                state=State(waiting_for=f"{self.tool.name}, attempt {self.attempt + 1}", wait_until=until),
            )
        )  # fmt: skip
        await self._wait(until)

    async def _wait(self, until: datetime) -> None:
        event: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self.flow.wait(self.step_id, self.tool.name, until, event)

    def _interrupted(self, error: asyncio.CancelledError) -> None:
        """The step was cancelled: by the function's own timeout, or by an end of the task that did not wait for it."""
        mine = self.flow.gave_up(error)
        lost = self._phase == "called" and not self.tool.read_only
        if not mine and not (lost and self.flow.stop in {"pause", "cancel", "ended"}):
            return  # it runs again; an intent without an outcome is found by the next owner
        failure = given_up(self.step_id, self._title())
        reason = failure.message if mine else f"{self._title()} was given up in flight: the task was stopped"
        record = self._not_started(reason) if self._phase == "intended" else Record()
        if lost:
            self._settle("unknown")
            record.operations = (self._row("unknown", ended=self.flow.world.clock.now()),)
        if self._phase == "called":
            record.attempts = (self._attempted(ErrorClass.TIMEOUT, reason),)
        record.facts = (self._fact("unknown", reason, body=codec.encode(failure)),)
        record.steps, record.current_step = 1, self.step_id
        self.flow.write(record)

    # --- rows

    def _title(self) -> str:
        return self.tool.describe(self.bound)

    def _fact(self, status: Any, message: str, **more: Any) -> Any:
        short = self.tool.read_only and len(self.encoded) <= SHORT
        return happenings.step(
            self.flow.claim, self.flow.world.clock.now(), self.step_id, self.tool.name, status, message,
            digest=self.digest, attempt=self.attempt, arguments=self.encoded if short else None, **more,
        )  # fmt: skip

    def _row(self, status: str, *, arguments: bytes = b"", ended: datetime | None = None) -> OperationRow:
        deadline = self._began + timedelta(seconds=self.tool.timeout)
        return OperationRow(
            self.step_id, OPERATION, self.tool.name, status, self.attempt, self.digest, codec.CODEC_JSON, arguments,
            self._began, deadline, ended,
        )  # fmt: skip

    def _attempted(self, error_class: ErrorClass, reason: str, until: datetime | None = None) -> AttemptRow:
        clean = reason.replace("\0", "\\0")[:2000]  # a text column cannot hold NUL
        return AttemptRow(
            self.step_id, OPERATION, self.attempt, self.flow.world.heartbeat.incarnation, self._began,
            self.flow.world.clock.now(), str(error_class), clean, until,
        )  # fmt: skip


def fits(body: bytes, limit: int) -> bytes:
    """Return an encoded result that is not too large, or raise `codec.NotStorable`."""
    if len(body) <= limit:
        return body
    raise codec.NotStorable(
        "$",
        f"{len(body):,} bytes are above the limit of {limit:,} for a result: store it elsewhere, return a reference",
    )


def _cancelled() -> bool:
    """True when the asyncio task that runs here was cancelled; a tool may raise CancelledError all by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
