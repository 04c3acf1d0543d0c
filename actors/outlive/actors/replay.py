"""Golden replay: an exported task run through today's code. No tool is called: recorded results answer, nothing is written.

``outlive export T > tests/histories/t.jsonl`` keeps a task; `replay` fails where today's code would take another way with it::

    async def test_old_tasks_still_fit() -> None:
        await replay(app, "tests/histories/t.jsonl")

A step that is not recorded stands still, and what goes on beside it goes on: so a task that has not ended is compared as far
as it got. What a history does not tell cannot be replayed, and is said (`Unreadable`): secrets that are others today (digests
are exported in their place), and what a person was asked about another model or prompt.
"""

import asyncio
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Final, NamedTuple, TypeAlias, cast

import msgspec
from msgspec import Meta

from outlive.actors import context
from outlive.actors.app import App
from outlive.actors.flow import Flow, Stopped
from outlive.actors.places import Branch, branch
from outlive.actors.supervision import unwrap
from outlive.actors.task import Restart, Task
from outlive.actors.world import World
from outlive.infra.claims import Claimed, StoredFact, StoredOperation
from outlive.infra.journal import Line
from outlive.infra.records import Claim
from outlive.protocol import codec
from outlive.protocol.errors import OutliveError, StepFailed, TaskCancelled, TaskFailed
from outlive.protocol.steps import is_undo
from outlive.protocol.task import Failure, Status
from outlive.protocol.tools import AnyKind

_RUN: Final = re.compile(r"r(\d+)-")
_BEGINS: Final = re.compile(r"Run (\d+) begins")  # a run of which no step is told yet
_ABOUT_VERSIONS: Final = re.compile(
    r"(r\d+-)?version-\d+-\d+"
)  # a person's question of `outlive.actors.agents.versions`
_ENDS: Final = frozenset({"completed", "skipped", "failed"})
_NEVER_RAN: Final = frozenset({"InvalidInput", "InvalidPolicy"})  # failures of the submit: no line of the code ran
_SHORT: Final = 0.05
_LONG: Final = 0.5
"""Seconds for which a function that stands at a step may go on beside it; the long ones where a verdict hangs on it."""
_NOBODY: Final = uuid.UUID(int=0)
_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Unreadable(OutliveError, ValueError):
    """A file is no export of a task, or one that cannot be replayed; the message says why."""


class Different(OutliveError, AssertionError):
    """Today's code takes another way than the recorded task; the message names the step, what was, and what is."""


class Replayed(NamedTuple):
    """A history that today's code follows to its end.

    Attributes:
        task_id, kind: of the task.
        steps: how many recorded steps answered.
        ended: whether the task had ended, so that its end was compared too.
    """

    task_id: str
    kind: str
    steps: int
    ended: bool


_Digest: TypeAlias = Annotated[str, Meta(pattern=r"^([0-9a-f]{2})*$")]


class _Task(msgspec.Struct):
    task_id: str
    tenant: str
    kind: str
    status: Status
    input: msgspec.Raw = msgspec.Raw(b"{}")
    goal: str | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None
    parent: str | None = None
    last_seq: int = 0


class _Event(msgspec.Struct):
    type: str
    seq: int
    message: str = ""
    step_id: str | None = None
    name: str = ""
    status: str = ""


class _Step(msgspec.Struct):
    step_id: str
    name: str
    status: str
    digest: _Digest
    seq: int
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Operation(msgspec.Struct):
    step_id: str
    operation_id: str
    name: str
    status: str
    digest: _Digest
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    attempts: int = 1
    note: str | None = None


class _Line(msgspec.Struct):
    task: _Task | None = None
    event: _Event | None = None
    step: _Step | None = None
    operation: _Operation | None = None


class _History(NamedTuple):
    """What is told of a task's last run; `opened` are the last events of steps that had begun and not ended."""

    task: _Task
    run: int
    steps: list[_Step]
    operations: list[_Operation]
    opened: Mapping[str, _Event]


