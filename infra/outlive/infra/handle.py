"""A task as seen by who waits for it: watching, steering, the result. Waiting never touches the task."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import msgspec

from outlive.infra.questions import QuestionRefused
from outlive.infra.reader import Gap, Item
from outlive.protocol import api, codec
from outlive.protocol.answers import Answer
from outlive.protocol.api import Trouble
from outlive.protocol.budget import Budget
from outlive.protocol.errors import TaskCancelled, TaskFailed, Unreachable
from outlive.protocol.events import StatusEvent, Tokens
from outlive.protocol.task import FINAL, Failure, Status, TaskRecord
from outlive.protocol.tools import Signal

if TYPE_CHECKING:
    from outlive.infra.client import Client

R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class _Seen(msgspec.Struct, frozen=True):
    """What a waiter needs of a task's record; `result` is JSON as stored."""

    status: Status
    last_seq: int
    failure: Failure | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")


class Handle(Generic[R_co]):
    """One task; made by ``client.submit`` and ``client.handle``. Any number of them may exist, anywhere.

    Attributes:
        task_id: of the task.
        answer: to the submit that made this handle: applied, or duplicate when the task existed already.
    """

    def __init__(self, client: "Client", task_id: str, output: Any, answer: Answer | None = None) -> None:
        self._client = client
        self._output = output
        self.task_id = task_id
        self.answer = answer

    def __repr__(self) -> str:
        return f"<Handle of task {self.task_id}>"

    async def result(self, timeout: float | None = None) -> R_co:  # noqa: ASYNC109  # its end says that the task runs on
        """Wait for the end and return the result. Giving up, or being cancelled, leaves the task alone.

        Raises:
            TaskFailed: with the failure.
            TaskCancelled: its message says what had happened, its `effects` list it.
            TimeoutError: it has not ended within `timeout` seconds (None waits for ever); it runs on.
            codec.NotStorable: the result is not of the expected type.
        """
        try:
            async with asyncio.timeout(timeout):
                seen = await self._ended()
        except TimeoutError:
            raise TimeoutError(f"task {self.task_id} has not ended within {timeout:g} s; it runs on") from None
        if seen.status is Status.CANCELLED:
            raise await self._cancelled(seen.last_seq)
        if seen.status is Status.FAILED:
            raise TaskFailed(self.task_id, seen.failure or Failure(type="unknown", message="no failure is stored"))
        result: R_co = codec.unpack(bytes(seen.result), self._output)
        return result

    async def _ended(self) -> _Seen:
        while True:
            try:
                seen = await self._look()
            except Unreachable:
                continue  # a waiter outlives outages; each try has waited for seconds
            if seen.status in FINAL:
                return seen
            async with aclosing(self.events(seen.last_seq + 1)) as events:
                async for _ in events:
                    pass

    async def _look(self) -> _Seen:
        question = api.Get(task_id=self.task_id, with_input=False)
        try:
            return await self._client.questions.ask("get", question, _Seen)
        except QuestionRefused as refused:
            if refused.problem.error is not Trouble.TOO_LARGE:
                raise
        question = msgspec.structs.replace(question, with_result=False)
        seen = await self._client.questions.ask("get", question, _Seen)
        result = await self._client.questions.whole(self.task_id, "result")
        return msgspec.structs.replace(seen, result=msgspec.Raw(result))

    async def _cancelled(self, seq: int) -> TaskCancelled:
        async with aclosing(self.events(seq)) as events:
            async for event in events:
                if not isinstance(event, Gap):
                    effects = event.effects if isinstance(event, StatusEvent) else None
                    return TaskCancelled(self.task_id, event.message, effects)
        return TaskCancelled(self.task_id)

    def events(self, from_seq: int = 1, *, follow: bool = False) -> AsyncGenerator[Item]:
        """Yield progress events from a number on, each once and in order; see `outlive.infra.reader.read`."""
        return self._client.events(self.task_id, from_seq, follow=follow)

    def tokens(self) -> AbstractAsyncContextManager[AsyncIterator[Tokens]]:
        """Listen to what the task's model writes, while it writes it; see `Client.tokens`."""
        return self._client.tokens(self.task_id)

    async def record(self) -> TaskRecord:
        """Return the task's record. Raises like `Client.get`."""
        return await self._client.get(self.task_id)

    async def status(self) -> Status:
        """Return the task's status. Raises like `Client.get`."""
        return (await self._client.get(self.task_id, with_input=False, with_result=False)).status

    async def pause(self, reason: str | None = None) -> Answer:
        """Stop before the next step. Raises like `Client.command`."""
        return await self._client.pause(self.task_id, reason)

    async def resume(self, *, raise_budget: Budget | None = None) -> Answer:
        """Take a pause back; one for a used budget by new limits. Raises like `Client.command`."""
        return await self._client.resume(self.task_id, raise_budget=raise_budget)

    async def cancel(self, reason: str | None = None, *, compensate: bool | None = None) -> Answer:
        """Start nothing more, and undo what was done or not; see `Client.cancel`."""
        return await self._client.cancel(self.task_id, reason, compensate=compensate)

    @overload
    async def signal(self, signal: Signal[T], value: T, /) -> Answer: ...
    @overload
    async def signal(self, signal: str, value: Any = None, /) -> Answer: ...
    async def signal(self, signal: Signal[Any] | str, value: Any = None, /) -> Answer:
        """Hand a value to ``task.wait_for(signal)``. Raises like `Client.command`."""
        return await self._client.signal(self.task_id, signal, value)
