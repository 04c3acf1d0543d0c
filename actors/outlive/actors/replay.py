"""Golden replay: an exported task run through today's code. No tool is called: recorded results answer, nothing is written.

``outlive export T > tests/histories/t.jsonl`` keeps a task; `replay` fails where today's code would take another way with it::

    async def test_old_tasks_still_fit() -> None:
        await replay(app, "tests/histories/t.jsonl")

What a history does not tell cannot be replayed: secrets (their digests are exported in their place), and the tools of MCP
servers, which are known only when a task runs.
"""

import asyncio
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, cast

import msgspec

from outlive.actors import context
from outlive.actors.app import App
from outlive.actors.flow import Flow, Stopped
from outlive.actors.places import Branch, branch
from outlive.actors.task import Restart, Task
from outlive.actors.world import World
from outlive.infra.claims import Claimed, StoredFact, StoredOperation
from outlive.infra.journal import Line
from outlive.infra.records import Claim
from outlive.protocol import codec
from outlive.protocol.errors import OutliveError, StepFailed, TaskCancelled, TaskFailed
from outlive.protocol.task import Failure, Status

_RUN: Final = re.compile(r"r(\d+)-")
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


class _Step(msgspec.Struct):
    step_id: str
    name: str
    status: str
    digest: str
    seq: int
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Operation(msgspec.Struct):
    step_id: str
    operation_id: str
    name: str
    status: str
    digest: str
    arguments: msgspec.Raw = msgspec.Raw(b"null")
    attempts: int = 1
    note: str | None = None


class _Line(msgspec.Struct):
    task: _Task | None = None
    step: _Step | None = None
    operation: _Operation | None = None


class _History(NamedTuple):
    task: _Task
    steps: list[_Step]
    operations: list[_Operation]


async def replay(app: App, path: str | Path) -> Replayed:
    """Run an exported task through an app's code.

    Args:
        app: with the task's kind.
        path: of a file that ``outlive export`` or `Client.export` wrote.

    Raises:
        Different: the code takes another way.
        Unreadable: the file is no export, or cannot be replayed.
    """
    text = await asyncio.to_thread(Path(path).read_bytes)
    history = _read(text, path)
    kind = app.kinds.get(history.task.kind)
    if kind is None:
        known = ", ".join(sorted(app.kinds)) or "none"
        raise Different(f"task {history.task.task_id} is of kind {history.task.kind!r}; the app has: {known}")
    claimed = _claimed(history)
    flow = _Replay(claimed, kind, Line(claimed.claim, _durable), _world(app))
    error, returned = await _run(flow, history)
    _judge(flow, history, error, returned)
    return Replayed(history.task.task_id, kind.name, len(history.steps), _ended(history.task))


class _Replay(Flow):
    """A flow in which nothing begins that was not recorded."""

    at_end: str = ""
    """What the code wanted to do where the history ends."""

    async def enter(self, step_id: str, name: str, digest: bytes, *, read_only: bool = False) -> None:  # noqa: ARG002  # the flow's
        """Stop: the history has no such step."""
        self.check()
        self.at_end = self.at_end or f"step {step_id}, {name}"
        self.halt("pause")
        raise self._strike("nothing more is recorded")


def _durable(line: Line) -> None:
    """Take what the code writes on its way for written."""
    line.records.clear()
    line.held = 0


def _world(app: App) -> World:
    budgets = SimpleNamespace(open=_none, unsettled=_nothing_open)
    parts = SimpleNamespace(
        clock=SimpleNamespace(now=lambda: datetime.now(UTC)), budgets=budgets, tools=app.tools, worker="replay",
        waived=frozenset[str](), freed=asyncio.Event(), path=lambda _: "person", pid=0,
    )  # fmt: skip
    return cast("World", parts)  # all that is asked of it while nothing new begins


async def _none(*_: object) -> bool:
    return False


async def _nothing_open(*_: object) -> set[tuple[str, int]]:
    return set()


async def _run(flow: Flow, history: _History) -> tuple[BaseException | None, Any]:
    branch.set(Branch("" if flow.run == 1 else f"r{flow.run}-", asyncio.current_task()))
    token = context.current.set(Task(flow))
    try:
        return None, await flow.kind.fn(Task(flow), **_input(flow, history.task))
    except Exception as error:  # noqa: BLE001  # judged by the caller
        return error, None
    except asyncio.CancelledError as error:
        if not isinstance(error, Stopped):
            raise
        return error, None
    finally:
        context.current.reset(token)


