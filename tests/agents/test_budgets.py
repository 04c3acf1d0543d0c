"""What a tree of tasks may spend on models holds, whoever dies; the call that would exceed it is not made."""

import asyncio
from typing import Any

import pytest

from outlive.actors import App, Task
from outlive.actors.agents.decisions import Usage
from outlive.actors.agents.spending import cost
from outlive.actors.testing import Server
from outlive.protocol.budget import Budget
from outlive.protocol.errors import CommandRefused
from tests.actors.scene import dying, row_soon, rows, serving, status_soon
from tests.agents.script import Script, finish

PAUSED_CHILD = "select task_id from task where parent = 'budget-5' and status = 'paused'"


def _work(number: int) -> list[tuple[str, dict[str, Any]]]:
    return [("count", {"n": number})]


def _app(script: Script, **options: Any) -> App:
    app = App("budgets")

    @app.tool(read_only=True)
    async def count(n: int) -> int:
        """Count."""
        return n

    app.agent("spender", model=script.model, tools=[count], output=int, plans=False, output_tokens=50, **options)
    return app


async def _spent(shared: Server, task_id: str) -> tuple[list[int], list[int]]:
    (row,) = await rows(shared, "select used, lent from budget where task_id = $1", task_id)
    return row["used"], row["lent"]


async def test_it_stops_before_the_call_that_would_exceed(shared: Server) -> None:
    script = Script(*map(_work, range(15)), finish(1), tokens=(850, 50))
    app = _app(script, budget=Budget(tokens=10_000))
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["spender"].with_options(task_id="budget-1"), "go")
        await status_soon(shared, "budget-1", "paused")
        assert len(script.requests) == 11
        (reason,) = (await client.get("budget-1")).reasons
        assert reason.reason == "budget"
        assert reason.message.startswith("budget used: 9,900 of 10,000 tokens")
        assert reason.do == "outlive resume budget-1 --raise-budget tokens=N"

        with pytest.raises(CommandRefused, match="raise-budget"):
            await client.resume("budget-1")
        await client.resume("budget-1", raise_budget=Budget(tokens=20_000))

        async with asyncio.timeout(60):
            assert await handle.result() == 1
    assert len(script.requests) == 16
    assert (await _spent(shared, "budget-1"))[0] == [16 * 900, 0, 16]


async def test_a_crash_in_a_call_keeps_its_reservation(shared: Server) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def stuck(_: str) -> Any:
        reached.set()
        await gate.wait()
        return finish(1)

    script = Script(_work(1), stuck, finish(1), tokens=(850, 50))
    app = _app(script, budget=Budget(tokens=100_000))
    async with dying(app, shared) as client:
        await client.submit(app.kinds["spender"].with_options(task_id="budget-2"), "go")
        await asyncio.wait_for(reached.wait(), 30)
    async with serving(app, shared) as client, asyncio.timeout(60):
        assert await client.handle("budget-2", int).result() == 1

    spends = await rows(
        shared,
        "select step_id, attempt, amount, settled from spend where task_id = $1 order by step_id::int, attempt",
        "budget-2",
    )
    shown = [(row["step_id"], row["attempt"], row["settled"]) for row in spends]
    assert shown == [("1", 1, True), ("3", 1, False), ("3", 2, True)]
    lost = spends[1]["amount"][0]
    assert lost > 50, "the reservation of the call that nobody knows the cost of"
    assert (await _spent(shared, "budget-2"))[0] == [900 + lost + 900, 0, 3]


async def test_a_call_that_was_turned_away_costs_nothing(shared: Server) -> None:
    script = Script(ConnectionRefusedError("nobody there"), finish(1), tokens=(850, 50))
    app = _app(script, budget=Budget(tokens=100_000))
    async with serving(app, shared) as client, asyncio.timeout(60):
        handle = await client.submit(app.kinds["spender"].with_options(task_id="budget-3"), "go")
        await handle.result()

    assert (await _spent(shared, "budget-3"))[0] == [900, 0, 1]


async def test_a_submit_tightens(shared: Server) -> None:
    script = Script(_work(1), _work(2), finish(1), tokens=(850, 50))
    app = _app(script, budget=Budget(steps=100))
    async with serving(app, shared) as client:
        kind = app.kinds["spender"].with_options(task_id="budget-4", budget=Budget(steps=2))
        await client.submit(kind, "go")
        await status_soon(shared, "budget-4", "paused")
        (reason,) = (await client.get("budget-4")).reasons

    assert reason.message.startswith("budget used: 2 of 2 steps")


