"""The right to write is lost task by task: its actor begins nothing more, the others of its worker notice nothing."""

import asyncpg

from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    submit_many,
    until,
    wait_all_final,
)

STARTED = "select count(*) >= 10 from outlive.operation"


async def _execute(server: Server, statement: str) -> None:
    connection = await asyncpg.connect(server.postgres_dsn)
    await connection.execute(statement)
    await connection.close()


async def _requests(service: FakeService, task: str) -> int:
    return sum(n for key, n in (await service.counts()).requests.items() if f"/{task}:" in key)


async def test_its_next_effect_never_starts(shared: Server, service: FakeService) -> None:
    async with WorkerProcess(shared, service=service) as worker:
        tasks = await submit_many(shared, "mixed", 20, {"seconds": 0.2})
        await until(shared, STARTED)
        await _execute(
            shared,
            "update outlive_store.task set owner = gen_random_uuid(), epoch = epoch + 1 where task_id = 'mixed-7'",
        )
        intents = await fetch(shared, "select step_id from outlive.operation where task_id = 'mixed-7'")
        await wait_all_final(shared, [task for task in tasks if task != "mixed-7"])
        assert await fetch(shared, "select step_id from outlive.operation where task_id = 'mixed-7'") == intents
        assert await _requests(service, "mixed-7") == len(intents), "only what was intended before"
        told = "select count(*) = 1 from outlive_store.audit where task_id = 'mixed-7' and what = 'fenced'"
        await until(shared, told)
        moved = await fetch(shared, "select task_id from outlive.task where epoch > 1")
        assert [row["task_id"] for row in moved] == ["mixed-7"]
        await _execute(
            shared,
            "update outlive_store.task set owner = null, epoch = epoch + 1, due_at = now() where owner is not null",
        )
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        await assert_effects_once(service, 100)
        assert worker.alive


async def test_a_row_that_moved_on_is_read_again_and_the_task_does_not_fail(
    shared: Server, service: FakeService
) -> None:
    """The owner is the same and the version another one: the actor begins again from what the table says."""
    async with WorkerProcess(shared, service=service) as worker:
        tasks = await submit_many(shared, "mixed", 4, {"seconds": 0.3})
        await until(shared, "select count(*) >= 4 from outlive.operation")
        await _execute(shared, "update outlive_store.task set version = version + 100 where task_id = 'mixed-1'")
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        await assert_effects_once(service, 20)
        assert worker.alive
