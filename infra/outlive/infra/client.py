"""The client of other services: submit tasks, steer them, ask about them, wait for them. It needs NATS alone."""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, Self, TypeVar, cast, overload

import msgspec
from anyio import to_thread

from outlive.infra import embedded, export, reader, statistics
from outlive.infra.bus import Bus
from outlive.infra.handle import Handle
from outlive.infra.questions import QuestionRefused, Questions
from outlive.infra.reader import Item
from outlive.infra.sender import Sender
from outlive.infra.settings import Settings
from outlive.protocol import api, codec, ids, plan, steps
from outlive.protocol.answers import Answer
from outlive.protocol.api import Trouble
from outlive.protocol.budget import Budget
from outlive.protocol.checkpoint import Checkpoint
from outlive.protocol.commands import (
    INPUT_LIMIT,
    AnyCommand,
    Approve,
    Cancel,
    EditPlan,
    Pause,
    Reject,
    Resolve,
    Resume,
    Retry,
    Skip,
    Submit,
    Verdict,
)
from outlive.protocol.commands import Signal as SignalCommand
from outlive.protocol.events import Tokens
from outlive.protocol.policy import NO_BUDGET, Policy
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import Status, TaskRecord
from outlive.protocol.tools import Kind, Signal

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

TIMEOUT: Final = 30.0
"""Seconds for which a command is sent again and waited for before `NoAnswer` or `Unreachable` is raised."""


class _Connection(NamedTuple):
    bus: Bus
    questions: Questions
    sender: Sender


