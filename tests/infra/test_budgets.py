"""Budgets of trees of tasks: what is lent is what was drawn, nothing is lost between generations, no limit is exceeded."""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

import pytest

from outlive.actors.testing import Server
from outlive.infra.budgets import BLOCK, Budgets, raise_limits
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.records import Claim
from outlive.protocol.budget import Amount, Budget
from outlive.protocol.policy import NO_BUDGET
from tests.infra.pencil import Pencil

ONE: Final = Amount(tokens=100, money=10, steps=1)

BROKEN: Final = """
  select b.task_id, b.drawn, b.used, b.lent, c.drawn as children from budget b cross join lateral (
    select array[coalesce(sum(drawn[1]), 0), coalesce(sum(drawn[2]), 0), coalesce(sum(drawn[3]), 0)]::bigint[] as drawn
      from budget c where c.tenant = b.tenant and c.parent = b.task_id) c
   where b.lent <> c.drawn"""
"""Tasks that have lent something else than their children have drawn."""


class Family:
    """Tasks with budgets, and requests of theirs."""

    def __init__(self, pencil: Pencil) -> None:
        self.pencil = pencil
        self.budgets = Budgets(pencil.pool)
        self._asked = 0
        self._claims: dict[str, Claim] = {}

    async def add(self, task_id: str, parent: str | None = None, budget: Budget = NO_BUDGET) -> None:
        claim = self._claims[task_id] = await self.pencil.task(task_id, parent=parent)
        await self.budgets.open(claim, budget)

    async def ask(self, task_id: str, amount: Amount = ONE) -> str | None:
        """Reserve for one request; whose limit of what is in the way, or None."""
        self._asked += 1
        request = (str(self._asked), 1)
        short = await self.budgets.reserve(self._claims[task_id], request, "m", amount, priced=True)
        return None if short is None else f"{short.task_id} {short.what}"

    async def settle(self, task_id: str, amount: Amount) -> None:
        await self.budgets.settle(self._claims[task_id], str(self._asked), 1, amount)

    async def end(self, task_id: str, status: str = "succeeded") -> None:
        await self.pencil.pool.execute("update task set status = $2 where task_id = $1", task_id, status)

    async def used(self, task_id: str) -> Amount:
        return Amount(*await self.pencil.pool.fetchval("select used from budget where task_id = $1", task_id))

    async def check(self) -> None:
        assert [dict(row) for row in await self.pencil.pool.fetch(BROKEN)] == []


@pytest.fixture
async def family(shared: Server) -> AsyncIterator[Family]:
    async with (
        Bus.of(shared.settings, name="test") as bus,
        Pool(shared.postgres_dsn, application_name="test", size=8) as pool,
    ):
        made = Family(Pencil(pool, bus, shared.subjects))
        yield made
        await made.check()


async def _spend_all(family: Family, task_id: str) -> int:
    """Ask until something is in the way; how often it was let."""
    for number in range(10_000):
        if await family.ask(task_id) is not None:
            return number
    raise AssertionError("nothing limits it")


@pytest.mark.parametrize("limit", [Budget(tokens=3000), Budget(money=0.0003), Budget(steps=30)])
async def test_children_one_after_the_other_use_the_whole_of_it(family: Family, limit: Budget) -> None:
    await family.add("root", budget=limit)
    for number in range(29):
        await family.add(f"child-{number}", "root")
        assert await family.ask(f"child-{number}") is None
        await family.end(f"child-{number}", ["succeeded", "failed", "cancelled"][number % 3])
        await family.check()
    assert await family.ask("root") is None
    assert await family.ask("root") is not None


async def test_what_grandchildren_left_comes_back_through_a_living_parent(family: Family) -> None:
    await family.add("root", budget=Budget(tokens=3000))
    await family.add("lead", "root")
    for number in range(30):
        await family.add(f"helper-{number}", "lead")
        assert await family.ask(f"helper-{number}") is None, number
        await family.end(f"helper-{number}")
        await family.check()
    await family.add("one-more", "lead")
    assert await family.ask("one-more") == "root tokens"


