"""A person changes an agent's plan while it waits, or while the model decides: the next decision goes by it, once."""

import asyncio
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelResponse
from pydantic_ai.models.function import AgentInfo

from outlive.actors import App
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


def _app(script: Script) -> App:
    app = App("edits")

    @app.tool(read_only=True)
    def look(what: str) -> str:
        """Look at something."""
        return f"seen {what}"

    app.agent("clerk", model=script.model, instructions="Work.", tools=[look], output=str)
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
