"""One tool call as a durable step: intend, call, classify, record.

The order is the guarantee (I3): an operation that may touch the world is durable as `started` before the tool runs;
afterwards outcome, result, checkpoint and progress become durable together. A read-only call needs no intent.
"""

import asyncio
import contextlib
import json
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any, Final, Generic, TypeVar

from outlive.actors import context
from outlive.actors.flow import Flow, Stopped
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
_AFTER_ERROR: Final = {
    ErrorClass.TIMEOUT: "unknown",
    ErrorClass.UNAVAILABLE: "unknown",
    ErrorClass.NOT_STORABLE: "succeeded",
}
OPERATION: Final = "1"
"""An operation's id is its number within the step."""


def call_text(name: str, bound: dict[str, Any]) -> str:
    """Show a call as a person would write it, cut to a line."""
    shown = ", ".join(json.dumps(value, default=str, ensure_ascii=False)[:40] for value in bound.values())
    return f"{name}({shown[:80]})"


def failure_of(error: BaseException, step_id: str | None = None) -> Failure:
    """Describe an exception so that anybody can read it without its class."""
    try:
        message = str(error)
    except Exception:  # noqa: BLE001  # reason: a broken __str__ must not hide the error
        message = f"(its message cannot be shown: {type(error).__name__}.__str__ fails)"
    message = message.encode("utf-8", "replace").decode()
    return Failure(type=type(error).__name__, message=message, error_class=str(classify(error)), step_id=step_id)