async def test_children_draw_from_their_parent_and_give_back(shared: Server) -> None:
    child, lead = Script(*map(_work, range(30)), finish(7), tokens=(850, 50)), Script(tokens=(850, 50))
    app = _app(child)
    lead = Script([("spender", {"goal": "one"})], [("spender", {"goal": "two"})], finish(2), tokens=(850, 50))
    app.agent(
        "lead", model=lead.model, tools=[app.kinds["spender"]], output=int, plans=False, output_tokens=50,
        budget=Budget(tokens=20_000),
    )  # fmt: skip
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["lead"].with_options(task_id="budget-5"), "go")
        child_id = (await row_soon(shared, PAUSED_CHILD))["task_id"]
        (reason,) = (await client.get(child_id)).reasons
        assert "of 20,000 tokens (task budget-5)" in reason.message
        (own, lent) = await _spent(shared, "budget-5")
        assert own[0] + lent[0] <= 20_000

        await client.resume(child_id, raise_budget=Budget(tokens=100_000))
        async with asyncio.timeout(60):
            assert await handle.result() == 2

    total = (len(lead.requests) + len(child.requests)) * 900
    children = await rows(shared, "select used, drawn from budget where parent = 'budget-5'")
    assert sum(row["used"][0] for row in children) + (await _spent(shared, "budget-5"))[0][0] == total
    assert all(row["drawn"][0] >= row["used"][0] for row in children)


async def test_a_child_may_be_given_less_than_its_parent_has(shared: Server) -> None:
    script = Script(*map(_work, range(5)), finish(1), tokens=(850, 50))
    app = _app(script)

    @app.task
    async def share(task: Task) -> int:
        return await task.spawn(app.kinds["spender"].with_options(budget=Budget(steps=2)), "go")

    async with serving(app, shared) as client:
        handle = await client.submit(share.with_options(task_id="budget-8", budget=Budget(steps=100)))
        child = (await row_soon(shared, "select task_id from task where parent = 'budget-8' and status = 'paused'"))[0]
        (reason,) = (await client.get(child)).reasons
        assert reason.message.startswith(f"budget used: 2 of 2 steps (task {child})")
        await client.resume(child, raise_budget=Budget(steps=50))
        async with asyncio.timeout(60):
            assert await handle.result() == 1
    used, lent = await _spent(shared, "budget-8")
    assert (used[2], lent[2] >= 6) == (0, True), "what the child spends is its parent's, too"


def test_prices() -> None:
    assert cost("openai:gpt-5", Usage(input=1_000_000), {}) == 1_250_000
    assert cost("function:script", Usage(input=1000), {}) is None
    assert cost("function:script", Usage(input=1000, output=10), {"function:script": (2.0, 10.0)}) == 2100


async def test_money_without_a_price_asks_nobody_for_anything(shared: Server) -> None:
    script = Script(finish(1))
    app = _app(script, budget=Budget(money=1.0))
    async with serving(app, shared) as client:
        await client.submit(app.kinds["spender"].with_options(task_id="budget-6"), "go")
        await status_soon(shared, "budget-6", "paused")
        (reason,) = (await client.get("budget-6")).reasons

    assert "the price of model" in reason.message
    assert not script.requests


async def test_what_is_paid_is_told_and_what_a_crash_did_not_repeat(shared: Server) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def stuck(_: str) -> Any:
        reached.set()
        await gate.wait()
        return finish(1)

    script = Script(_work(1), _work(2), stuck, finish(1), tokens=(850, 50))
    app = _app(script, prices={"function:scripted": (1.0, 10.0)})
    async with dying(app, shared) as client:
        await client.submit(app.kinds["spender"].with_options(task_id="budget-7"), "go")
        await asyncio.wait_for(reached.wait(), 30)
    async with serving(app, shared) as client, asyncio.timeout(60):
        await client.handle("budget-7", int).result()
        spending = (await client.get("budget-7")).spending

    assert spending is not None
    assert (spending.requests, spending.lost, spending.kept, spending.unpriced) == (4, 1, 2, 0)
    assert spending.tokens > 3 * 900
    assert spending.money > 3 * (850 * 1.0 + 50 * 10.0) / 1_000_000
    assert spending.budget is None