class Client:
    """Tasks of one tenant, over NATS: ``async with Client() as client``.

    Args:
        settings: where NATS is, tenant, prefix; None reads ``OUTLIVE_*``. Without a URL the live servers of the state
            folder are used.
        bus: a connection that somebody else keeps open, instead of one of its own.
        by: who gives the commands; shown as claimed.
        timeout: seconds for which a command is sent again and waited for.

    Raises:
        outlive.infra.bus.Disconnected: on entering, NATS cannot be reached.
        outlive.infra.embedded.NoServers: on entering, there is neither a URL nor a live pair.
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        bus: Bus | None = None,
        by: str | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self._settings = Settings.load() if settings is None else settings
        self._subjects = Subjects(self._settings.prefix)
        self._by = by
        self._timeout = timeout
        self._stack = AsyncExitStack()
        self.tenant: Final = self._settings.tenant
        self._connection = None if bus is None else self._connect(bus)

    @classmethod
    def connect(
        cls,
        nats_url: str | None = None,
        *,
        nats_token: str | None = None,
        nats_credentials: Path | None = None,
        tenant: str | None = None,
        prefix: str | None = None,
        by: str | None = None,
        timeout: float = TIMEOUT,
    ) -> Self:
        """Return a client that connects on ``async with``; what is not given is read from ``OUTLIVE_*``."""
        settings = Settings.load(
            nats_url=nats_url, nats_token=nats_token, nats_credentials=nats_credentials, tenant=tenant, prefix=prefix
        )
        return cls(settings, by=by, timeout=timeout)

    async def __aenter__(self) -> Self:
        if self._connection is None:
            settings = self._settings
            if settings.nats_url is None:
                settings = await to_thread.run_sync(embedded.locate, settings)
            bus = Bus.of(settings, name="outlive client")
            self._connection = self._connect(await self._stack.enter_async_context(bus))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()
        self._connection = None

    def _connect(self, bus: Bus) -> _Connection:
        questions = Questions(bus, self._subjects, self.tenant)
        return _Connection(bus, questions, Sender(bus, self._subjects, self.tenant, questions, self._by))

    @property
    def _connected(self) -> _Connection:
        if self._connection is None:
            raise RuntimeError("the client is not connected. Write: async with Client() as client: ...")
        return self._connection

    @property
    def questions(self) -> Questions:
        """Asks the api anything; the methods of the client are shorter."""
        return self._connected.questions

    # -- tasks

    @overload
    async def submit(self, kind: Kind[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Handle[R]: ...
    @overload
    async def submit(
        self,
        kind: str,
        input: Mapping[str, Any] | None = None,
        /,
        *,
        output: type[T],
        goal: str | None = None,
        task_id: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        requires_approval: bool | Sequence[str] = False,
        budget: Budget | None = None,
        command_id: str | None = None,
        note: str | None = None,
    ) -> Handle[T]: ...
    @overload
    async def submit(
        self,
        kind: str,
        input: Mapping[str, Any] | None = None,
        /,
        *,
        goal: str | None = None,
        task_id: str | None = None,
        priority: int = 0,
        labels: Mapping[str, str] | None = None,
        requires_approval: bool | Sequence[str] = False,
        budget: Budget | None = None,
        command_id: str | None = None,
        note: str | None = None,
    ) -> Handle[Any]: ...
    async def submit(self, kind: Any, /, *args: Any, **kwargs: Any) -> Handle[Any]:
        """Make a task and return its handle; a task that exists already with the same kind and input is a yes too.

        Either ``submit(kind, ...)`` with the arguments of the kind's function (its ``with_options`` choose id,
        priority, labels), or ``submit("name", {...}, output=T, task_id=...)`` without its code. `requires_approval`
        (True, or names of tools) has more effects wait for a yes than the tools' own rules.

        Raises:
            CommandRefused: the answer is a no: no worker ever had the kind, the id is taken by another task ...
            NoAnswer, Unreachable: see `command`.
            codec.NotStorable: an argument cannot be stored, or the input exceeds 900 KiB.
            TypeError: the arguments do not fit the kind's signature.
        """
        if isinstance(kind, Kind):
            return await self._submit_kind(cast("Kind[..., Any]", kind), args, kwargs)
        return await self._submit_name(kind, *args, **kwargs)

    async def _submit_kind(self, kind: Kind[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Handle[Any]:
        body = kind.encode_input(kind.bind(args, kwargs))
        command = Submit(
            kind=kind.name, input=_stored(body, "input"), priority=kind.priority, labels=dict(kind.labels),
            command_id=kind.command_id, policy=Policy(budget=kind.budget or NO_BUDGET).and_also(kind.requires_approval).stored(),
        )  # fmt: skip
        return await self._submit(command, kind.task_id, kind.result_type)

    async def _submit_name(
        self,
        kind: str,
        input: Mapping[str, Any] | None = None,  # noqa: A002  # the word of the contract
        /,
        *,
        output: Any = Any,
        task_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        requires_approval: bool | Sequence[str] = False,
        budget: Budget | None = None,
        **options: Any,
    ) -> Handle[Any]:
        body, _ = codec.pack(dict(input or {}), dict[str, Any])
        policy = Policy(budget=budget or NO_BUDGET).and_also(requires_approval).stored()
        command = Submit(kind=kind, input=_stored(body, "input"), labels=dict(labels or {}), policy=policy, **options)
        return await self._submit(command, task_id, output)

    async def _submit(self, command: Submit, task_id: str | None, output: Any) -> Handle[Any]:
        task_id = task_id or ids.new_id()
        answer = await self.command(task_id, command)
        return Handle(self, task_id, output, answer)

    @overload
    def handle(self, task_id: str) -> Handle[Any]: ...
    @overload
    def handle(self, task_id: str, output: type[T]) -> Handle[T]: ...
    def handle(self, task_id: str, output: Any = Any) -> Handle[Any]:
        """Return a handle of a task that exists; asks nobody. `output` is the type of its result."""
        return Handle(self, ids.check("task_id", task_id), output)

    async def result(self, task_id: str, output: type[T], timeout: float | None = None) -> T:  # noqa: ASYNC109  # as in Handle.result
        """Wait for a task's end and return its result. Raises like `Handle.result`."""
        return await self.handle(task_id, output).result(timeout)

    def events(self, task_id: str, from_seq: int = 1, *, follow: bool = False) -> AsyncGenerator[Item]:
        """Yield a task's progress events from a number on, each once and in order; see `reader.read`."""
        ids.check("task_id", task_id)
        return reader.read(self._connected.bus, self._subjects, self.tenant, task_id, from_seq, follow=follow)

    @asynccontextmanager
    async def tokens(self, task_id: str) -> AsyncGenerator[AsyncIterator[Tokens]]:
        """Listen to what a task's model writes, from the moment of entering on: for eyes alone, gaps are possible.

        Only agents that stream send it. Facts come by `events`.
        """
        ids.check("task_id", task_id)
        async with reader.listen(self._connected.bus, self._subjects.tokens(self.tenant, task_id)) as bodies:
            yield (codec.decode(body, Tokens) async for body in bodies)

    # -- commands

    async def command(self, task_id: str, command: AnyCommand, *, timeout: float | None = None) -> Answer:  # noqa: ASYNC109  # its end says what is known
        """Send any command and return its answer: applied or duplicate, anything else is raised.

        It is sent again under the same id until its outcome is known; choose a ``command_id`` to be able to go on
        with that after an error, or after a restart of your own process.

        Raises:
            CommandRefused: the answer is a no; it says what to do.
            NoAnswer: it is stored, nobody has answered in time.
            Unreachable: it is not known whether it is stored.
            ids.InvalidId: an id breaks the rule.
        """
        return await self._connected.sender.send(task_id, command, self._timeout if timeout is None else timeout)

    async def pause(self, task_id: str, reason: str | None = None) -> Answer:
        """Stop a task before its next step. Raises like `command`."""
        return await self.command(task_id, Pause(reason=reason))

    async def resume(self, task_id: str, *, raise_budget: Budget | None = None) -> Answer:
        """Take a pause back; one for a used budget by new limits. Raises like `command`."""
        return await self.command(task_id, Resume(raise_budget=raise_budget))

    async def cancel(self, task_id: str, reason: str | None = None, *, compensate: bool | None = None) -> Answer:
        """Let a task start nothing more. Raises like `command`.

        Args:
            task_id: the task.
            reason: why, for people.
            compensate: True: then undo what it did, newest first, by its tools' compensators. False: stop undoing.
        """
        return await self.command(task_id, Cancel(reason=reason, compensate=compensate))

    @overload
    async def signal(self, task_id: str, signal: Signal[T], value: T, /) -> Answer: ...
    @overload
    async def signal(self, task_id: str, signal: str, value: Any = None, /) -> Answer: ...
    async def signal(self, task_id: str, signal: Signal[Any] | str, value: Any = None, /) -> Answer:
        """Hand a value to ``task.wait_for(signal)``. Raises like `command`, and `codec.NotStorable`."""
        if isinstance(signal, Signal):
            body, name = signal.encode(value), signal.name
        else:
            body, name = codec.pack(value, Any)[0], signal
        return await self.command(task_id, SignalCommand(name=name, value=_stored(body, "value")))

    async def answer(self, task_id: str, step_id: str, text: str) -> Answer:
        """Answer the question that a step of a task asks. Raises like `command`; ``stale`` where it is answered already.

        Args:
            task_id: the task.
            step_id: of the question, from the task's reasons.
            text: the answer; where the question has choices, one of them.
        """
        return await self.signal(task_id, steps.answer_signal(ids.check("step_id", step_id)), text)

    async def edit_plan(
        self, task_id: str, plan_version: int, items: Sequence[plan.Item], *, reason: str | None = None
    ) -> Answer:
        """Give an agent another plan. Raises like `command`; ``stale`` where the plan has another version by now.

        Args:
            task_id: the task.
            plan_version: of the plan that was changed, from the task's record; 0 where it has none yet.
            items: all items of the new plan; one that keeps its id keeps its steps.
            reason: kept with the plan.

        Raises:
            PlanInvalid: the items make no plan.
        """
        return await self.command(task_id, EditPlan(plan_version=plan_version, items=list(items), reason=reason))

    async def approve(
        self, task_id: str, operation_id: str, *, digest: str | None = None, reason: str | None = None
    ) -> Answer:
        """Say yes to an operation that waits for it. Raises like `command`; ``stale`` where nothing is asked any more.

        Args:
            task_id: the task.
            operation_id: step and operation, ``4:1`` or ``4`` for short, as in the task's reasons.
            digest: of the arguments that were looked at, from the reason: a yes is never for other ones.
            reason: kept with the answer.
        """
        return await self.command(task_id, Approve(operation_id=operation_id, digest=digest, reason=reason))

    async def reject(
        self, task_id: str, operation_id: str, *, digest: str | None = None, reason: str | None = None
    ) -> Answer:
        """Say no to an operation: its step fails with the reason. Arguments and errors as for `approve`."""
        return await self.command(task_id, Reject(operation_id=operation_id, digest=digest, reason=reason))

    async def resolve(
        self,
        task_id: str,
        operation_id: str,
        verdict: Verdict,
        result: Any = None,
        *,
        reason: str | None = None,
        reference: str | None = None,
        new_operation: bool = False,
    ) -> Answer:
        """Say what became of an effect whose answer was lost; see `outlive.protocol.commands.Resolve`.

        Raises like `command`; `codec.NotStorable` for the result, and `ValueError` for one that the verdict has no use for.
        """
        command = Resolve(
            operation_id=operation_id, verdict=verdict, reason=reason, reference=reference, new_operation=new_operation,
            result=None if result is None else _stored(codec.pack(result, Any)[0], "result"),
        )  # fmt: skip
        return await self.command(task_id, command)

    async def retry(self, task_id: str, step_id: str | None = None, *, args: Mapping[str, Any] | None = None) -> Answer:
        """Let a failed task go on from its checkpoint. Raises like `command`.

        Args:
            task_id: the task.
            step_id: the step that failed; without one the task's own function failed.
            args: all arguments of the step by name, corrected: sent under a new key.
        """
        corrected = None if args is None else _stored(codec.pack(dict(args), dict[str, Any])[0], "args")
        return await self.command(task_id, Retry(step_id=step_id, args=corrected))

    async def skip(self, task_id: str, step_id: str, result: Any) -> Answer:
        """Give a step that failed or waits for a person its result. Raises like `command`, and `codec.NotStorable`."""
        return await self.command(task_id, Skip(step_id=step_id, result=_stored(codec.pack(result, Any)[0], "result")))

    # -- questions

    async def get(self, task_id: str, *, with_input: bool = True, with_result: bool = True) -> TaskRecord:
        """Return a task's record, large inputs and results included unless they are not asked for.

        Raises:
            QuestionRefused: there is no such task.
            Unreachable: nobody answers.
        """
        question = api.Get(task_id=ids.check("task_id", task_id), with_input=with_input, with_result=with_result)
        try:
            return await self.questions.ask("get", question, TaskRecord)
        except QuestionRefused as refused:
            if refused.problem.error is not Trouble.TOO_LARGE:
                raise
        question = api.Get(task_id=task_id, with_input=False, with_result=False)
        record = await self.questions.ask("get", question, TaskRecord)
        parts: dict[str, Any] = {}
        if with_input:
            parts["input"] = codec.decode(await self.questions.whole(task_id, "input"))
        if with_result and record.status is Status.SUCCEEDED:
            parts["result"] = codec.decode(await self.questions.whole(task_id, "result"))
        return msgspec.structs.replace(record, **parts)

    async def list(
        self,
        *,
        status: Sequence[Status] = (),
        kind: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
        limit: int = 50,
        after: str | None = None,
    ) -> api.TaskPage:
        """Return a page of tasks, newest first, without inputs and results. Raises like `get`."""
        question = api.List(
            status=[*status], kind=kind, parent=parent, labels=dict(labels or {}), limit=limit, after=after
        )
        return await self.questions.ask("list", question, api.TaskPage)

    async def waiting(self, *, limit: int = 50, after: str | None = None) -> api.TaskPage:
        """Return a page of the tasks that wait for a person; ``needs`` has the commands to type. Raises like `get`."""
        return await self.questions.ask("waiting", api.Waiting(limit=limit, after=after), api.TaskPage)

    async def why(self, task_id: str) -> str:
        """Return one paragraph: why a task is where it is and what happens next. Raises like `get`."""
        question = api.Why(task_id=ids.check("task_id", task_id))
        return (await self.questions.ask("why", question, api.Explanation)).text

    async def checkpoint(self, task_id: str) -> Checkpoint:
        """Return a task's whole checkpoint, large values included. Raises like `get`."""
        question = api.GetCheckpoint(task_id=ids.check("task_id", task_id))
        page = await self.questions.ask("checkpoint", question, api.CheckpointPage)
        whole, large = page.checkpoint, page.large
        while page.next is not None:
            question = api.GetCheckpoint(task_id=task_id, after=page.next)
            page = await self.questions.ask("checkpoint", question, api.CheckpointPage)
            whole.completed_steps.extend(page.checkpoint.completed_steps)
            whole.tool_results.update(page.checkpoint.tool_results)
            large = [*large, *page.large]
        names = {step.seq: step.step_id for step in whole.completed_steps}
        for seq in large:
            whole.tool_results[names[seq]] = codec.decode(await self.questions.whole(task_id, "result", seq))
        if whole.input is None:
            task_input = codec.decode(await self.questions.whole(task_id, "input"))
            whole = msgspec.structs.replace(whole, input=task_input)
        return whole

    async def operations(self, task_id: str) -> api.OperationPage:
        """Return a task's whole ledger: its operations and attempts. Raises like `get`."""
        question = api.Operations(task_id=ids.check("task_id", task_id))
        page = await self.questions.ask("operations", question, api.OperationPage)
        operations, attempts, words = page.operations, page.attempts, page.words
        while page.after is not None:
            question = api.Operations(task_id=task_id, after=page.after)
            page = await self.questions.ask("operations", question, api.OperationPage)
            operations += page.operations
            attempts += page.attempts
            words += page.words
        return api.OperationPage(operations=operations, attempts=attempts, words=words)

    async def find_command(self, command_id: str) -> api.CommandRecord:
        """Return what became of a command. Raises like `get`; `QuestionRefused` when it has not arrived."""
        question = api.FindCommand(command_id=ids.check("command_id", command_id))
        return await self.questions.ask("command", question, api.CommandRecord)

    async def stats(self, *, kind: str | None = None, within: float | None = None) -> api.StatsPage:
        """Return how each tool fared in the tasks created within the last so many seconds. Raises like `get`."""
        return await statistics.collect(self.questions, kind, within)

    async def export(self, task_id: str) -> AsyncGenerator[export.Piece]:
        """Yield all that is stored of a task, one piece after the other; see `outlive.infra.export`. Raises like `get`."""
        yield {"task": await self.get(task_id)}
        for part in (export.events, export.steps, export.operations, export.commands, export.audit):
            async for piece in part(self.questions, task_id):
                yield piece

    async def kinds(self) -> Sequence[api.KindRecord]:
        """Return what can be submitted. Raises like `get`."""
        return (await self.questions.ask("kinds", api.Kinds(), api.KindPage)).kinds

    async def health(self) -> api.HealthReport:
        """Return living workers and lags. Raises like `get`."""
        return await self.questions.ask("health", api.Health(), api.HealthReport)

    async def dead_letters(self, *, limit: int = 50, after: int = 0) -> api.DeadLetterPage:
        """Return a page of the messages that could not be read, oldest first. Raises like `get`."""
        return await self.questions.ask("dead_letters", api.DeadLetters(limit=limit, after=after), api.DeadLetterPage)


def _stored(body: bytes, part: str) -> Any:
    """Hand encoded JSON on as a part of a command, as it is."""
    if len(body) > INPUT_LIMIT:
        raise codec.NotStorable(
            f"$.{part}",
            f"{len(body):,} bytes are too many, {INPUT_LIMIT:,} are allowed: store it elsewhere and pass a reference",
        )
    return msgspec.Raw(body)
