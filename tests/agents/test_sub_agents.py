"""An agent gives a part of its goal to another one: a child task, with a model and a history of its own."""

import asyncio
from typing import Any

from outlive.actors import App, Task
from outlive.actors.testing import Server
from tests.actors.scene import dying, row_soon, rows, serving
from tests.agents.script import Script, finish


def _app(lead: Script, helper: Script, **options: Any) -> App:
    app = App("family")

    @app.task
    async def shout(task: Task, text: str) -> str:
        """Say it loudly."""
        return text.upper()

    @app.task
    async def fail(task: Task, text: str) -> str:
        """Cannot do it."""
        raise RuntimeError(f"no {text}")

    researcher = app.agent(
        "researcher", model=helper.model, output=int, plans=False, description="Finds out how many there are."
    )
    app.agent("lead", model=lead.model, tools=[researcher, shout, fail], output=str, plans=False, **options)
    return app


async def test_an_agent_is_a_tool_of_another(shared: Server) -> None:
    helper = Script(finish(7))
    lead = Script(
        [("researcher", {"goal": "count them"}), ("shout", {"text": "hello"}), ("fail", {"text": "way"})],
        finish("done"),
    )
    app = _app(lead, helper)
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["lead"].with_options(task_id="family-1"), "go")
        async with asyncio.timeout(60):
            assert await handle.result() == "done"

    assert "researcher: Finds out" not in lead.requests[0]
    assert "# Goal\ncount them" in helper.requests[0]
    assert """tool="researcher" call="researcher('count them')">\n7\n""" in lead.requests[1]
    assert """tool="shout" call="shout('hello')">\nHELLO\n""" in lead.requests[1]
    assert """tool="fail" failed call="fail('way')">\nRuntimeError: no way\n""" in lead.requests[1]
    children = await rows(shared, "select kind, status from task where parent = 'family-1' order by kind")
    assert [tuple(row) for row in children] == [("fail", "failed"), ("researcher", "succeeded"), ("shout", "succeeded")]


async def test_a_lead_that_died_finds_its_children_again(shared: Server) -> None:
    helper = Script([("ask_person", {"question": "How many?"})], finish(7))
    lead = Script([("researcher", {"goal": "count them"})], finish("done"))
    app = _app(lead, helper)
    async with dying(app, shared) as client:
        await client.submit(app.kinds["lead"].with_options(task_id="family-2"), "go")
        query = "select task_id from task where parent = 'family-2' and status = 'paused'"
        async with asyncio.timeout(30):
            while not (found := await rows(shared, query)):  # noqa: ASYNC110  # reason: a table tells no event
                await asyncio.sleep(0.02)
    child = found[0]["task_id"]
    async with serving(app, shared) as client:
        (reason,) = (await client.get(child)).reasons
        await client.answer(child, str(reason.step_id), "seven")
        async with asyncio.timeout(60):
            assert await client.handle("family-2", str).result() == "done"

    assert (len(lead.requests), len(helper.requests)) == (2, 2)
    assert len(await rows(shared, "select 1 from task where parent = 'family-2'")) == 1


async def test_the_leads_model_is_changed_and_its_child_keeps_its_own(shared: Server) -> None:
    old = Script([("researcher", {"goal": "count them"})], name="old")
    helper = Script([("ask_person", {"question": "How many?"})], finish(7), name="of-the-child")
    first = _app(old, helper)
    async with dying(first, shared) as client:
        await client.submit(first.kinds["lead"].with_options(task_id="family-3"), "go")
        query = "select task_id from task where parent = 'family-3' and status = 'paused' and owner is null"
        child = (await row_soon(shared, query))["task_id"]
    new = Script(finish("done"), name="new")
    async with serving(_app(new, helper, on_change="allow"), shared) as client:
        (reason,) = (await client.get(child)).reasons
        await client.answer(child, str(reason.step_id), "seven")
        async with asyncio.timeout(60):
            assert await client.handle("family-3", str).result() == "done"
        models = [(await client.get(task_id)).versions.model for task_id in ("family-3", child)]
    assert models == ["function:new", "function:of-the-child"]
    assert (len(old.requests), len(new.requests), len(helper.requests)) == (1, 1, 2)
    changed = await rows(shared, "select task_id, detail from audit where what = 'version'")
    assert [(row["task_id"], row["detail"]) for row in changed] == [
        ("family-3", "applied: model function:old is now function:new")
    ]
