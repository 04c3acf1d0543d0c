"""A worker that stood still for longer than its lease wakes up to find its tasks with another, and steps aside."""

import uuid
from collections.abc import Mapping

import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra import database, sql
from outlive.infra.claims import Claims
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    submit_many,
    until,
    wait_all_final,
)

SHORT: Mapping[str, str] = {"OUTLIVE_LEASE": "1.5", "OUTLIVE_HEARTBEAT": "0.3", "OUTLIVE_SLOTS": "8"}
OWNED = """
select w.incarnation
  from outlive.task t join outlive_store.worker w on w.incarnation = t.owner
 where w.pid = $1 and t.steps > 0 group by 1 having count(*) >= 4
"""


async def test_it_says_fenced_and_ends(shared: Server, service: FakeService) -> None:
    """More tasks are due than there are slots: the one that wakes must not take any of them either."""
    async with (
        WorkerProcess(shared, service=service, environment=SHORT) as frozen,
        WorkerProcess(shared, service=service, environment=SHORT) as other,
    ):
        tasks = await submit_many(shared, "mixed", 40, {"seconds": 0.2})
        me = await until(shared, OWNED, frozen.pid)
        frozen.stop()
        await until(shared, "select not exists (select 1 from outlive.task where owner = $1)", me, within=15)
        before = await _left_by(shared, me)
        frozen.cont()
        assert await frozen.exited() == 1
        assert f"worker {me} was fenced: its lease ran out" in frozen.log
        assert await _left_by(shared, me) == before
        told = "select count(*) as n from outlive_store.audit where who = $1 and what = 'fenced'"
        assert (await fetch(shared, told, f"worker {me}"))[0]["n"] > 0
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        await assert_effects_once(service, 40 * 5)
        assert other.alive and "was fenced" not in other.log


async def _left_by(server: Server, worker: uuid.UUID) -> list[tuple[object, ...]]:
    """What a worker holds and has written."""
    query = """
        select 'task', task_id, '', epoch from outlive_store.task where owner = $1
        union all
        select 'operation', task_id, step_id, attempt from outlive_store.operation where worker = $1 and status <> 'started'
        order by 1, 2, 3
    """
    return [tuple(row) for row in await fetch(server, query, worker)]


@pytest.mark.parametrize("end", ["update worker set fenced = true", "delete from worker"], ids=["fenced", "buried"])
async def test_a_fenced_worker_gets_no_task(shared: Server, end: str) -> None:
    """Nobody would look for the owner of such a task any more."""
    me, dead = uuid.uuid4(), uuid.uuid4()
    connection = await database.connect(shared.postgres_dsn, application_name="test")
    register = sql.load("liveness")["register"]
    await connection.fetchval(register, me, 10.0, "host", 1, "1", 1, ["k"], 10)
    await connection.execute(
        "insert into task (tenant, task_id, kind, digest, input, due_at, owner)"
        " values ('default', 'due', 'k', '', '', now(), null), ('default', 'orphan', 'k', '', '', null, $1)",
        dead,
    )
    async with database.Pool(shared.postgres_dsn, application_name="test") as pool:
        claims = Claims(pool, me, ["k"])
        await connection.execute(end)
        assert await claims.due(10) == [] == await claims.take_over({dead: "process ended"}, 10)
        await connection.execute("delete from worker")
        await connection.fetchval(register, me, 10.0, "host", 1, "1", 1, ["k"], 10)
        assert len(await claims.due(10)) == 1 == len(await claims.take_over({dead: "process ended"}, 10))
    await connection.close()
