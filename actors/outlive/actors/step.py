"""One tool call as a durable step: intend, call, classify, record.

The order is the guarantee (I3): an operation that may touch the world is durable as `started` before the tool runs;
afterwards outcome, result, checkpoint and progress become durable together. A read-only call needs no intent.
"""

import asyncio
import contextlib
import functools
from collections.abc import Generator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from outlive.actors import context
from outlive.actors.classifier import classify
from outlive.actors.failures import failure_of, fits, given_up, printable
from outlive.actors.flow import Flow, Skipped, Stopped
from outlive.actors.history import OPERATION, call_text
from outlive.actors.limits import Limited
from outlive.actors.reactions import Outdated, Reaction, Retry, Throttle, react
from outlive.actors.runnable import Known, Runnable
from outlive.actors.threads import Late
from outlive.infra import failpoints, happenings
from outlive.infra.claims import Attempt, StoredFact
from outlive.infra.records import AttemptRow, OperationRow, Record, State
from outlive.protocol import codec, keys
from outlive.protocol.errors import InvalidArguments, StepFailed
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import Failure, Reason, ReasonCode
from outlive.protocol.tools import AnyTool, Operation, Original

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_Phase = Literal["", "intended", "called"]
SHORT: Final = 200
"""Bytes of a read-only step's arguments that are kept to show them; longer ones are known by their digest alone."""

REPORT_PAUSE: Final = 0.5
"""Seconds between two reports of one tool that are passed on."""


