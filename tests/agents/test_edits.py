"""A person changes an agent's plan while it waits, or while the model decides: the next decision goes by it, once."""

import asyncio
from typing import Any

import pytest
from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo

from outlive.actors import App, RetryPolicy, TaskFailed
from outlive.actors.testing import Server
from outlive.protocol.plan import Item
from tests.actors.scene import dying, rows, serving, soon, status_soon, told
from tests.agents.script import Script, finish, plan

OTHER = [Item("list", "list"), Item("mail", "mail it", ["list"])]


class Slow(Script):
    """A script whose second answer is thought over until it is let go."""

    def __init__(self, *turns: Any) -> None:
        super().__init__(*turns)
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        if len(self.requests) == 1:
            self.reached.set()
            await self.open.wait()
        return await super()._answer(messages, info)


def _app(script: Script, **options: Any) -> App:
    app = App("edits")

    @app.tool(read_only=True)
    def look(what: str) -> str:
        """Look at something."""
        return f"seen {what}"

    app.agent("clerk", model=script.model, instructions="Work.", tools=[look], output=str, **options)
    return app


async def test_a_plan_that_is_changed_while_the_agent_waits_is_the_one_it_goes_on_by(shared: Server) -> None:
    script = Script(
        plan("list", "read"), [("ask_person", {"question": "Which?"})],
        [("look", {"what": "x", "plan_item": "list"})], finish("done"),
    )  # fmt: skip
    app = _app(script)
    async with dying(app, shared) as client:
        await client.submit(app.kinds["clerk"].with_options(task_id="edited"), "do it")
        await status_soon(shared, "edited", "paused")
        await client.edit_plan("edited", 1, OTHER, reason="mail, do not read")
    async with serving(app, shared) as client:
        (reason,) = (await client.get("edited")).reasons
        await client.answer("edited", reason.step_id or "", "this one")
        assert await client.result("edited", str, 30) == "done"
        record = await client.get("edited")
    assert "Plan, version 2" in script.requests[2]
    assert "tester has changed the plan: it is version 2 now" in script.requests[2]
    assert "read" not in script.requests[2].partition("# Plan, version 2")[2].partition("\n\n")[0]
    assert record.plan is not None
    assert (record.plan.version, record.plan.by, record.plan.note) == (2, "tester", "mail, do not read")
    assert [(item.id, str(item.status)) for item in record.plan.items] == [
        ("list", "done"), ("mail", "waiting"), ("read", "dropped"),
    ]  # fmt: skip
    assert {"step 1 of 2: look", "Goes on by version 2 of the plan, made by tester"} <= {*await told(shared, "edited")}


async def test_a_new_plan_of_the_model_that_comes_second_is_passed_over(shared: Server) -> None:
    script = Slow(
        plan("list", "read"), plan("list", "write"), [("look", {"what": "x", "plan_item": "list"})], finish("done")
    )
    app = _app(script)
    async with serving(app, shared) as client:
        await client.submit(app.kinds["clerk"].with_options(task_id="raced"), "do it")
        await asyncio.wait_for(script.reached.wait(), 30)
        await client.edit_plan("raced", 1, OTHER)
        query = "select 1 from fact where task_id = 'raced' and type = 'plan' and inbox_pos is not null"
        await soon(lambda: rows(shared, query))
        script.open.set()
        assert await client.result("raced", str, 30) == "done"
        record = await client.get("raced")
    assert "a person has changed the plan meanwhile: yours was passed over" in script.requests[2]
    assert record.plan is not None
    assert (record.plan.version, record.plan.by) == (2, "tester")
    assert "A new plan was passed over: a person has changed the plan meanwhile" in await told(shared, "raced")


async def _stopped(client: Any, shared: Server, app: App, task_id: str) -> None:
    """The model gives nothing, a person has it stopped, the task fails."""
    await client.submit(app.kinds["clerk"].with_options(task_id=task_id), "do it")
    await _say(client, shared, task_id, "stop")
    with pytest.raises(TaskFailed, match="nobody there"):
        await client.result(task_id, str, 30)


async def _say(client: Any, shared: Server, task_id: str, word: str) -> None:
    await status_soon(shared, task_id, "paused")
    (reason,) = (await client.get(task_id)).reasons
    assert reason.message.endswith("Ask it again? (ask again / stop)")
    await client.answer(task_id, str(reason.step_id), word)


ONCE = RetryPolicy(max_attempts=1)
DOWN = ConnectionRefusedError("nobody there")


async def test_a_stopped_agent_goes_on_by_an_edited_plan_and_asks_its_model_again(shared: Server) -> None:
    script = Script(plan("list", "read"), DOWN, [("look", {"what": "x", "plan_item": "list"})], finish("done"))
    app = _app(script, retries=ONCE)
    async with serving(app, shared) as client:
        await _stopped(client, shared, app, "mended")
        await client.edit_plan("mended", 1, OTHER)
        assert await client.result("mended", str, 30) == "done"
        record = await client.get("mended")
    assert "tester has changed the plan: it is version 2 now" in script.requests[2]
    assert len(script.requests) == 4
    assert record.plan is not None
    assert [(item.id, str(item.status)) for item in record.plan.items][:2] == [("list", "done"), ("mail", "waiting")]


async def test_a_stopped_agent_that_is_retried_asks_the_person_anew(shared: Server) -> None:
    script = Script(plan("list"), DOWN, finish("done"))
    app = _app(script, retries=ONCE)
    async with serving(app, shared) as client:
        await _stopped(client, shared, app, "retried")
        await client.retry("retried")
        await _say(client, shared, "retried", "ask again")
        assert await client.result("retried", str, 30) == "done"
    assert len(script.requests) == 3
