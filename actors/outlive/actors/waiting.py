"""Steps that wait: for a time, for a signal, for a child task.

While they wait nothing is needed in memory: the wait is a fact, its deadline a column, its event an inbox row. So the
task can be let go and go on elsewhere, later, as if nothing had happened.
"""

import asyncio
from collections.abc import Generator
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

import msgspec

from outlive.actors.failures import given_up
from outlive.actors.flow import Flow, Skipped
from outlive.actors.history import call_text
from outlive.actors.step import SHORT
from outlive.infra import happenings
from outlive.infra.claims import Mail, StoredFact
from outlive.infra.records import AnswerRow, ChildRow, Fact, Record, State
from outlive.protocol import codec, ids
from outlive.protocol.commands import ChildEnded
from outlive.protocol.errors import TaskCancelled, TaskFailed
from outlive.protocol.policy import NO_BUDGET
from outlive.protocol.task import Failure, Status
from outlive.protocol.tools import AnyKind, Signal

R = TypeVar("R")


class Waiting(Generic[R]):
    """A step that has taken its place and will wait when awaited."""

    name: str

    def __init__(self, flow: Flow, step_id: str, digest: bytes, arguments: bytes | None = None) -> None:
        """Hold the place; `arguments` are kept to show them, if they are short."""
        self.flow = flow
        self.step_id = step_id
        self.item = flow.item
        self.digest = digest
        self.arguments = arguments if arguments is not None and len(arguments) <= SHORT else None
        self._awaited = False

    def __await__(self) -> Generator[Any, None, R]:
        """Wait, or return what is stored."""
        if self._awaited:
            raise RuntimeError(f"step {self.step_id} ({self.name}) was awaited twice: keep its result instead")
        self._awaited = True
        done = self.flow.recall(self.step_id, self.name, self.digest, self._show)
        try:
            if done is None:
                return (yield from self._perform().__await__())
            if done.status == "failed":
                raise TimeoutError(codec.decode(done.body or b"{}", Failure).message)
            return self.stored(done)
        except codec.NotStorable as error:
            raise self.flow.outdated(
                self.step_id,
                f"What step {self.step_id} ({self.name}) brought is stored and does not fit the type that is now "
                f"declared: {error}. Nothing was run. Deploy code that reads it, or: "
                f"outlive cancel {self.flow.claim.task_id}",
            ) from error

    def _show(self, arguments: bytes | None = None) -> str:
        shown = arguments or self.arguments
        return self.name if shown is None else call_text(self.name, shown)

    def stored(self, fact: StoredFact) -> R:
        """Give the stored end of the wait."""
        raise NotImplementedError

    async def perform(self, earlier: StoredFact | None) -> R:
        """Wait from the beginning, or go on waiting after `earlier`."""
        raise NotImplementedError

    async def _perform(self) -> R:
        await self.flow.enter(self.step_id, self.name, self.digest)
        try:
            return await self.perform(self.flow.history.waits.get(self.step_id))
        except Skipped:
            return self.stored(self.flow.history.done[self.step_id])
        except asyncio.CancelledError as error:
            if self.flow.gave_up(error):
                failure = given_up(self.step_id, self.name)
                state = self.flow.withdraw(self.step_id)
                self._end("failed", failure.message, codec.encode(failure), state=state)
            raise
        finally:
            self.flow.leave(self.step_id)

    def _fact(self, status: Any, message: str, **more: Any) -> Fact:
        return happenings.step(
            self.flow.claim, self.flow.world.clock.now(), self.step_id, self.name, status,
            self.flow.told(self.item, message), digest=self.digest, arguments=self.arguments, item=self.item, **more,
        )  # fmt: skip

    def _begin(self, message: str, state: State, *, point: str = "wait", **more: Any) -> None:
        self.flow.write(
            Record(
                facts=(self._fact("waiting", message, wait_until=state.wait_until),), state=state,
                current_step=self.step_id, point=point, **more,
            )
        )  # fmt: skip

    def _end(
        self, status: str, message: str, body: bytes | None, mail: Mail | None = None, state: State | None = None
    ) -> None:
        taken = (AnswerRow(mail.pos, taken=True),) if mail is not None else ()
        self.flow.write(
            Record(
                facts=(self._fact(status, message, body=body, inbox_pos=mail.pos if mail else None),), answers=taken,
                steps=1, current_step=self.step_id, state=state, point="outcome",
            )
        )  # fmt: skip


