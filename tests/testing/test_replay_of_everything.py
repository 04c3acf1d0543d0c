"""Whatever a task went through, its history is followed by the code that made it; what no history tells is said."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outlive.actors import App, Operation, Secret, Task
from outlive.actors.testing import Different, Replayed, Server, Unreadable, replay
from outlive.infra.client import Client
from outlive.protocol.errors import PermissionDenied, StepFailed, TaskFailed
from tests.actors.scene import row_soon, serving, status_soon

app = App("everything")
go = app.signal("go", str)
SECRETS = "one of many", "another one"


@app.tool(read_only=True)
def look(what: str) -> str:
    if what == "forbidden":
        raise PermissionDenied("not for you")
    return what.upper()


@app.tool(read_only=True)
async def hang(what: str) -> str:
    await asyncio.Event().wait()
    return what


@app.tool
def act(what: str) -> str:
    return f"did {what}"


@act.compensate(idempotent=True)
def undo(op: Operation, what: str) -> None: ...


@app.tool
async def slow(what: str) -> str:
    await asyncio.Event().wait()
    return what


@app.tool(requires_approval=True)
def send(to: str) -> str:
    return f"sent to {to}"


@app.tool
def log_in(user: str, password: Secret[str]) -> str:
    return user


@app.task
async def branches(task: Task) -> list[str]:
    async def two(what: str) -> str:
        await task.call(look, what)
        await task.progress(what)
        return await task.call(act, what)

    try:
        await task.gather(two("forbidden"), two("b"))
    except StepFailed:
        await task.call(act, "after")
    return list(await task.gather(two("c"), two("d")))


@app.task
async def strays(task: Task, caught: bool) -> str:
    try:
        await asyncio.gather(task.call(look, "forbidden"), task.call(hang, "x"))
    except StepFailed:
        if not caught:
            raise
        await task.progress("one has failed")
    return await task.call(look, "after")


@app.task
async def asked(task: Task) -> list[Any]:
    first = await task.call(send, "ann")
    calls = [task.call(send, to) for to in ("bob", "cid")]
    await task.approve_all(calls)
    return [first, *[await call for call in calls], await task.ask("in which month?")]


@app.task
async def child(task: Task, what: str) -> str:
    return await task.call(look, what)


@app.task
async def family(task: Task) -> str:
    found = await task.spawn(child, "tea")
    try:
        await task.spawn(child, "forbidden")
    except TaskFailed:
        await task.call(act, "without")
    return found


@app.task
async def runs(task: Task, n: int) -> str:
    await task.call(act, f"{n} {task.run}")
    await task.gather(task.call(look, f"a{n}"), task.call(look, f"b{n}"))
    if n < 3:
        task.restart(n=n + 1)
    return await task.wait_for(go)


@app.task
async def at_once(task: Task, n: int) -> str:
    if n == 2:
        await task.wait_for(go)
    await task.call(act, str(n))
    task.restart(n=n + 1)


@app.task
async def stopped(task: Task) -> str:
    await task.call(act, "first")
    await task.call(act, "second")
    return await task.wait_for(go)


@app.task
async def given_up(task: Task, seconds: float) -> list[str]:
    said = []
    for tool in (hang, slow):
        try:
            async with asyncio.timeout(seconds):
                await task.call(tool, "x")
        except TimeoutError:
            said.append(await task.call(look, tool.name))
    return said


@app.task
async def stands(task: Task) -> str:
    await task.call(look, "a")
    await task.progress("a")
    await task.call(look, "b")
    return await task.wait_for(go)


@app.task
async def secretive(task: Task) -> str:
    return await task.call(log_in, "ann", password=SECRETS[0])


@app.task
async def told(task: Task, password: Secret[str]) -> str:
    return await task.call(look, "a")


@pytest.fixture
async def client(shared: Server) -> AsyncIterator[Client]:
    async with serving(app, shared, grace=0.1) as client:
        yield client


async def kept(client: Client, task_id: str, folder: Path) -> Path:
    lines = [msgspec.json.encode(piece) async for piece in client.export(task_id)]
    file = folder / f"{task_id}.jsonl"
    await asyncio.to_thread(file.write_bytes, b"\n".join(lines))
    return file


async def followed(client: Client, task_id: str, folder: Path) -> Replayed:
    return await replay(app, await kept(client, task_id, folder))


async def test_branches_that_fail_and_calls_that_are_left_behind(
    shared: Server, client: Client, tmp_path: Path
) -> None:
    await client.submit("branches", task_id="branches")
    await client.submit("strays", {"caught": True}, task_id="caught")
    await client.submit("strays", {"caught": False}, task_id="failed")
    await client.submit("family", task_id="family")
    await client.submit("given_up", {"seconds": 0.05}, task_id="given-up")
    for task_id in ("branches", "caught", "family", "given-up"):
        await status_soon(shared, task_id, "succeeded")
        assert (await followed(client, task_id, tmp_path)).ended
    await status_soon(shared, "failed", "failed")
    assert (await followed(client, "failed", tmp_path)).steps == 1
    file = tmp_path / "given-up.jsonl"
    lines = (await asyncio.to_thread(file.read_bytes)).splitlines()
    old = [line for line in lines if not (line.startswith(b'{"step"') and b'"status":"unknown"' in line)]
    await asyncio.to_thread(file.write_bytes, b"\n".join(old).replace(b'"seconds":0.05', b'"seconds":60'))
    assert len(old) == len(lines) - 2
    with pytest.raises(Unreadable, match="no end of step 1, hang, is told"):
        await replay(app, file)


async def test_what_people_said(shared: Server, client: Client, tmp_path: Path) -> None:
    await client.submit("asked", task_id="asked")
    for step in ("1", "4"):
        await row_soon(
            shared,
            "select 1 from task where status = 'paused' and convert_from(reasons, 'UTF8') like $1",
            f'%"step_id":"{step}"%',
        )
        assert not (await followed(client, "asked", tmp_path)).ended
        await client.approve("asked", step)
    await row_soon(
        shared, "select 1 from task where status = 'paused' and convert_from(reasons, 'UTF8') like '%month%'"
    )
    assert (await followed(client, "asked", tmp_path)).steps == 4
    await client.answer("asked", "5", "May")
    await status_soon(shared, "asked", "succeeded")
    assert (await followed(client, "asked", tmp_path)).ended
    await client.submit("asked", task_id="skipped")
    await status_soon(shared, "skipped", "paused")
    await client.skip("skipped", "1", "by hand")
    await row_soon(
        shared,
        "select 1 from task where task_id = 'skipped' and convert_from(reasons, 'UTF8') like '%\"step_id\":\"4\"%'",
    )
    assert (await followed(client, "skipped", tmp_path)).steps == 1


async def test_runs_cancels_and_submits_that_were_refused(shared: Server, client: Client, tmp_path: Path) -> None:
    await client.submit("runs", {"n": 1}, task_id="runs")
    await client.submit("at_once", {"n": 1}, task_id="at-once")
    for task_id in ("cancelled", "undone"):
        await client.submit("stopped", task_id=task_id)
    for task_id in ("runs", "at-once", "cancelled", "undone"):
        await row_soon(shared, "select 1 from task where task_id = $1 and waiting_for = 'signal go'", task_id)
    assert (await followed(client, "runs", tmp_path)).steps == 3
    assert (await followed(client, "at-once", tmp_path)).steps == 0
    await client.signal("runs", "go", "now")
    await client.cancel("cancelled")
    await client.cancel("undone", compensate=True)
    await client.submit("runs", {"n": "many"}, task_id="refused")
    for task_id, status in (
        ("runs", "succeeded"), ("cancelled", "cancelled"), ("undone", "cancelled"), ("refused", "failed"),
    ):  # fmt: skip
        await status_soon(shared, task_id, status)
        assert (await followed(client, task_id, tmp_path)).ended


async def test_what_no_export_tells_is_no_difference(shared: Server, client: Client, tmp_path: Path) -> None:
    await client.submit("secretive", task_id="secretive")
    await client.submit("told", {"password": "one of many"}, task_id="told")
    for task_id in ("secretive", "told"):
        await status_soon(shared, task_id, "succeeded")
    other = App("everything")
    other.tool(log_in.fn)

    @other.task(name="secretive")
    async def otherwise(task: Task) -> str:
        return await task.call(log_in, "ann", password=SECRETS[1])

    file = await kept(client, "secretive", tmp_path)
    assert (await replay(app, file)).steps == 1
    with pytest.raises(Unreadable, match="step 1, log_in, takes secrets"):
        await replay(other, file)
    with pytest.raises(Unreadable, match="the input of a told has secrets"):
        await followed(client, "told", tmp_path)
    lines = (await asyncio.to_thread(file.read_bytes)).splitlines()
    for left in (lines[:2], [line for line in lines if not line.startswith(b'{"step"')]):
        await asyncio.to_thread(file.write_bytes, b"\n".join(left))
        with pytest.raises(Unreadable, match="is cut off"):
            await replay(app, file)


def otherwise(*calls: str, wait: str = "go") -> App:
    """The app whose `stands` makes other calls."""
    other = App("everything")
    tool = other.tool(read_only=True)(look.fn)
    signal = other.signal(wait, str)

    @other.task(name="stands")
    async def stands(task: Task) -> Any:
        for call in calls:
            if call == "note":
                await task.progress("a")
            elif call == "bug":
                raise ValueError("a bug")
            elif call == "exit":
                sys.exit("no more")
            else:
                await task.call(tool, call)
        return await task.wait_for(signal)

    return other


async def test_a_task_that_waits_is_compared_as_far_as_it_got(shared: Server, client: Client, tmp_path: Path) -> None:
    await client.submit("stands", task_id="stands")
    await row_soon(shared, "select 1 from task where task_id = 'stands' and waiting_for = 'signal go'")
    file = await kept(client, "stands", tmp_path)
    assert (await replay(otherwise("a", "note", "b"), file)).steps == 2
    for calls, told in (
        (("a", "new", "b"), "went on with step 3, look; the code now goes on with step 2, look"),
        (("a", "note", "c"), r"Step 3 was look"),
        (("a", "note", "bug"), "went on with step 3, look; the code now raises ValueError: a bug"),
        (("a", "exit"), "went on with step 3, look; the code now raises SystemExit: no more"),
        (("a", "note", "b", "bug"), "was running; the code now raises ValueError: a bug"),
        (("a", "note", "b", "new"), r"Step 4 was wait_for go when this task ran before; the code now calls look"),
    ):
        with pytest.raises(Different, match=told):
            await replay(otherwise(*calls), file)
    with pytest.raises(
        Different, match="Step 4 was wait_for go when this task ran before; the code now calls wait_for stop"
    ):
        await replay(otherwise("a", "note", "b", wait="stop"), file)