async def replay(app: App, path: str | Path) -> Replayed:
    """Run an exported task through an app's code.

    Args:
        app: with the task's kind.
        path: of a file that ``outlive export`` or `Client.export` wrote.

    Raises:
        Different: the code takes another way.
        Unreadable: the file is no export, or cannot be replayed.
        OSError: there is no such file.
    """
    text = await asyncio.to_thread(Path(path).read_bytes)
    history = _read(text, path)
    task = history.task
    kind = app.kinds.get(task.kind)
    if kind is None:
        known = ", ".join(sorted(app.kinds)) or "none"
        raise Different(f"task {task.task_id} is of kind {task.kind!r}; the app has: {known}")
    if kind.arguments.secrets:
        raise Unreadable(f"{path}: the input of a {kind.name} has secrets, which no export tells: it is not replayed")
    if any(_ABOUT_VERSIONS.fullmatch(step.step_id) and step.name == "version" for step in history.steps):
        raise Unreadable(f"{path}: a person was asked about another model or prompt; which, no export tells")
    if task.failure is None or task.failure.type not in _NEVER_RAN:
        claimed = _claimed(history)
        flow = _Replay(claimed, kind, Line(claimed.claim, _durable), _world(app), history.opened)
        _judge(flow, history, await flow.follow(task))
    return Replayed(task.task_id, kind.name, len(history.steps), _ended(task))


class _End(NamedTuple):
    """How the function came to its end: by itself, or at steps of which no end is recorded."""

    stood_still: bool = False
    raised: BaseException | None = None
    returned: Any = None


class _Replay(Flow):
    """A flow in which nothing begins that was not recorded: such a step stands still, what goes on beside it goes on."""

    def __init__(self, claimed: Claimed, kind: AnyKind, line: Line, world: World, opened: Mapping[str, _Event]) -> None:
        """Take the history."""
        super().__init__(claimed, kind, line, world)
        self.opened = opened
        self.new = ""  # the first step that was not even begun
        self.waits_at: _Event | None = None  # of the first one that was begun, and has no end
        self.untold = ""  # a step whose secrets are others here

    async def follow(self, task: _Task) -> _End:
        """Run the function to its end, or to where all of it stands still."""
        arguments = _input(self, task)
        running = asyncio.create_task(self._call(arguments))
        try:
            while not running.done():
                left = len(self.history.unvisited)
                patience = _LONG if left or _ended(task) else _SHORT  # code of its own may take a while beside a step
                await asyncio.wait({running}, timeout=patience)
                if (self.new or self.waits_at) and len(self.history.unvisited) == left:
                    break
            stood_still = not running.done()
        finally:
            self.halt("pause")
            running.cancel()
            await asyncio.wait({running})
            await self.abandon()
        raised, returned = running.result()
        error = self.misplaced or raised
        return _End(stood_still, error and unwrap(error), returned)

    async def _call(self, arguments: dict[str, Any]) -> tuple[BaseException | None, Any]:
        branch.set(Branch("" if self.run == 1 else f"r{self.run}-", asyncio.current_task()))
        context.current.set(Task(self))
        try:
            return None, await self.kind.fn(Task(self), **arguments)
        except BaseException as error:  # noqa: BLE001  # judged by `replay`
            return error, None

    async def enter(self, step_id: str, name: str, digest: bytes, *, read_only: bool = False) -> None:  # noqa: ARG002  # the flow's
        """Stand still: no end of this step is recorded."""
        if self.stopping:
            await asyncio.sleep(0)  # code that catches everything and tries again must not keep the event loop
            self.check()
        was = self.opened.get(step_id)
        if was is not None and was.name != name:
            raise self.outdated(
                step_id, f"Step {step_id} was {was.name} when this task ran before; the code now calls {name}."
            )
        if was is None:
            self.new = self.new or f"step {step_id}, {name}"
        else:
            self.waits_at = self.waits_at or was
        self._steps[step_id] = asyncio.current_task()
        await asyncio.get_running_loop().create_future()

    def _mismatch(
        self, step_id: str, was: StoredFact | StoredOperation, name: str, show: Callable[[bytes | None], str]
    ) -> Stopped:
        tool = self.world.tools.get(name)
        if was.name == name and tool is not None and tool.arguments.secrets:
            self.untold = self.untold or f"step {step_id}, {name}"
        return super()._mismatch(step_id, was, name, show)


