"""A task that freezes or kills its worker convicts itself, and no other; one with a bug fails with its traceback."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from outlive.actors.testing import Server
from tests.chaos.harness import (
    WorkerProcess,
    assert_progress_gapless,
    fetch,
    send,
    submit_many,
    until,
    wait_all_final,
)

HOSTILE: Final = "tests.chaos.hostile:app"
LEASE: Final = 1.5


@asynccontextmanager
async def _fleet(server: Server, size: int) -> AsyncGenerator[Sequence[WorkerProcess]]:
    """Worker processes, each started again whenever it ends, as a service manager would."""
    server = server.with_settings(lease=LEASE, heartbeat=0.3)
    workers = [WorkerProcess(server, HOSTILE) for _ in range(size)]
    keepers = list[asyncio.Task[None]]()
    try:
        for worker in workers:
            await worker.start()
        for worker in workers:
            await worker.ready()
        keepers = [asyncio.create_task(_keep(worker)) for worker in workers]
        yield workers
    finally:
        for keeper in keepers:
            keeper.cancel()
        await asyncio.gather(*keepers, return_exceptions=True)
        for worker in workers:
            await worker.close()


async def _keep(worker: WorkerProcess) -> None:
    while True:
        await worker.exited(within=600)
        await worker.start()
        await worker.ready()


async def _reasons(server: Server, task: str) -> list[dict[str, Any]]:
    rows = await fetch(server, "select reasons from outlive_store.task where task_id = $1", task)
    reasons: list[dict[str, Any]] = json.loads(rows[0]["reasons"] or b"[]")
    return reasons


async def test_a_frozen_event_loop_loses_its_task_after_a_lease_and_ends_with_its_stack_in_the_log(
    shared: Server,
) -> None:
    quick = shared.with_settings(lease=LEASE, heartbeat=0.3)
    async with WorkerProcess(quick, HOSTILE) as one, WorkerProcess(quick, HOSTILE) as two:
        await submit_many(shared, "poison", 1)
        first = await until(
            shared,
            "select w.pid from outlive_store.task join outlive_store.worker w on w.incarnation = owner where steps = 1",
        )
        begun = time.monotonic()
        await until(shared, "select epoch > 1 from outlive_store.task")
        assert time.monotonic() - begun < 5 * LEASE
        frozen = one if one.pid == first else two
        assert await frozen.exited(within=LEASE) == 1
        assert "in spin" in frozen.log and "watchdog was not fed for 1.5 s" in frozen.log


async def test_a_poison_task_is_quarantined_after_three_deaths_and_the_innocent_are_not(shared: Server) -> None:
    async with _fleet(shared, 2):
        innocent = await submit_many(shared, "slow", 2, {"seconds": 1.0})
        (poison,) = await submit_many(shared, "poison", 1)
        await until(shared, "select count(*) = 1 from outlive.task where status = 'paused'", within=60)
        (reason,) = await _reasons(shared, poison)
        assert reason["reason"] == "quarantined" and reason["do"] == f"outlive resume {poison}"
        assert "died 3 times" in reason["message"]
        assert reason["message"].count(", last seen at step 1") == 3, reason["message"]
        await wait_all_final(shared, innocent)
        await assert_progress_gapless(shared, innocent)
        quarantined = await fetch(shared, "select task_id from outlive_store.task where status = 'paused'")
        assert [row["task_id"] for row in quarantined] == [poison]

        await send(shared, poison, "resume", command_id="let-it-out")
        await until(shared, "select count(*) = 1 from outlive_store.death where task_id = $1 and steps >= 0", poison)


@pytest.mark.parametrize("kind", [pytest.param("poison_between", marks=pytest.mark.slow), "killer"])
async def test_whatever_kills_the_worker_is_quarantined(shared: Server, kind: str) -> None:
    """Outside of any step, from the first line on; or by SIGKILL between two steps."""
    async with _fleet(shared, 1):
        (task,) = await submit_many(shared, kind, 1)
        await until(shared, "select status = 'paused' from outlive_store.task", within=60)
        assert [reason["reason"] for reason in await _reasons(shared, task)] == ["quarantined"]
        assert (await fetch(shared, "select count(*) from outlive_store.death"))[0][0] == 3


async def test_tasks_that_wait_do_not_pay_for_a_worker_that_dies(shared: Server) -> None:
    async with WorkerProcess(shared) as worker:
        await submit_many(shared, "waiter", 3)
        await until(shared, "select count(*) = 3 from outlive_store.task where waiting_for is not null")
        for _ in range(3):
            owners = await fetch(shared, "select distinct owner from outlive_store.task")
            await worker.restart()
            await until(
                shared, "select bool_and(owner is not null and owner <> $1) from outlive_store.task", owners[0]["owner"]
            )
        assert (await fetch(shared, "select count(*) from outlive_store.death"))[0][0] == 0
        for task in ("waiter-0", "waiter-1", "waiter-2"):
            await send(shared, task, "signal", command_id=f"go-{task}", name="go", value="on")
        await wait_all_final(shared, ["waiter-0", "waiter-1", "waiter-2"])


@pytest.mark.parametrize(
    ("kind", "error"), [("buggy", "ZeroDivisionError"), ("gives_up", "CancelledError"), ("quits", "SystemExit")]
)
async def test_a_bug_restarts_the_actor_once_and_then_fails_the_task(shared: Server, kind: str, error: str) -> None:
    async with WorkerProcess(shared, HOSTILE) as worker:
        (task,) = await submit_many(shared, kind, 1)
        await wait_all_final(shared, [task], status="failed", within=15)
        await assert_progress_gapless(shared, [task])
        rows = await fetch(
            shared,
            "select f.body, t.epoch from outlive_store.task t join outlive_store.fact f using (tenant, task_id)"
            " where f.seq = t.last_seq",
        )
        failure = json.loads(rows[0]["body"])
        assert error in failure["type"] + failure["message"]
        assert "hostile.py" in failure["traceback"]
        assert rows[0]["epoch"] == (1 if kind == "quits" else 2), "a stored failure is not tried again"
        assert worker.alive and (await fetch(shared, "select count(*) from outlive_store.death"))[0][0] == 0