class Sleep(Waiting[None]):
    """`task.sleep`: the deadline is set once, by the database's clock."""

    name = "sleep"

    def __init__(self, flow: Flow, step_id: str, seconds: float) -> None:
        """Sleep for so many seconds."""
        arguments = codec.encode({"seconds": float(seconds)})
        super().__init__(flow, step_id, codec.digest(b"sleep", arguments), arguments)
        self._seconds = seconds

    def stored(self, fact: StoredFact) -> None:
        """Slept already."""

    async def perform(self, earlier: StoredFact | None) -> None:
        """Sleep until the deadline that the first run set."""
        until = earlier.wait_until if earlier is not None else None
        if until is None:
            until = self.flow.world.clock.now() + timedelta(seconds=self._seconds)
            self._begin(f"Sleeps until {until:%Y-%m-%d %H:%M:%S} UTC", State(waiting_for="sleep", wait_until=until))
        event: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        await self.flow.wait(self.step_id, "sleep", until, event)
        self._end("completed", "Slept", None)


class SignalWait(Waiting[R]):
    """`task.wait_for`: takes each signal once, in the order of the inbox."""

    def __init__(self, flow: Flow, step_id: str, signal: Signal[R], timeout: float | None) -> None:
        """Wait for a declared signal, at most so many seconds."""
        self.name = f"wait_for {signal.name}"
        super().__init__(flow, step_id, codec.digest(b"wait_for", signal.name.encode()))
        self._signal = signal
        self._timeout = timeout

    def stored(self, fact: StoredFact) -> R:
        """Give the value that was taken."""
        return self._signal.decode(fact.body or b"null")

    async def perform(self, earlier: StoredFact | None) -> R:
        """Take the first signal, now or when it comes."""
        until = earlier.wait_until if earlier is not None else None
        if earlier is None and not self.flow.history.signals[self._signal.name]:
            if self._timeout is not None:
                until = self.flow.world.clock.now() + timedelta(seconds=self._timeout)
            what = f"signal {self._signal.name}"
            self._begin(f"Waits for {what}", State(waiting_for=what, wait_until=until))
        while True:
            while (mail := self._next()) is not None:
                body = signal_value(mail)
                try:
                    value = self._signal.decode(body)
                except codec.NotStorable as error:
                    self._pass_over(mail, error, until)
                else:
                    self._end("completed", f"Signal {self._signal.name} came", body, mail)
                    return value
            event = self.flow.signal_waiter(self._signal.name)
            what = f"signal {self._signal.name}"
            try:
                came = await self.flow.wait(self.step_id, what, until, event)
            except asyncio.CancelledError:
                if self._any():
                    self.flow.signalled(self._signal.name)  # another wait may take it
                raise
            if not came and not self._any():
                raise self._timed_out()

    def _any(self) -> bool:
        return bool(self.flow.history.signals[self._signal.name])

    def _next(self) -> Mail | None:
        queue = self.flow.history.signals[self._signal.name]
        return queue.popleft() if queue else None

    def _pass_over(self, mail: Mail, error: codec.NotStorable, until: datetime | None) -> None:
        """A value of another type is no answer to this wait: taken, told, and waited on. The inbox keeps the value."""
        message = (
            f"Signal {self._signal.name} of {mail.by or 'unknown'} ({mail.command_id}) brought a value of another type "
            f"and is passed over: {error}. The task waits on"
        )[:500]
        fact = self._fact("waiting", message, wait_until=until, inbox_pos=mail.pos)
        state = State(waiting_for=f"signal {self._signal.name}", wait_until=until)
        self.flow.write(
            Record(facts=(fact,), answers=(AnswerRow(mail.pos, taken=True),), state=state, current_step=self.step_id)
        )

    def _timed_out(self) -> Exception:
        within = f" within {self._timeout:g} s" if self._timeout is not None else " in time"
        failure = Failure(
            type="TimeoutError", message=f"signal {self._signal.name} did not come{within}", error_class="timeout",
            step_id=self.step_id,
        )  # fmt: skip
        self._end("failed", failure.message, codec.encode(failure))
        return TimeoutError(failure.message)