def _durable(line: Line) -> None:
    """Take what the code writes on its way for written."""
    line.records.clear()
    line.held = 0


def _world(app: App) -> World:
    budgets = SimpleNamespace(open=_none, unsettled=_nothing_open)
    parts = SimpleNamespace(clock=SimpleNamespace(now=lambda: datetime.now(UTC)), budgets=budgets, tools=app.tools)
    return cast("World", parts)  # all that is asked of it while nothing new begins


async def _none(*_: object) -> bool:
    return False


async def _nothing_open(*_: object) -> set[tuple[str, int]]:
    return set()


def _input(flow: Flow, task: _Task) -> dict[str, Any]:
    body = bytes(task.input)
    if task.goal is not None and "goal" in flow.kind.arguments.types:
        body = codec.encode({"goal": task.goal, **codec.decode(body, dict[str, msgspec.Raw])})
    try:
        return flow.kind.decode_input(body)
    except codec.NotStorable as error:
        raise Different(f"the input of task {task.task_id} does not fit any more: {error}") from error


def _judge(flow: _Replay, history: _History, end: _End) -> None:
    task = history.task
    if flow.untold:
        raise Unreadable(f"{flow.untold}, takes secrets, which no export tells, and they are others here")
    if flow.reasons:
        raise Different(flow.reasons[0].message.partition(" Nothing was run.")[0])
    if end.stood_still:
        _judge_stand(flow, task)
    else:
        _judge_end(flow, task, end)


def _judge_stand(flow: _Replay, task: _Task) -> None:
    """The function waits for steps that have no end: as the task did, or not."""
    left, over, at = sorted(flow.history.unvisited), task.status in {Status.SUCCEEDED, Status.FAILED}, flow.waits_at
    now = f"goes on with {flow.new}"
    if not flow.new and at is not None:
        now = f"waits for step {at.step_id}, {at.name}"
        if at.status == "unknown" and (over or left):
            raise Unreadable(f"task {task.task_id}: no end of step {at.step_id}, {at.name}, is told. Export it again")
    if over:
        raise Different(f"task {task.task_id} ended as {task.status}; the code now {now}")
    if flow.new and left:
        raise Different(f"task {task.task_id} went on with {_step(flow, left[0])}; the code now {now}")


def _judge_end(flow: _Replay, task: _Task, end: _End) -> None:
    error, left = end.raised, sorted(flow.history.unvisited)
    if (error is None or isinstance(error, Restart)) and flow.left_out():
        raise Different(flow.reasons[-1].message.partition(" Deploy the old code")[0])
    if error is None:
        try:
            result, _ = codec.pack(end.returned, flow.kind.result_type)
        except codec.NotStorable as unfit:
            error = unfit
        else:
            _judge_result(task, result)
            return
    now = "begins another run" if isinstance(error, Restart) else f"raises {type(error).__name__}: {error}"
    if left:
        raise Different(f"task {task.task_id} went on with {_step(flow, left[0])}; the code now {now}") from error
    if task.status is Status.SUCCEEDED or (task.status is Status.FAILED and isinstance(error, Restart)):
        raise Different(f"task {task.task_id} {task.status}; the code now {now}") from error
    if not _ended(task) and not isinstance(error, (Restart, StepFailed, TaskFailed, TaskCancelled)):
        raise Different(f"task {task.task_id} was {task.status}; the code now {now}") from error


def _judge_result(task: _Task, result: bytes) -> None:
    if task.status is Status.FAILED:
        raise Different(f"task {task.task_id} failed ({_words(task.failure)}); the code now succeeds")
    if task.status is not Status.SUCCEEDED:
        return
    before, now = codec.plain(bytes(task.result)), codec.plain(result)
    if before != now:
        raise Different(f"task {task.task_id} returned {_short(before)}; the code now returns {_short(now)}")


