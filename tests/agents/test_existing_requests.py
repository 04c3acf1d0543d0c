"""The requests of an agent of pydantic-ai count against budgets, and go to no other model without a word."""

import asyncio
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage

from outlive.actors import App, TaskFailed
from outlive.actors.agents.existing import declare_existing, durable_tool
from outlive.actors.testing import Server
from outlive.protocol.budget import Budget
from tests.actors.scene import dying, row_soon, rows, serving, status_soon, told
from tests.agents.script import Script, finish

CALLS = 3
"""So many tools are called before the model is done."""


class Model:
    """Calls ``look`` again and again; each request is counted and costs 900 tokens."""

    def __init__(self, name: str = "old", *, hangs_at: int | None = None) -> None:
        self.asked = 0
        self.hangs_at = hangs_at
        self.reached = asyncio.Event()
        self.model = FunctionModel(self._answer, model_name=name)

    async def _answer(self, messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        self.asked += 1
        if self.asked == self.hangs_at:
            self.reached.set()
            await asyncio.sleep(60)
        looked = sum(part.part_kind == "tool-return" for message in messages for part in message.parts)
        part = ToolCallPart("look", {}) if looked < CALLS else TextPart("done")
        return ModelResponse(parts=[part], usage=RequestUsage(input_tokens=850, output_tokens=50))


def _app(model: Model, *, hangs: asyncio.Event | None = None, **options: Any) -> App:
    app, agent = App("requests"), Agent(model.model, name="clerk", model_settings={"max_tokens": 60})

    @agent.tool_plain(metadata=durable_tool(read_only=True))
    async def look() -> str:
        if hangs is not None and model.asked == 2:
            hangs.set()
            await asyncio.sleep(60)
        return "seen"

    declare_existing(app, agent, **options)
    return app


async def _spent(shared: Server, task_id: str) -> list[int]:
    (row,) = await rows(shared, "select used from budget where task_id = $1", task_id)
    used: list[int] = row["used"]
    return used


async def test_it_stops_before_the_request_that_would_exceed_and_goes_on_with_more(shared: Server) -> None:
    model = Model()
    app = _app(model, budget=Budget(tokens=2000), prices={"function:old": (1.0, 10.0)})
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["clerk"].with_options(task_id="spends"), "go")
        await status_soon(shared, "spends", "paused")
        (reason,) = (await client.get("spends")).reasons
        assert (reason.reason, reason.do) == ("budget", "outlive resume spends --raise-budget tokens=N")
        assert reason.message.startswith("budget used: 1,800 of 2,000 tokens (task spends)")
        assert model.asked == 2

        await client.resume("spends", raise_budget=Budget(tokens=5000))
        assert await handle.result(timeout=30) == "done"
        spending = (await client.get("spends")).spending
    assert spending is not None
    assert (spending.requests, spending.lost, spending.tokens) == (4, 0, 4 * 900)
    assert await _spent(shared, "spends") == [4 * 900, 4 * (850 + 500), 4]


async def test_a_submit_tightens(shared: Server) -> None:
    model = Model()
    app = _app(model)
    async with serving(app, shared) as client:
        await client.submit(app.kinds["clerk"].with_options(task_id="tight", budget=Budget(steps=1)), "go")
        await status_soon(shared, "tight", "paused")
        (reason,) = (await client.get("tight")).reasons
    assert reason.message.startswith("budget used: 1 of 1 steps")
    assert model.asked == 1


async def test_it_draws_from_the_agent_that_gives_it_a_goal(shared: Server) -> None:
    model = Model()
    app = _app(model)
    lead = Script([("clerk", {"goal": "look"})], finish(1), tokens=(850, 50))
    app.agent(
        "lead", model=lead.model, tools=[app.kinds["clerk"]], output=int, plans=False, output_tokens=50,
        budget=Budget(steps=3),
    )  # fmt: skip
    async with serving(app, shared) as client:
        await client.submit(app.kinds["lead"].with_options(task_id="lead"), "go")
        child = await row_soon(shared, "select task_id from task where parent = 'lead' and status = 'paused'")
        (reason,) = (await client.get(child["task_id"])).reasons
    assert reason.message.startswith("budget used: 3 of 3 steps (task lead)")
    assert model.asked == 2