def _input(flow: Flow, task: _Task) -> dict[str, Any]:
    body = bytes(task.input)
    if task.goal is not None and "goal" in flow.kind.arguments.types:
        body = codec.encode({"goal": task.goal, **codec.decode(body, dict[str, msgspec.Raw])})
    try:
        return flow.kind.decode_input(body)
    except codec.NotStorable as error:
        raise Different(f"the input of task {task.task_id} does not fit any more: {error}") from error


def _judge(flow: _Replay, history: _History, error: BaseException | None, returned: Any) -> None:
    task = history.task
    if flow.reasons:
        raise Different(flow.reasons[0].message.partition(" Nothing was run.")[0])
    if flow.at_end:
        if _ended(task):
            raise Different(f"task {task.task_id} ended as {task.status}; the code now goes on with {flow.at_end}")
        return
    if isinstance(error, Restart):
        return
    if error is None and flow.left_out():
        raise Different(flow.reasons[-1].message.partition(" Deploy the old code")[0])
    if task.status is Status.SUCCEEDED:
        _same_result(task, error, returned)
    elif task.status is Status.FAILED and error is None:
        raise Different(f"task {task.task_id} failed ({_words(task.failure)}); the code now succeeds")
    elif (
        not _ended(task)
        and isinstance(error, Exception)
        and not isinstance(error, (StepFailed, TaskFailed, TaskCancelled))
    ):
        raise Different(f"task {task.task_id} was {task.status}; the code now raises {type(error).__name__}: {error}")


def _same_result(task: _Task, error: BaseException | None, returned: Any) -> None:
    if error is not None:
        raise Different(
            f"task {task.task_id} succeeded; the code now raises {type(error).__name__}: {error}"
        ) from error
    before, now = codec.plain(bytes(task.result)), codec.plain(codec.encode(returned))
    if before != now:
        raise Different(f"task {task.task_id} returned {_short(before)}; the code now returns {_short(now)}")


def _words(failure: Failure | None) -> str:
    return "nothing is told of it" if failure is None else f"{failure.type}: {failure.message}"


def _short(value: object) -> str:
    shown = codec.encode(value).decode()
    return shown if len(shown) <= 200 else f"{shown[:200]}..."


def _ended(task: _Task) -> bool:
    return task.status in {Status.SUCCEEDED, Status.FAILED, Status.CANCELLED}


def _read(text: bytes, path: str | Path) -> _History:
    try:
        lines = [msgspec.json.decode(line, type=_Line) for line in text.splitlines() if line.strip()]
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Unreadable(
            f"{path} is no export of a task: {error}. Write one with: outlive export TASK > {path}"
        ) from None
    tasks = [line.task for line in lines if line.task is not None]
    if len(tasks) != 1:
        raise Unreadable(
            f"{path} holds {len(tasks)} tasks; an export holds one. Write it with: outlive export TASK > {path}"
        )
    return _History(tasks[0], [x.step for x in lines if x.step], [x.operation for x in lines if x.operation])


def _claimed(history: _History) -> Claimed:
    task, steps = history.task, history.steps
    last = max((step.seq for step in steps), default=0) + 1
    found = (_RUN.match(step.step_id) for step in steps)
    claim = Claim(
        tenant=task.tenant, task_id=task.task_id, kind=task.kind, epoch=1, version=0, last_seq=last, published=last,
        published_at=0, inbox_head=0, applied=0, steps=len(steps),
    )  # fmt: skip
    return Claimed(
        claim=claim, status="running", cancelling=False, input=b"{}", run=max((int(m[1]) for m in found if m), default=1),
        run_from=0, waiting_for=None, reasons=None, current_step=None, code_version=None, parent=task.parent, deaths=0,
        died=None, facts=list(_facts(steps)), operations=[_operation(one) for one in history.operations],
    )  # fmt: skip


def _facts(steps: Iterable[_Step]) -> Iterable[StoredFact]:
    for step in steps:
        status, body = "failed" if step.status == "failed" else "completed", bytes(step.result)
        yield StoredFact(
            step.seq, "step", step.step_id, step.name, status, bytes.fromhex(step.digest), 1, None, body, None
        )


def _operation(one: _Operation) -> StoredOperation:
    return StoredOperation(
        one.step_id, one.operation_id, one.name, one.status, bytes.fromhex(one.digest), one.attempts, 1, _LONG_AGO, _NOBODY,
        bytes(one.arguments), one.note,
    )  # fmt: skip