def _step(flow: Flow, step_id: str) -> str:
    return f"step {step_id}, {flow.history.done[step_id].name}"


def _words(failure: Failure | None) -> str:
    return "nothing is told of it" if failure is None else f"{failure.type}: {failure.message}"


def _short(value: object) -> str:
    shown = codec.encode(value).decode()
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def _ended(task: _Task) -> bool:
    return task.status in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


def _read(text: bytes, path: str | Path) -> _History:
    again = f"Write it with: outlive export TASK > {path}"
    try:
        lines = [msgspec.json.decode(line, type=_Line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path} is no export of a task: {error}. {again}") from None
    tasks = [line.task for line in lines if line.task is not None]
    if len(tasks) != 1:
        raise Unreadable(f"{path} holds {len(tasks)} tasks; an export holds one. {again}")
    steps = [line.step for line in lines if line.step]
    operations = [line.operation for line in lines if line.operation]
    return _last_run(
        tasks[0], [line.event for line in lines if line.event], steps, operations, f"{path} is cut off. {again}"
    )


def _last_run(
    task: _Task, events: Sequence[_Event], steps: Sequence[_Step], operations: Sequence[_Operation], cut_off: str
) -> _History:
    """Keep what is told of the steps of the function in its last run. Raises `Unreadable` where something is missing."""
    ids = [
        *(one.step_id for one in steps),
        *(one.step_id for one in operations),
        *(one.step_id or "" for one in events),
    ]
    found = map(_RUN.match, ids)
    began = (_BEGINS.match(event.message) for event in events if event.type == "status")
    run = max((int(number[1]) for number in (*found, *began) if number), default=1)

    def mine(step_id: str | None) -> bool:
        number = _RUN.match(step_id or "")
        return step_id is not None and not is_undo(step_id) and (int(number[1]) if number else 1) == run

    ends = {step.step_id: step.seq for step in steps}
    opened = {
        event.step_id: event for event in events if event.step_id and event.type == "step" and mine(event.step_id)
    }
    opened = {step_id: event for step_id, event in opened.items() if event.seq > ends.get(step_id, 0)}
    if max((event.seq for event in events), default=0) < task.last_seq:
        raise Unreadable(cut_off)
    if any(event.status in _ENDS for event in opened.values()):
        raise Unreadable(cut_off)
    return _History(
        task, run, [step for step in steps if mine(step.step_id) and step.step_id not in opened],
        [one for one in operations if mine(one.step_id)], opened,
    )  # fmt: skip


def _claimed(history: _History) -> Claimed:
    task, steps = history.task, history.steps
    last = max((step.seq for step in steps), default=0) + 1
    claim = Claim(
        tenant=task.tenant, task_id=task.task_id, kind=task.kind, epoch=1, version=0, last_seq=last, published=last,
        published_at=0, inbox_head=0, applied=0, steps=len(steps),
    )  # fmt: skip
    return Claimed(
        claim=claim, status="running", cancelling=False, input=b"{}", run=history.run, run_from=0, waiting_for=None,
        reasons=None, current_step=None, code_version=None, parent=task.parent, deaths=0, died=None,
        facts=list(_facts(steps)), operations=[_operation(one) for one in history.operations],
    )  # fmt: skip


def _facts(steps: Iterable[_Step]) -> Iterable[StoredFact]:
    for step in steps:
        status, body = step.status if step.status in {"failed", "unknown"} else "completed", bytes(step.result)
        yield StoredFact(
            step.seq, "step", step.step_id, step.name, status, bytes.fromhex(step.digest), 1, None, body, None
        )


def _operation(one: _Operation) -> StoredOperation:
    return StoredOperation(
        one.step_id, one.operation_id, one.name, one.status, bytes.fromhex(one.digest), one.attempts, 1, _LONG_AGO, _NOBODY,
        bytes(one.arguments), one.note,
    )  # fmt: skip