async def test_what_grandchildren_left_comes_back_when_their_parent_has_ended(family: Family) -> None:
    await family.add("root", budget=Budget(tokens=3000))
    for number in range(3):
        await family.add(f"lead-{number}", "root")
        await family.add(f"helper-{number}", f"lead-{number}")
        assert await family.ask(f"helper-{number}") is None
        await family.end(f"lead-{number}")
    for number in range(3):
        await family.end(f"helper-{number}")  # after its parent
    assert await _spend_all(family, "root") == 27


async def test_what_cost_less_or_more_than_was_reserved_is_settled_above_when_it_is_needed(family: Family) -> None:
    await family.add("root", budget=Budget(tokens=3000))
    await family.add("cheap", "root")
    assert await family.ask("cheap") is None
    await family.settle("cheap", Amount(tokens=1, steps=1))
    await family.end("cheap")
    await family.add("dear", "root")
    assert await family.ask("dear") is None
    await family.settle("dear", Amount(tokens=1000, steps=1))
    await family.end("dear")
    assert await family.ask("root", Amount(tokens=2000, steps=1)) == "root tokens"
    assert await family.ask("root", Amount(tokens=1999, steps=1)) is None


async def test_a_failed_child_that_goes_on_draws_anew(family: Family) -> None:
    await family.add("root", budget=Budget(tokens=1000))
    await family.add("child", "root")
    assert await family.ask("child") is None
    await family.end("child", "failed")
    assert await _spend_all(family, "root") == 9
    await family.end("child", "running")
    assert await family.ask("child") == "root tokens"
    await _raise(family, "child", Budget(tokens=1500))
    assert await _spend_all(family, "child") == 5


async def test_many_at_once_exceed_nothing(family: Family) -> None:
    await family.add("root", budget=Budget(tokens=10_000))
    for number in range(4):
        await family.add(f"lead-{number}", "root")
        await family.add(f"helper-{number}", f"lead-{number}")
    members = [f"{name}-{number}" for name in ("lead", "helper") for number in range(4)]

    async with asyncio.timeout(60):
        counts = await asyncio.gather(*(_spend_all(family, task_id) for task_id in members))

    assert sum(counts) <= 100
    assert sum(counts) > 100 - len(members) * BLOCK
    assert sum([(await family.used(task_id)).tokens for task_id in members]) == 100 * sum(counts)


async def test_limits_are_raised_while_others_draw(family: Family) -> None:
    await family.add("root", budget=Budget(tokens=100))
    await family.add("lead", "root")
    for number in range(3):
        await family.add(f"helper-{number}", "lead")

    async def raises() -> None:
        for number in range(60):
            await _raise(family, f"helper-{number % 3}", Budget(tokens=100 * (number + 1)))

    async def asks(task_id: str) -> None:
        for _ in range(40):
            await family.ask(task_id)

    async with asyncio.timeout(60):
        await asyncio.gather(raises(), *(asks(f"helper-{number}") for number in range(3)))
    assert await family.pencil.pool.fetchval("select tokens from budget where task_id = 'root'") == 6000


async def _raise(family: Family, task_id: str, budget: Budget) -> None:
    async with family.pencil.pool.acquire() as connection, connection.transaction():
        await raise_limits(connection, [("default", task_id, budget)])


async def test_the_time_of_an_ancestor_is_over_for_all_below(family: Family) -> None:
    await family.add("root", budget=Budget(seconds=60))
    await family.add("lead", "root")
    await family.add("helper", "lead")
    assert await family.ask("helper") is None
    await family.pencil.pool.execute("update budget set started_at = started_at - interval '61 s'")
    assert await family.ask("helper") == "root seconds", "though it has drawn enough for more requests"
    await _raise(family, "helper", Budget(seconds=600))
    assert await family.ask("helper") is None


async def test_the_submit_of_a_durable_function_limits_what_it_starts(family: Family) -> None:
    asked = b'{"input":{},"goal":null,"policy":{"budget":{"steps":3}}}'
    await family.pencil.task("function", input=asked)
    for number in range(2):
        await family.add(f"agent-{number}", "function")
    counts = [await _spend_all(family, f"agent-{number}") for number in range(2)]
    assert counts == [3, 0]