class ToolStep(Limited, Generic[R]):
    """A call that has taken its place; awaiting it gives the stored result, or runs it."""

    __slots__ = (
        "_awaited",
        "_first_began",
        "_phase",
        "_reported",
        "attempt",
        "bound",
        "digest",
        "encoded",
        "flow",
        "item",
        "operation_id",
        "payload",
        "shown",
        "step_id",
        "tool",
    )

    def __init__(self, flow: Flow, step_id: str, tool: AnyTool, bound: dict[str, Any]) -> None:
        """Encode the arguments: they are part of what the step is recognised by."""
        self.flow = flow
        self.step_id = step_id
        self.item = flow.item
        self.tool = tool
        self.bound = bound
        self.encoded = tool.encode_arguments(bound)
        self.shown = tool.arguments.veil(self.encoded)  # without secrets: this alone is kept
        self.digest = tool.digest(self.encoded)
        self.operation_id = OPERATION  # of what is sent: a person may have begun another one ...
        self.payload = self.digest  # ... with other arguments: this names them, `digest` what is called
        self.attempt = 0
        self._first_began: datetime | None = None
        self._token = None
        self._reported = float("-inf")
        self._phase: _Phase = ""  # of the attempt under way
        self._awaited = False

    @property
    def awaited(self) -> bool:
        """True when its result was asked for."""
        return self._awaited

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
        return call_text(self.tool.name, arguments or self.shown, order)

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
        await flow.enter(self.step_id, self.tool.name, self.digest, read_only=self.tool.read_only)
        try:
            return await self._attempts()
        except Skipped:
            return self._stored(flow.history.done[self.step_id])
        except asyncio.CancelledError as error:
            self.interrupted(error)
            raise
        finally:
            if self._token is not None:
                self._token.drop()
            flow.leave(self.step_id)

    async def _attempts(self) -> R:
        self._began = self.flow.world.clock.now()
        self._go_by_the_latest()
        self.attempt, wait_until = self.flow.history.attempt(self.step_id, self.operation_id)
        if wait_until is not None:
            await self._wait(wait_until)
        if self.attempt and self.tool.retries.max_elapsed is not None:
            await self._look_up_first()
        while True:
            self.attempt += 1
            self._began = self.flow.world.clock.now()
            if (found := await self.before()) is not None:
                return found.value
            self._first_began = self._first_began or self._began
            self._phase = "called"
            try:
                started = asyncio.get_running_loop().time()
                body, value = codec.pack(await self._invoke(), self.tool.result_type)
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # a tool may raise anything
                if isinstance(error, asyncio.CancelledError) and _cancelled():
                    raise
                self._phase = ""
                self._leave_alone(error)
                await self.follow(self._reaction(error), error)
            else:
                self._phase = ""
                took = int((asyncio.get_running_loop().time() - started) * 1e6)
                await self._complete(body, took, self.told(value))
                return value  # type: ignore[no-any-return]  # packed by the tool's declared type

    def _go_by_the_latest(self) -> None:
        """Take up the step's latest operation: its number, and the arguments that a person has given it.

        Raises:
            StepFailed: those arguments do not fit.
            Stopped: its key belongs to another payload than would be sent now.
        """
        latest = self.flow.history.latest(self.step_id)
        if latest is None:
            return
        self.operation_id = latest.operation_id
        if latest.operation_id != OPERATION:
            self.shown, self.payload = latest.arguments, self.tool.digest(latest.arguments)
        if latest.digest != self.payload:
            raise self._foreign("with other arguments than would be sent under its key now")
        if latest.operation_id == OPERATION:
            return
        try:
            self.encoded = self.tool.arguments.unveil(latest.arguments, self.encoded)
            self.bound = self.tool.decode_arguments(self.encoded)
        except Exception as error:  # a user's own type may raise anything
            if latest.status in {"started", "unknown"}:
                raise self._foreign(f"with arguments that {self.tool.name} does not take any more: {error}") from error
            unfit = InvalidArguments(f"the arguments given do not fit: {error}")
            raise self._fail(unfit, called=False) from error

    def _foreign(self, how: str) -> Stopped:
        """Send nothing under a key that stands for something else."""
        return self.flow.outdated(
            self.step_id,
            f"Operation {self.step_id}:{self.operation_id} was begun {how}. Nothing was sent. Deploy the old code, or: "
            f"outlive cancel {self.flow.claim.task_id}",
        )

    async def follow(self, reaction: Reaction, error: BaseException) -> None:
        """Wait for the next attempt. Raises what ends the step: `StepFailed`, or a pause for a person."""
        match reaction:
            case Retry(after):
                await self._retry_later(error, after)
            case Throttle(until):
                raise self._throttled(error, until) from self.cause(error)
            case Outdated():
                raise self._outdated(error) from self.cause(error)
            case _:
                raise self._fail(error) from self.cause(error)

    def _reaction(self, error: BaseException) -> Reaction:
        """Decide what follows from what the tool raised."""
        world = self.flow.world
        return react(self.tool, error, self.attempt, self._first_began or self._began, world.clock.now(), world.random)

    def error_class(self, error: BaseException) -> ErrorClass:
        """Name the class of what the tool raised; the tool may know better."""
        return classify(error, self.tool.classify)

    async def before(self) -> "Known[R] | None":
        """Make durable what must be known before the call: nothing for a read-only one. Gives a result that is known."""
        await self._admit()
        return None

    async def _look_up_first(self) -> None:
        """Know when the first attempt began, in whatever worker that was."""
        claim = self.flow.claim
        first = await self.flow.world.claims.first_attempt(claim.tenant, claim.task_id, self.step_id, self.operation_id)
        self._first_began = first or self._first_began

    # --- the call

    async def _invoke(self) -> Any:
        tool, loop = self.tool, asyncio.get_running_loop()
        telling = loop.call_later(self.flow.world.settings.started_after, self._tell_started)
        if failpoints.armed and not tool.read_only:
            await failpoints.hit("effect.before", self.tool.name)
        try:
            result = await self.run(tool)
        finally:
            telling.cancel()
        if failpoints.armed and not tool.read_only:
            await failpoints.hit("effect.after", self.tool.name)
        return result

    async def run(self, what: Runnable, operation: Operation | None = None) -> Any:
        """Run a function of the tool (itself, its reconciler or preview) with these arguments, within its timeout."""
        arguments = (operation or self._operation(),) if what.takes_operation else ()
        named = self.tool.whole(self.bound)  # a companion need not repeat the tool's defaults
        outside = context.current.set(None)  # what a tool calls is its own business
        behalf = context.calling.set((self, self.tool.name if what is self.tool else getattr(what, "name", "?")))
        limit = asyncio.timeout(self.tool.timeout)
        try:
            async with limit:
                begin = self._begin_call if what is self.tool else None
                if what.is_async:
                    if begin is not None:
                        begin()
                    return await what.fn(*arguments, **named)
                call = functools.partial(what.fn, *arguments, **named)
                if begin is None or self.tool.read_only:
                    return await self.flow.world.threads.call(call, begin=begin)
                told = functools.partial(self.turned_out, self.about(self.attempt))
                return await self.flow.world.threads.call(call, key=self.key, begin=begin, told=told)
        except TimeoutError as error:
            if limit.expired() and not str(error):
                raise TimeoutError(f"no answer within {self.tool.timeout:g} s") from error
            raise
        finally:
            context.current.reset(outside)
            context.calling.reset(behalf)

    @property
    def on_behalf(self) -> context.Cause:
        """On whose behalf the tool is called."""
        tool, claim = self.tool, self.flow.claim
        declared = "read_only" if tool.read_only else "idempotent" if tool.idempotent else "effect"
        worker = self.flow.world.worker
        return context.Cause(
            claim.task_id, self.step_id, tool.name, tool.name, self.key, self.attempt, worker, declared
        )

    @property
    def key(self) -> str:
        """The idempotency key: the same on every attempt and after every crash."""
        return self._key(self.operation_id)

    def _key(self, operation_id: str) -> str:
        claim = self.flow.claim
        return keys.operation_key(claim.tenant, claim.task_id, self.step_id, operation_id)

    @property
    def original(self) -> Original | None:
        """The effect that this call undoes, where it undoes one."""
        return None

    def _operation(self) -> Operation:
        loop = asyncio.get_running_loop()
        deadline = self.flow.world.clock.now() + timedelta(seconds=self.tool.timeout)

        def report(message: str, done: float | None, total: float | None) -> None:
            loop.call_soon_threadsafe(self._report, message, done, total)

        return Operation(
            key=self.key, started_at=self._began, deadline=deadline, attempt=self.attempt, report=report,
            original=self.original,
        )  # fmt: skip

    def _report(self, message: str, done: float | None, total: float | None) -> None:
        """Tell how far the tool is, in the words of `op.progress`; what comes too fast is dropped."""
        message = self.clean(message)
        now = asyncio.get_running_loop().time()
        if now < self._reported + REPORT_PAUSE or self._phase != "called":
            return
        self._reported = now
        whole = [None if number is None else int(number) for number in (done, total)]
        fact = happenings.note(
            self.flow.claim, self.flow.world.clock.now(), self.step_id,
            self.flow.told(self.item, printable(message)[:500]), done=whole[0], total=whole[1], item=self.item,
        )._replace(step_id=None)  # fmt: skip  # it is no place of the function
        with contextlib.suppress(Stopped):
            self.flow.write(Record(facts=(fact,), state=State(note_done=whole[0], note_total=whole[1])))

    def _tell_started(self) -> None:
        fact = self._fact("started", f"{self._title()} has begun")
        with contextlib.suppress(Stopped):  # fenced: whoever awaits the step is told
            self.flow.write(Record(facts=(fact,), current_step=self.step_id))

    # --- after the call

    def told(self, value: R) -> str:  # noqa: ARG002  # a decision of a model tells what was decided
        """What people read of a result: the call's title."""
        return self._title()

    async def _complete(self, body: bytes, took: int, message: str) -> None:
        flow = self.flow
        try:
            fits(body, flow.world.settings.result_limit)
        except codec.NotStorable as error:
            raise self._fail(error) from self.cause(error)
        record = Record(
            facts=(self._fact("completed", message[:500], took=took, body=body),),
            steps=1, current_step=self.step_id, point="outcome",
        )  # fmt: skip
        record.operations = self.succeeded()
        if self.tool.durable == "before_next":
            await flow.commit(record)
        else:
            flow.write(record)
            await flow.room()

    def _fail(self, error: BaseException, *, called: bool = True) -> StepFailed:
        """Record that the step failed for good; returns what is raised now and on every resume."""
        attempts = (self._attempted(self.error_class(error), self.failure(error).message),) if called else ()
        failure = self.failure(error)
        message = f"{self._title()} failed: {failure.type}: {failure.message}"[:500]
        self.flow.write(
            Record(
                facts=(self._fact("failed", message, body=codec.encode(failure)),), steps=1,
                operations=self.after_error(error), attempts=attempts, current_step=self.step_id,
                point="outcome",
            )
        )  # fmt: skip
        return StepFailed(failure)

    def _throttled(self, error: BaseException, until: datetime | None) -> Stopped:
        """The remote does not let us in for long: the task pauses until then, or until a person says so."""
        self.flow.write(
            Record(
                operations=self.after_error(error),
                attempts=(self._attempted(self.error_class(error), self.failure(error).message),), current_step=self.step_id,
            )
        )  # fmt: skip
        return self._turned_away(until, self.failure(error).message)

    def _turned_away(self, until: datetime | None, why: str) -> Stopped:
        long = f"until {until:%Y-%m-%d %H:%M:%S} UTC" if until is not None else f"{self.attempt} times"
        return self.flow.suspend(
            Reason(
                reason=ReasonCode.THROTTLED, since=self.flow.world.clock.now(), step_id=self.step_id, until=until,
                do=f"outlive resume {self.flow.claim.task_id}",
                message=f"{self._title()} was turned away {long}: {why}"[:500],
            )
        )  # fmt: skip

    def about(self, attempt: int) -> Attempt:
        """Name an attempt of the operation under way."""
        return Attempt(*self.flow.claim.key, self.step_id, self.operation_id, attempt)

    def turned_out(self, attempt: Attempt, late: Late) -> None:
        """The thread of an attempt that was given up has ended: of no account to a read-only one."""

    def _outdated(self, error: BaseException) -> Stopped:
        """The tool found out, before it called anything, that it is no longer what the task knows it as."""
        self.flow.write(
            Record(
                operations=self.after_error(error),
                attempts=(self._attempted(self.error_class(error), failure_of(error).message),), current_step=self.step_id,
            )
        )  # fmt: skip
        return self.flow.outdated(self.step_id, failure_of(error).message)

    def succeeded(self) -> Sequence[OperationRow]:
        """What the ledger says after a call that returned: nothing of a read-only one."""
        return ()

    def after_error(self, error: BaseException) -> Sequence[OperationRow]:  # noqa: ARG002  # an effect looks at it
        """What the ledger says after a call that raised: nothing of a read-only one."""
        return ()

    async def _retry_later(self, error: BaseException, pause: float) -> None:
        now = self.flow.world.clock.now()
        until = now + timedelta(seconds=pause)
        failure = self.failure(error)
        message = (
            f"{self._title()}: {self.error_class(error).replace('_', ' ')} until {until:%H:%M:%S}, "
            f"attempt {self.attempt} of {self.tool.retries.max_attempts}: {failure.message}"
        )[:500]
        self.flow.write(
            Record(
                facts=(self._fact("waiting", message, wait_until=until),), operations=self.after_error(error),
                attempts=(self._attempted(self.error_class(error), failure.message, until),), current_step=self.step_id,
                state=State(waiting_for=f"{self.tool.name}, attempt {self.attempt + 1}", wait_until=until),
            )
        )  # fmt: skip
        await self._wait(until)

    async def _wait(self, until: datetime) -> None:
        event: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self.flow.wait(self.step_id, self.tool.name, until, event)

    def interrupted(self, error: asyncio.CancelledError) -> None:
        """The step was cancelled: by the function's own timeout, or by an end of the task that did not wait for it."""
        if not self.flow.gave_up(error):
            return  # it runs again
        failure = given_up(self.step_id, self._title())
        attempts = (self._attempted(ErrorClass.TIMEOUT, failure.message),) if self._phase == "called" else ()
        self.flow.write(
            Record(
                facts=(self._fact("unknown", failure.message, body=codec.encode(failure)),), attempts=attempts, steps=1,
                current_step=self.step_id,
            )
        )  # fmt: skip

    # --- rows

    def clean(self, text: str) -> str:
        """Return a text of the tool's author, or of an error, without this call's secrets."""
        return self.tool.arguments.scrub(text, self.encoded)

    def failure(self, error: BaseException) -> Failure:
        """Describe what the tool raised, without this call's secrets."""
        found = failure_of(error, self.step_id, self.error_class(error))
        return (
            msgspec.structs.replace(found, message=self.clean(found.message)) if self.tool.arguments.secrets else found
        )

    def cause(self, error: BaseException) -> BaseException | None:
        """What a failure is raised from: nothing where the error itself may tell a secret."""
        return None if self.tool.arguments.secrets else error

    def _title(self) -> str:
        return self.tool.describe(self.bound)

    def _fact(self, status: Any, message: str, **more: Any) -> Any:
        short = self.tool.read_only and len(self.shown) <= SHORT
        return happenings.step(
            self.flow.claim, self.flow.world.clock.now(), self.step_id, self.tool.name, status,
            self.flow.told(self.item, self.clean(message)), digest=self.digest, attempt=self.attempt,
            arguments=self.shown if short else None, item=self.item, **more,
        )  # fmt: skip

    def _row(
        self, status: str, *, arguments: bytes = b"", ended: datetime | None = None, deadline: datetime | None = None
    ) -> OperationRow:
        deadline = deadline or self._began + timedelta(seconds=self.tool.timeout)
        self.flow.touched = True
        return OperationRow(
            self.step_id, self.operation_id, self.tool.name, status, self.attempt, self.payload, codec.CODEC_JSON, arguments,
            self._began, deadline, ended,
        )  # fmt: skip

    def _attempted(self, error_class: ErrorClass, reason: str, until: datetime | None = None) -> AttemptRow:
        clean = self.clean(reason).replace("\0", "\\0")[:2000]  # a text column cannot hold NUL
        return AttemptRow(
            self.step_id, self.operation_id, self.attempt, self.flow.world.heartbeat.incarnation, self._began,
            self.flow.world.clock.now(), str(error_class), clean, until,
        )  # fmt: skip


def _cancelled() -> bool:
    """True when the asyncio task that runs here was cancelled; a tool may raise CancelledError all by itself."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