class ToolStep(Generic[R]):
    """A call that has taken its place; awaiting it gives the stored result, or runs it."""

    __slots__ = ("_awaited", "bound", "digest", "encoded", "flow", "step_id", "tool")

    def __init__(self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any]) -> None:
        """Encode the arguments: they are part of what the step is recognised by."""
        self.flow = flow
        self.step_id = step_id
        self.tool = tool
        self.bound = bound
        self.encoded = tool.encode_arguments(bound)
        self.digest = tool.digest(self.encoded)
        self._awaited = False

    def __await__(self) -> Generator[Any, None, R]:
        """Return the result. Raises `StepFailed`, the same one on every run."""
        if self._awaited:
            raise RuntimeError(f"step {self.step_id} ({self.tool.name}) was awaited twice: keep its result instead")
        self._awaited = True
        done = self.flow.history.done.get(self.step_id)
        if done is not None:
            return self._stored(done)
        return (yield from self._perform().__await__())

    def _stored(self, fact: StoredFact) -> R:
        self.flow.expect(fact, self.step_id, self.tool.name, self.digest, call_text(self.tool.name, self.bound))
        if fact.status == "failed":
            raise StepFailed(codec.decode(fact.body or b"{}", Failure))
        result: R = codec.unpack(fact.body or b"null", self.tool.result_type)
        return result

    async def _perform(self) -> R:
        flow = self.flow
        begun = flow.history.begun.get(self.step_id) or flow.history.waits.get(self.step_id)
        if begun is not None:
            flow.expect(begun, self.step_id, self.tool.name, self.digest, call_text(self.tool.name, self.bound))
        await flow.enter(self.step_id, self.tool.name, read_only=self.tool.read_only)
        try:
            return await self._attempts()
        finally:
            flow.leave()

    async def _attempts(self) -> R:
        attempt, wait_until = self.flow.history.attempt(self.step_id)
        if wait_until is not None:
            await self._wait(wait_until)
        while True:
            attempt += 1
            if not self.tool.read_only:
                attempt = await self._intend(attempt)
            try:
                started = asyncio.get_running_loop().time()
                body, value = codec.pack(await self._invoke(attempt), self.tool.result_type)
            except asyncio.CancelledError:
                self._interrupted(attempt)
                raise
            except Exception as error:  # reason: a tool may raise anything; it is classified
                pause = wait_before_retry(self.tool, error, attempt, self.flow.world.random)
                if pause is None:
                    raise self._fail(error, attempt) from error
                await self._retry_later(error, attempt, pause)
            else:
                took = int((asyncio.get_running_loop().time() - started) * 1e6)
                await self._complete(body, attempt, took)
                return value  # type: ignore[no-any-return]  # reason: packed by the tool's declared type

    # --- before the effect

    async def _intend(self, attempt: int) -> int:
        """Make the operation durable as started. Returns the attempt's number: one lost with its worker counts."""
        flow, tool = self.flow, self.tool
        lost: list[AttemptRow] = []
        before = flow.history.operations.pop((self.step_id, OPERATION), None)
        if before is not None:
            if before.digest != self.digest:
                raise flow.suspend(self._changed(before.name))
            if before.status in {"started", "unknown"}:
                attempt = max(attempt, before.attempt + 1)
                self._within_key_ttl(before.started_at)
                if before.status == "started":
                    lost.append(
                        AttemptRow(
                            self.step_id, OPERATION, before.attempt, before.worker, before.started_at, None,
                            ErrorClass.TIMEOUT, "its worker ended before the outcome was recorded",
                        )
                    )  # fmt: skip
        now = flow.world.clock.now()
        row = self._row("started", attempt, now, arguments=self.encoded)
        flow.effects[self.step_id] = (tool.name, "started")
        await flow.commit(Record(operations=(row,), attempts=lost, current_step=self.step_id, point="intent"))
        await self._covered()
        if flow.stop:
            self._not_started(attempt, now)
            flow.check()
        return attempt

    async def _covered(self) -> None:
        """Begin no effect on a lease that has run out: wait for the next heartbeat."""
        while self.flow.world.heartbeat.covered <= 0 and not self.flow.stop:  # noqa: ASYNC110  # rare: a beat is late
            await asyncio.sleep(0.05)

    def _within_key_ttl(self, since: datetime) -> None:
        ttl = self.tool.key_ttl
        if ttl is None or (self.flow.world.clock.now() - since).total_seconds() < ttl:
            return
        task_id = self.flow.claim.task_id
        raise self.flow.suspend(
            Reason(
                reason=ReasonCode.OUTCOME_UNKNOWN, since=self.flow.world.clock.now(), do=f"outlive cancel {task_id}",
                step_id=self.step_id, operation_id=OPERATION,
                message=f"{self.tool.name} may or may not have happened, and the remote has forgotten its key "
                f"(kept for {ttl:g} s): it is not sent again by itself.",
            )
        )  # fmt: skip

    def _changed(self, name: str) -> Reason:
        return Reason(
            reason=ReasonCode.VERSION_MISMATCH, since=self.flow.world.clock.now(),
            do=f"outlive resume {self.flow.claim.task_id}", step_id=self.step_id,
            message=f"Step {self.step_id} began {name} with other arguments when this task ran before; the code now "
            f"calls {call_text(self.tool.name, self.bound)}. Nothing was run. Deploy the old code, or: "
            f"outlive cancel {self.flow.claim.task_id}",
        )  # fmt: skip

    def _not_started(self, attempt: int, at: datetime) -> None:
        self.flow.effects[self.step_id] = (self.tool.name, "failed")
        now = self.flow.world.clock.now()
        self.flow.write(
            Record(
                operations=(self._row("failed", attempt, at, ended=now),),
                attempts=(self._attempt(attempt, at, ErrorClass.NOT_SENT, "not started: the task was stopped first"),),
            )
        )

    # --- the call

    async def _invoke(self, attempt: int) -> Any:
        tool, loop = self.tool, asyncio.get_running_loop()
        arguments = self._operation(attempt) if tool.takes_operation else ()
        telling = loop.call_later(self.flow.world.settings.started_after, self._tell_started, attempt)
        if failpoints.armed and not tool.read_only:
            await failpoints.hit("effect.before")
        outside = context.current.set(None)  # what a tool calls is its own business
        try:
            async with asyncio.timeout(tool.timeout):
                if tool.is_async:
                    result = await tool.fn(*arguments, **self.bound)
                else:
                    result = await self.flow.world.threads.call(tool.fn, *arguments, **self.bound)
        finally:
            context.current.reset(outside)
            telling.cancel()
        if failpoints.armed and not tool.read_only:
            await failpoints.hit("effect.after")
        return result

    def _operation(self, attempt: int) -> tuple[Operation]:
        claim, now = self.flow.claim, self.flow.world.clock.now()
        key = keys.operation_key(claim.tenant, claim.task_id, self.step_id, OPERATION)
        return (
            Operation(key=key, started_at=now, deadline=now + timedelta(seconds=self.tool.timeout), attempt=attempt),
        )

    def _tell_started(self, attempt: int) -> None:
        fact = self._fact("started", f"{self._title()} has begun", attempt)
        with contextlib.suppress(Stopped):  # fenced: whoever awaits the step is told
            self.flow.write(Record(facts=(fact,), current_step=self.step_id))

    # --- after the call

    async def _complete(self, body: bytes, attempt: int, took: int) -> None:
        flow, now = self.flow, self.flow.world.clock.now()
        if len(body) > flow.world.settings.result_limit:
            raise self._fail(_too_large(len(body), flow.world.settings.result_limit), attempt)
        record = Record(
            facts=(self._fact("completed", self._title(), attempt, took=took, body=body),),
            steps=1, current_step=self.step_id, point="outcome",
        )  # fmt: skip
        if not self.tool.read_only:
            flow.effects[self.step_id] = (self.tool.name, "succeeded")
            record.operations = (self._row("succeeded", attempt, now, ended=now),)
        if self.tool.durable == "before_next":
            await flow.commit(record)
        else:
            flow.write(record)
            await flow.room()

    def _fail(self, error: BaseException, attempt: int) -> StepFailed:
        """Record that the step failed for good; returns what is raised now and on every resume."""
        failure, now = failure_of(error, self.step_id), self.flow.world.clock.now()
        fact = self._fact(
            "failed", f"{self._title()} failed: {failure.type}: {failure.message}"[:500], attempt,
            body=codec.encode(failure),
        )  # fmt: skip
        record = Record(facts=(fact,), steps=1, current_step=self.step_id, point="outcome")
        if not self.tool.read_only:
            status = _AFTER_ERROR.get(classify(error), "failed")
            self.flow.effects[self.step_id] = (self.tool.name, status)
            record.operations = (self._row(status, attempt, now, ended=now),)
        record.attempts = (self._attempt(attempt, now, classify(error), failure.message),)
        self.flow.write(record)
        return StepFailed(failure)

    async def _retry_later(self, error: BaseException, attempt: int, pause: float) -> None:
        now = self.flow.world.clock.now()
        until = now + timedelta(seconds=pause)
        policy = self.tool.retries
        message = (
            f"{self._title()}: {classify(error).replace('_', ' ')} until {until:%H:%M:%S}, "
            f"attempt {attempt} of {policy.max_attempts}: {failure_of(error).message}"
        )[:500]
        record = Record(
            facts=(self._fact("waiting", message, attempt, wait_until=until),),
            attempts=(self._attempt(attempt, now, classify(error), failure_of(error).message, until),),
            state=State(waiting_for=f"{self.tool.name}, attempt {attempt + 1}", wait_until=until),
        )
        if not self.tool.read_only:
            status = _AFTER_ERROR.get(classify(error), "failed")
            record.operations = (self._row(status, attempt, now, ended=now),)
        self.flow.write(record)
        await self._wait(until)

    async def _wait(self, until: datetime) -> None:
        event: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self.flow.wait(self.step_id, self.tool.name, until, event)

    def _interrupted(self, attempt: int) -> None:
        """The call was given up in flight: by a cancel after its grace, or by the function's own timeout."""
        if self.tool.read_only or self.flow.stop in {"fenced", "drain", "unstorable"}:
            return  # repeated freely; or the next owner finds the intent and asks
        now = self.flow.world.clock.now()
        reason = "given up by a cancel while it ran" if self.flow.stop else "given up by the task's own timeout"
        self.flow.effects[self.step_id] = (self.tool.name, "unknown")
        self.flow.write(
            Record(
                facts=(self._fact("unknown", f"{self._title()}: unknown whether it happened ({reason})", attempt),),
                operations=(self._row("unknown", attempt, now, ended=now),),
                attempts=(self._attempt(attempt, now, ErrorClass.TIMEOUT, reason),),
            )
        )

    # --- rows

    def _title(self) -> str:
        return self.tool.describe(self.bound)

    def _fact(self, status: Any, message: str, attempt: int, **more: Any) -> Any:
        return happenings.step(
            self.flow.claim, self.flow.world.clock.now(), self.step_id, self.tool.name, status, message,
            digest=self.digest, attempt=attempt, **more,
        )  # fmt: skip

    def _row(
        self, status: str, attempt: int, at: datetime, *, arguments: bytes = b"", ended: datetime | None = None
    ) -> OperationRow:
        deadline = at + timedelta(seconds=self.tool.timeout)
        return OperationRow(
            self.step_id, OPERATION, self.tool.name, status, attempt, self.digest, codec.CODEC_JSON, arguments, at,
            deadline, ended,
        )  # fmt: skip

    def _attempt(
        self, attempt: int, at: datetime, error_class: ErrorClass, reason: str, until: datetime | None = None
    ) -> AttemptRow:
        clean = reason.replace("\0", "\\0")[:2000]  # a text column cannot hold NUL
        return AttemptRow(
            self.step_id, OPERATION, attempt, self.flow.world.heartbeat.incarnation, at, self.flow.world.clock.now(),
            str(error_class), clean, until,
        )  # fmt: skip


def _too_large(size: int, limit: int) -> codec.NotStorable:
    return codec.NotStorable(
        "$", f"{size:,} bytes are above the limit of {limit:,} for a result: store it elsewhere, return a reference"
    )
