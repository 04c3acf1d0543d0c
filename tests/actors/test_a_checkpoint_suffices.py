"""The checkpoint struct alone, as the api gives it, says what a task does next."""

import asyncio
from typing import Any, NamedTuple

import pytest

from outlive.actors import App, Operation, RetryPolicy, Task, Unavailable
from outlive.actors.testing import Server
from outlive.protocol import codec
from outlive.protocol.checkpoint import Checkpoint
from outlive.protocol.keys import operation_key
from tests.actors.scene import row_soon, serving, soon

app = App("checkpoints")
go = app.signal("go", str)
entered, release = asyncio.Event(), asyncio.Event()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    entered.clear()
    release.clear()


@app.tool(read_only=True)
def find(folder: str, suffix: str = ".txt") -> list[str]:
    return [f"{folder}/{n}{suffix}" for n in range(2)]


@app.tool(idempotent=True)
async def write(op: Operation, path: str, text: str) -> int:
    entered.set()
    await release.wait()
    return len(text)


@app.tool(idempotent=True, retries=RetryPolicy(base=60, cap=60))
async def down(path: str) -> int:
    raise Unavailable("not yet")


@app.task
async def child(task: Task) -> str:
    return await task.wait_for(go)


@app.task
async def story(task: Task, folder: str, how: str) -> Any:
    paths = await task.call(find, folder, suffix=".md")
    if how == "in flight":
        return await task.call(write, paths[1], text=f"{len(paths)} found")
    if how == "to be tried again":
        return await task.call(down, paths[0])
    if how == "asleep":
        await task.sleep(3600)
    if how == "child":
        return await task.spawn(child)
    return await task.wait_for(go)


class Action(NamedTuple):
    """What a task does next."""

    step_id: str
    name: str
    arguments: dict[str, Any] | None = None


class Next(Exception):
    """The function has come to what is not done yet."""

    def __init__(self, action: Action) -> None:
        super().__init__()
        self.action = action


class Replay:
    """A stand-in for `Task` that knows a checkpoint and nothing else."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._results, self._count = checkpoint.tool_results, 0

    async def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Any:
        bound = tool.bind(args, kwargs)
        return codec.decode(
            codec.encode(self._at(tool.name, codec.decode(tool.encode_arguments(bound)))), tool.result_type
        )

    async def sleep(self, _seconds: float) -> Any:
        return self._at("sleep")

    async def wait_for(self, signal: Any) -> Any:
        return self._at(f"signal {signal.name}")

    async def spawn(self, _kind: Any) -> Any:
        return self._at("child")

    def _at(self, name: str, arguments: dict[str, Any] | None = None) -> Any:
        self._count += 1
        if (step_id := str(self._count)) not in self._results:
            raise Next(Action(step_id, name, arguments))
        return self._results[step_id]


async def _next_action(checkpoint: Checkpoint) -> Action:
    """Run the function again on nothing but the struct, up to where it stands."""
    assert checkpoint.kind == "story"
    replay: Any = Replay(checkpoint)
    with pytest.raises(Next) as reached:
        await story.fn(replay, **checkpoint.input)
    return reached.value.action


@pytest.mark.parametrize(
    ("how", "status", "name", "arguments"),
    [
        ("in flight", "started", "write", {"path": "d/1.md", "text": "2 found"}),
        ("to be tried again", "unknown", "down", {"path": "d/0.md"}),
        ("asleep", "waiting", "sleep", None),
        ("child", "waiting", "child", None),
        ("waits", "waiting", "signal go", None),
    ],
)
async def test_the_next_action_is_rebuilt_from_the_struct_alone(
    shared: Server, how: str, status: str, name: str, arguments: dict[str, Any] | None
) -> None:
    async with serving(app, shared, grace=0.1) as client:
        await client.submit(story.with_options(task_id="t"), "d", how)
        if how == "in flight":
            await asyncio.wait_for(entered.wait(), 10)
            await row_soon(shared, "select 1 from fact where task_id = 't' and status = 'completed'")
        else:
            await row_soon(shared, "select 1 from task where task_id = 't' and waiting_for is not null")
        checkpoint = await client.checkpoint("t")
    assert (checkpoint.task_id, checkpoint.step_index, checkpoint.plan) == ("t", 1, None)
    assert [(step.step_id, step.name, step.status) for step in checkpoint.completed_steps] == [
        ("1", "find", "completed")
    ]
    assert checkpoint.tool_results == {"1": ["d/0.md", "d/1.md"]}
    pending = checkpoint.pending_step
    assert pending is not None and (pending.step_id, pending.status) == ("2", status)
    action = await _next_action(checkpoint)
    assert action == Action("2", name, arguments)
    assert (pending.arguments, pending.name.startswith(name)) == (arguments, True)
    if arguments is not None:
        assert pending.operation_id == "1"
        assert operation_key("default", "t", pending.step_id, pending.operation_id) == "default/t:2:1"
    if how in {"asleep", "to be tried again"}:
        assert pending.wait_until is not None and pending.wait_until > checkpoint.created_at


async def test_nothing_is_pending_between_steps_and_after_the_end(shared: Server) -> None:
    @app.task(name="short")
    async def short(task: Task) -> int:
        return len(await task.call(find, "d"))

    async with serving(app, shared) as client:
        handle = await client.submit(short.with_options(task_id="t"))
        assert await handle.result(10) == 2
        checkpoint = await soon(lambda: client.checkpoint("t"))
        assert checkpoint.pending_step is None and checkpoint.step_index == 1
        assert checkpoint.checkpoint_id == f"t.{(await client.get('t')).last_seq}"