class _SignalBody(msgspec.Struct):
    value: msgspec.Raw = msgspec.Raw(b"null")


def signal_value(mail: Mail) -> bytes:
    """Return the value that a signal brought, as JSON."""
    return bytes(msgspec.json.decode(mail.body, type=_SignalBody).value)


class Child(Waiting[R]):
    """`task.spawn`: the child's row is made in the transaction of the fact that says so; awaited, it gives its result."""

    def __init__(self, flow: Flow, step_id: str, kind: AnyKind, bound: dict[str, Any]) -> None:
        """Take the place, and begin at once where that is possible."""
        self.name = f"spawn {kind.name}"
        self._kind = kind
        self._encoded = kind.encode_input(bound)
        super().__init__(
            flow, step_id, codec.digest(b"spawn", kind.digest(self._encoded)), kind.arguments.veil(self._encoded)
        )
        self.task_id = kind.task_id or ids.child_id(flow.claim.tenant, flow.claim.task_id, step_id)
        if (other := flow.children.setdefault(self.task_id, step_id)) != step_id:
            raise ValueError(
                f"task_id {self.task_id!r} was given to two children (steps {other} and {step_id}): one id, one task"
            )
        self._begun = step_id in flow.history.waits or step_id in flow.history.done

    def stored(self, fact: StoredFact) -> R:
        """Give the child's end."""
        return self._result(codec.decode(fact.body or b"{}", ChildEnded))

    def begin(self) -> None:
        """Make the child now, unless it is made or the flow is about to stop (then when awaited)."""
        if not self._begun and self.flow.begins:
            self._make()

    async def perform(self, earlier: StoredFact | None) -> R:
        """Make the child unless it is made, and wait for its end."""
        if earlier is None and not self._begun:
            self._make()
        if self._kind.task_id is not None and not await self._ours():
            return self._result(self._taken())
        history = self.flow.history
        while self.task_id not in history.child_ends:
            await self.flow.wait(self.step_id, f"child {self.task_id}", None, self.flow.child_waiter(self.task_id))
        mail = history.child_ends.pop(self.task_id)
        ended = msgspec.json.decode(mail.body, type=ChildEnded)
        self._end("completed", f"Child {self.task_id} {ended.status}", mail.body, mail)
        return self._result(ended)

    async def _ours(self) -> bool:
        """Whether the task under a chosen id is the child that this step made."""
        flow = self.flow
        await flow.flushed()
        return await flow.world.claims.parent(flow.claim.tenant, self.task_id) == (flow.claim.task_id, self.step_id)

    def _taken(self) -> ChildEnded:
        message = f"task_id {self.task_id!r} belongs to another task: no child was made. Choose another one"
        failure = Failure(type="TaskIdTaken", message=message, error_class="invalid_arguments", step_id=self.step_id)
        ended = ChildEnded(child=self.task_id, status=Status.FAILED, failure=failure)
        self._end("completed", message, codec.encode(ended))
        return ended

    def _make(self) -> None:
        self._begun = True
        kind = self._kind
        policy = self.flow.history.policy.and_also(kind.requires_approval)  # inherited, and never loosened
        policy = policy._replace(budget=kind.budget or NO_BUDGET)  # ours is what it draws from
        body = codec.encode({"input": msgspec.Raw(self._encoded), "policy": policy.stored()})
        identity = codec.submit_digest(kind.name, codec.plain(self._encoded), None)
        child = ChildRow(
            self.task_id, self.step_id, kind.name, identity, codec.CODEC_JSON, body, kind.priority,
            codec.encode(dict(kind.labels)).decode(),
        )  # fmt: skip
        self._begin(
            f"Started child {self.task_id} ({kind.name})", State(waiting_for=f"child {self.task_id}"), point="child",
            children=(child,),
        )  # fmt: skip

    def _result(self, ended: ChildEnded) -> R:
        if ended.status == Status.SUCCEEDED:
            result: R = codec.unpack(bytes(ended.result) if ended.result else b"null", self._kind.result_type)
            return result
        if ended.status == Status.CANCELLED:
            raise TaskCancelled(self.task_id)
        raise TaskFailed(self.task_id, ended.failure or Failure(type="Unknown", message="no reason is stored"))
