"""Plans of durable functions: facts with versions; a step belongs to the item at which its branch is."""

import json
from contextlib import suppress
from typing import Any

import pytest

from outlive.actors import App, Task
from outlive.actors.testing import Server
from outlive.infra.client import Client
from outlive.protocol.errors import StepFailed, TaskFailed
from outlive.protocol.plan import Item
from tests.actors.scene import dying, events, row_soon, rows, serving, status_soon, told

app = App("plans")
go = app.signal("go", str)
code: dict[str, Any] = {"items": ["list", "read", "report"], "model": "m-1", "prompt": "p-1"}


@app.tool(read_only=True, title="reading {name}")
def look(name: str) -> str:
    if name == "broken":
        raise ValueError("broken")
    return name


@app.task
async def audit(task: Task) -> str:
    await task.plan(*code["items"])
    await task.phase("list")
    await task.call(look, "names")
    await task.phase("read")
    await task.gather(task.call(look, "a"), branch(task))
    await task.wait_for(go)
    await task.phase("report")
    return await task.call(look, "all")


async def branch(task: Task) -> None:
    await task.call(look, "b")
    await task.phase("report")
    await task.call(look, "early")
    await task.progress("half of it")


@app.task
async def changing(task: Task) -> str:
    await task.plan(Item("first", "the first thing"), Item("second", "the second one", ["first"]), note="a guess")
    await task.phase("first")
    await task.call(look, "x")
    await task.plan(Item("second", "the second one"), "мир", "third and last", note="better known")
    await task.phase("third and last")
    with suppress(StepFailed):
        await task.call(look, "broken")
    await task.phase("second")
    return await task.wait_for(go)


@app.task
async def outside(task: Task) -> None:
    await task.plan("list")
    await task.phase("reed")


@app.task
async def wrong(task: Task) -> None:
    await task.plan("a", "a")


@app.task
async def speaks(task: Task) -> str:
    await task.versions(model=code["model"], prompt=code["prompt"])
    await task.wait_for(go)
    return await task.call(look, "x")


@app.task
async def again(task: Task, left: int) -> int:
    await task.plan("one", "two")
    if left:
        task.restart(left=left - 1)
    await task.wait_for(go)
    return left


@pytest.fixture(autouse=True)
def _same_code() -> None:
    code.update(items=["list", "read", "report"], model="m-1", prompt="p-1")


async def _plan(client: Client, task_id: str) -> list[tuple[str, str]]:
    record = await client.get(task_id)
    assert record.plan is not None
    return [(item.id, str(item.status)) for item in record.plan.items]


