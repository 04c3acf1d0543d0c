"""The same refund asked for twice, by one task or by two in two workers, is one effect; another amount is a person's."""

import asyncio
import json
from typing import Any

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.commands import Approve, Reject, Resolve, Skip
from tests.chaos.harness import (
    WorkerProcess,
    assert_progress_gapless,
    fetch,
    some,
    submit_many,
    until,
    wait_all_final,
)

APP = "tests.chaos.consent_app:app"
PAUSED = "select count(*) = $1 from outlive.task where status = 'paused'"
WAITS = "select count(*) > 0 from outlive.task where waiting_for like 'step % of task %'"
KILLED = ["intent.before_commit", "intent.after_commit", "effect.before", "effect.after", "outcome.before_commit"]


def worker(shared: Server, service: FakeService, failpoints: str = "") -> WorkerProcess:
    short = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5", "OUTLIVE_LINGER": "1"}
    return WorkerProcess(shared, APP, service=service, failpoints=failpoints, environment=short)


async def told(shared: Server, task: str) -> str:
    rows = await fetch(shared, "select event from outlive_store.fact where task_id = $1 order by seq", task)
    return "\n".join(json.loads(row["event"])["message"] for row in rows)


async def test_twice_in_one_task_is_one_effect(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings) as client:
        tasks = await submit_many(shared, "refunds", 1, {"order": "o-1", "cents": [500, 500]})
        await wait_all_final(shared, tasks)
        first, second = await client.result("refunds-0", list[int])
        assert first == second
        assert (await service.counts()).names == {"refund": 1}
        assert "refund 500 for o-1: same as step 1 of task refunds-0, not sent again" in await told(shared, "refunds-0")
        ledger = (await client.operations("refunds-0")).operations
        assert [(each.status, each.note) for each in ledger] == [
            ("succeeded", None),
            ("prepared", "same as step 1 of task refunds-0, not sent again"),
        ]


async def test_two_tasks_racing_in_two_workers_are_one_effect(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), worker(shared, service):
        orders = [f"o-{n}" for n in range(10)]
        submits = (submit_many(shared, "refunds", 4, {"order": each, "cents": [500]}, name=each) for each in orders)
        tasks = [task for batch in await asyncio.gather(*submits) for task in batch]
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"refund": 10}
        notes = "select count(*) from outlive.operation where status = 'prepared' and note like 'same as step 1 of task o-%'"
        assert (await fetch(shared, notes))[0][0] == 30
        await assert_progress_gapless(shared, tasks)


@pytest.mark.parametrize("point", some(KILLED, KILLED[0], KILLED[-1]))
async def test_killed_on_the_way_is_one_effect(shared: Server, service: FakeService, point: str) -> None:
    async with worker(shared, service, f"{point}=kill") as killed:
        tasks = await submit_many(shared, "refunds", 3, {"order": "o-1", "cents": [500]})
        await killed.exited()
        async with worker(shared, service):
            await killed.restart()
            await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"refund": 1}
        await assert_progress_gapless(shared, tasks)


@pytest.mark.parametrize(
    ("command", "ends", "effects"),
    [
        (Approve(operation_id="2"), [1, 2, 1], 2),
        (Reject(operation_id="2", reason="no"), [1, "Rejected", 1], 1),
        (Skip(step_id="2", result=7), [1, 7, 1], 1),
    ],
)
async def test_other_arguments_are_a_persons(
    shared: Server, service: FakeService, command: Any, ends: list[int | str], effects: int
) -> None:
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        await submit_many(shared, "refunds", 1, {"order": "o-1", "cents": [500, 900, 500]})
        await until(shared, PAUSED, 1)
        (reason,) = (await client.get("refunds-0")).reasons
        assert 'refund("o-1", 900) was not sent' in reason.message
        assert 'refund("o-1", 500)' in reason.message
        assert "outlive skip refunds-0 2 RESULT" in reason.message
        await client.command("refunds-0", command)
        assert await client.result("refunds-0", list[int | str], timeout=20) == ends
        assert (await service.counts()).names == {"refund": effects}