async def test_a_crash_in_a_request_keeps_its_reservation(shared: Server) -> None:
    model = Model(hangs_at=2)
    app = _app(model, budget=Budget(tokens=100_000))
    async with dying(app, shared) as client:
        await client.submit(app.kinds["clerk"].with_options(task_id="lost"), "go")
        await asyncio.wait_for(model.reached.wait(), 30)
    async with serving(app, shared) as client:
        assert await client.result("lost", str, timeout=30) == "done"

    query = "select step_id, attempt, amount[1] as tokens, settled from spend where task_id = 'lost' order by step_id, attempt"
    spends = [tuple(row) for row in await rows(shared, query)]
    assert [(step, attempt, settled) for step, attempt, _, settled in spends] == [
        ("request-1", 1, True), ("request-2", 1, False), ("request-2", 2, True), ("request-3", 1, True), ("request-4", 1, True),
    ]  # fmt: skip
    kept = spends[1][2]
    assert kept > 60, "the most that an answer may take, and what was asked"
    assert await _spent(shared, "lost") == [4 * 900 + kept, 0, 5]


async def _begun_under_another(shared: Server, task_id: str) -> None:
    begun = asyncio.Event()
    old = _app(Model("old"), hangs=begun)
    async with dying(old, shared) as client:
        await client.submit(old.kinds["clerk"].with_options(task_id=task_id), "go")
        await asyncio.wait_for(begun.wait(), 30)


AUDITED = "select who, before, after from audit where task_id = $1 and what = 'version'"


@pytest.mark.parametrize("policy", ["pause", "allow"])
async def test_another_model_is_asked_about_or_told(shared: Server, policy: str) -> None:
    await _begun_under_another(shared, policy)
    new = Model("new")
    async with serving(_app(new, on_change=policy), shared) as client:
        if policy == "pause":
            await status_soon(shared, "pause", "paused")
            assert new.asked == 0
            (reason,) = (await client.get("pause")).reasons
            assert "model function:old is now function:new" in reason.message
            await client.answer("pause", str(reason.step_id), "go on")
        assert await client.result(policy, str, timeout=30) == "done"
    assert new.asked == 2, "the two answers that were stored are not asked for again, and it is asked about once"
    changed = "(model function:old is now function:new)"
    assert [message for message in await told(shared, policy) if changed in message] == [
        f"clerk asks its model {changed}"
    ]
    audited = await rows(shared, AUDITED, policy)
    assert [(row["who"], row["before"][:12], row["after"][:12]) for row in audited] == [
        ("agent clerk", "function:old", "function:new")
    ]


async def test_the_first_request_in_flight_is_asked_about_too(shared: Server) -> None:
    old, new = Model("old", hangs_at=1), Model("new")
    app = _app(old)
    async with dying(app, shared) as client:
        await client.submit(app.kinds["clerk"].with_options(task_id="first"), "go")
        await asyncio.wait_for(old.reached.wait(), 30)
    async with serving(_app(new), shared) as client:
        await status_soon(shared, "first", "paused")
        assert new.asked == 0
        (reason,) = (await client.get("first")).reasons
        await client.answer("first", str(reason.step_id), "go on")
        assert await client.result("first", str, timeout=30) == "done"
    assert len(await rows(shared, AUDITED, "first")) == 1


async def test_a_person_may_stop_instead(shared: Server) -> None:
    await _begun_under_another(shared, "stops")
    new = Model("new")
    async with serving(_app(new), shared) as client:
        await status_soon(shared, "stops", "paused")
        (reason,) = (await client.get("stops")).reasons
        await client.answer("stops", str(reason.step_id), "stop")
        with pytest.raises(TaskFailed, match="stopped by a person: model function:old is now function:new"):
            await client.result("stops", str, timeout=30)
    assert new.asked == 0


async def test_whoever_wants_a_yes_for_every_effect_is_not_asked_about_requests(shared: Server) -> None:
    model = Model()
    app = _app(model)
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["clerk"].with_options(requires_approval=True), "go")
        assert await handle.result(timeout=30) == "done"
    assert model.asked == 4