async def test_progress_says_at_which_item_each_step_is_in_branches_too(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(audit.with_options(task_id="a"))
        await row_soon(shared, "select 1 from task where task_id = 'a' and waiting_for = 'signal go'")
        assert await _plan(client, "a") == [("list", "done"), ("read", "doing"), ("report", "doing")]
    before = await rows(shared, "select seq, event, body from fact where task_id = 'a' order by seq")
    async with serving(app, shared) as client:
        await client.signal("a", go, "on")
        assert await client.result("a", str, 20) == "all"
        record = await client.get("a")
        assert await _plan(client, "a") == [("list", "done"), ("read", "done"), ("report", "done")]
        assert (record.total_steps, record.left) == (3, [])
        assert "Of its plan, version 1, 3 of 3 items are done." in await client.why("a")
    assert (
        before
        == (await rows(shared, "select seq, event, body from fact where task_id = 'a' order by seq"))[: len(before)]
    )
    said = await told(shared, "a")
    assert [line for line in said if line.startswith("step ")][:3] == [
        "step 1 of 3: list", "step 1 of 3: reading names", "step 2 of 3: read",
    ]  # fmt: skip
    assert {"step 2 of 3: reading a", "step 2 of 3: reading b", "step 3 of 3: reading early"} <= {*said}
    assert {"step 3 of 3: half of it", "Plan, version 1: list; read; report"} <= {*said}
    items = {event["message"]: event.get("item") for event in await events(shared, "a")}
    assert items["step 2 of 3: reading b"] == "read"
    assert items["step 3 of 3: reading all"] == "report"
    planned = [event for event in await events(shared, "a") if event["type"] == "plan"]
    assert [(event["version"], len(event["items"])) for event in planned] == [(1, 3)]


async def test_a_changed_plan_is_its_next_version_and_what_it_dropped_is_shown(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(changing.with_options(task_id="c"))
        await row_soon(shared, "select 1 from task where task_id = 'c' and waiting_for = 'signal go'")
        record = await client.get("c")
        assert record.plan is not None
        assert (record.plan.version, record.plan.note, record.plan.by) == (2, "better known", None)
        assert await _plan(client, "c") == [
            ("second", "doing"), ("item-2", "waiting"), ("third-and-last", "failed"), ("first", "dropped"),
        ]  # fmt: skip
        assert record.left == ["мир"]
        assert (record.doing or "").startswith("step 1 of 3: the second one; waiting: signal go")
        checkpoint = await client.checkpoint("c")
        assert (checkpoint.plan_version, [item.id for item in checkpoint.plan or []]) == (
            2, ["second", "item-2", "third-and-last"],
        )  # fmt: skip
        await client.signal("c", go, "on")
        assert await client.result("c", str, 20) == "on"
        assert (await _plan(client, "c"))[:3] == [
            ("second", "done"), ("item-2", "waiting"), ("third-and-last", "failed"),
        ]  # fmt: skip


async def test_another_plan_in_the_code_is_never_taken_for_the_same(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(audit.with_options(task_id="m"))
        await row_soon(shared, "select 1 from task where task_id = 'm' and waiting_for = 'signal go'")
    code["items"] = ["list", "read", "publish"]
    async with serving(app, shared) as client:
        await client.signal("m", go, "on")
        await status_soon(shared, "m", "paused")
        (reason,) = (await client.get("m")).reasons
        assert (reason.reason, reason.step_id) == ("version_mismatch", "1")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (outside, r"phase\('reed'\) names no item of the plan; its items are: list. Write task.plan\(...\) before"),
        (wrong, "item 'a' comes twice: give each its own id"),
    ],
    ids=["phase", "plan"],
)
async def test_what_is_no_plan_is_refused(shared: Server, kind: Any, said: str) -> None:
    async with serving(app, shared) as client:
        with pytest.raises(TaskFailed, match=said):
            await (await client.submit(kind)).result(20)


async def test_a_new_run_has_no_plan_of_the_old_one(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(again.with_options(task_id="r"), 2)
        await row_soon(shared, "select 1 from task where task_id = 'r' and waiting_for = 'signal go'")
        record = await client.get("r")
        assert record.plan is not None
        assert record.plan.version == 1
    planned = await rows(shared, "select body from fact where task_id = 'r' and type = 'plan'")
    assert [json.loads(row["body"])["version"] for row in planned] == [1, 1, 1]


async def test_another_model_is_told_and_recorded(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(speaks.with_options(task_id="v"))
        await row_soon(shared, "select 1 from task where task_id = 'v' and waiting_for = 'signal go'")
        versions = (await client.get("v")).versions
        assert (versions.model, versions.prompt) == ("m-1", "p-1")
    code["model"] = "m-2"
    async with serving(app, shared) as client:
        await client.signal("v", go, "on")
        assert await client.result("v", str, 20) == "x"
        versions = (await client.get("v")).versions
        assert (versions.model, versions.prompt) == ("m-2", "p-1")
        checkpoint = await client.checkpoint("v")
        assert (checkpoint.model_version, checkpoint.prompt_version) == ("m-2", "p-1")
    said = await told(shared, "v")
    assert [line for line in said if line.startswith("Works with")] == [
        "Works with model m-1, prompt p-1", "Works with model m-2, prompt p-1 (before: m-1, p-1)",
    ]  # fmt: skip
    audited = await rows(shared, "select who, before, after from audit where task_id = 'v' and what = 'version'")
    assert [tuple(row) for row in audited] == [("task speaks", "m-1, p-1", "m-2, p-1")]