async def test_what_waits_for_a_yes_is_waited_for(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings) as client:
        await submit_many(shared, "payment", 1, {"order": "o-1"}, name="first")
        await until(shared, PAUSED, 1)
        await submit_many(shared, "payment", 1, {"order": "o-1"}, name="second")
        await until(shared, WAITS)
        await until(shared, "select count(*) = 1 from outlive.task where task_id = 'second-0' and owner is null")
        assert "waits for step 1 of task first-0, the same action" in await told(shared, "second-0")
        await client.command("first-0", Approve(operation_id="1"))
        assert await client.result("first-0", str, timeout=20) == "paid 1"
        assert await client.result("second-0", str, timeout=30) == "paid 1"
        assert (await service.counts()).names == {"pay": 1}


async def test_a_no_counts_for_the_same_call_of_another_task(shared: Server, service: FakeService) -> None:
    async with worker(shared, service), Client(shared.settings, by="ann") as client:
        await submit_many(shared, "payment", 1, {"order": "o-1"}, name="first")
        await until(shared, PAUSED, 1)
        await client.command("first-0", Reject(operation_id="1", reason="paid in cash"))
        await wait_all_final(shared, ["first-0"])
        await submit_many(shared, "payment", 1, {"order": "o-1"}, name="second")
        await wait_all_final(shared, ["second-0"])
        refused = await client.result("second-0", str)
        assert refused == "pay was refused by ann: paid in cash (asked by step 1 of task first-0)"
        await submit_many(shared, "payment", 1, {"order": "o-1", "cents": 400}, name="third")
        await until(shared, PAUSED, 1)  # another call: asked


async def test_what_was_not_sent_is_taken_over(shared: Server, service: FakeService) -> None:
    await service.behave("fail", name="refund", status=403)
    async with worker(shared, service), Client(shared.settings) as client:
        await wait_all_final(shared, await submit_many(shared, "refunds", 1, {"order": "o-1", "cents": [500, 900]}))
        assert await client.result("refunds-0", list[int | str]) == ["HTTPStatusError", 1]
        await submit_many(shared, "payment", 1, {"order": "o-2"}, name="first")
        await until(shared, PAUSED, 1)
        await client.cancel("first-0")
        await submit_many(shared, "payment", 1, {"order": "o-2", "cents": 900}, name="second")
        await until(shared, PAUSED, 1)
        await client.command("second-0", Approve(operation_id="1"))
        assert await client.result("second-0", str, timeout=20) == "paid 2"
        assert (await service.counts()).names == {"refund": 1, "pay": 1}


async def test_an_unknown_outcome_is_waited_for(shared: Server, service: FakeService) -> None:
    await service.behave("lose_answer", name="charge")
    async with worker(shared, service), Client(shared.settings) as client:
        await submit_many(shared, "charges", 2, {"order": "o-1"})  # unique within its task alone
        await until(shared, "select count(*) = 1 from outlive.task where status = 'succeeded'")
        await until(shared, PAUSED, 1)
        (unknown,) = await fetch(shared, "select task_id from outlive.task where status = 'paused'")
        await client.command(unknown["task_id"], Resolve(operation_id="1", verdict="happened", result=77))
        assert await client.result(unknown["task_id"], list[int], timeout=20) == [77, 77]
        assert (await service.counts()).names == {"charge": 2}


async def test_an_action_sent_under_a_new_key_is_made_once_as_well(shared: Server, service: FakeService) -> None:
    await service.behave("drop", name="charge")
    async with worker(shared, service), Client(shared.settings) as client:
        await submit_many(shared, "charges", 1, {"order": "o-1"})
        await until(shared, PAUSED, 1)
        await client.resolve("charges-0", "1", "did_not_happen", new_operation=True)
        assert await client.result("charges-0", list[int], timeout=20) == [1, 1]
        assert (await service.counts()).requests == {"default/charges-0:1:1": 1, "default/charges-0:1:2": 1}
