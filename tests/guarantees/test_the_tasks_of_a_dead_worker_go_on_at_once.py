"""How long tasks stand still when their worker is killed: not a lease, not a timeout, but moments.

The bounds here are for a loaded machine. What was measured is printed (``pytest -s``).
"""

import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from statistics import median

import anyio
import pytest

from outlive.actors.testing import Server
from outlive.infra import database, sql
from outlive.infra.claims import Claims
from tests.chaos.harness import ROOT, WorkerProcess, assert_progress_gapless, fetch, submit_many, until, wait_all_final

BOUND = 5.0
"""Seconds; a lease is 10."""

OWNED = """
select array_agg(t.task_id)
  from outlive.task t join outlive_store.worker w on w.incarnation = t.owner
 where w.pid = $1 and t.steps > 0
having count(*) >= 5
"""
RESUMED = """
select count(*) = cardinality($1::text[]), extract(epoch from max(first))::float8 - $2::float8 as seconds
  from (select min(at) as first from outlive_store.fact where task_id = any($1) and type = 'resumed' group by task_id) f
"""


async def _stood_still(server: Server, tasks: Sequence[str], since: float) -> float:
    """Wait until each of the tasks has made new progress; seconds from `since` to that of the last one."""
    await until(server, RESUMED, list(tasks), since, within=BOUND)
    [row] = await fetch(server, RESUMED, list(tasks), since)
    return float(row["seconds"])


async def _die(server: Server, worker: WorkerProcess, *, wave: int) -> tuple[list[str], list[str], float]:
    """Kill a worker amid new tasks; all of them, those that it had, and when it was killed."""
    submitted = await submit_many(server, "steps10", 20, {"seconds": 0.1}, name=f"wave{wave}")
    mine = await until(server, OWNED, worker.pid)
    worker.kill()
    return submitted, mine, time.time()


@pytest.mark.parametrize("kills", [2, pytest.param(15, marks=pytest.mark.slow)])
async def test_with_another_worker_alive(shared: Server, kills: int) -> None:
    times: list[float] = []
    async with WorkerProcess(shared) as one, WorkerProcess(shared) as other:
        for wave in range(kills):
            victim = (one, other)[wave % 2]
            submitted, mine, killed = await _die(shared, victim, wave=wave)
            times.append(await _stood_still(shared, mine, killed))
            await wait_all_final(shared, submitted)
            await assert_progress_gapless(shared, submitted)
            await victim.restart()
    print(f"\nkill to new progress of all its tasks: median {median(times):.3f} s, longest {max(times):.3f} s")
    assert max(times) < BOUND


async def test_when_the_only_worker_is_started_again(shared: Server) -> None:
    async with WorkerProcess(shared) as worker:
        submitted, mine, _ = await _die(shared, worker, wave=0)
        await worker.exited()
        started = time.time()
        await worker.restart()
        seconds = await _stood_still(shared, mine, started)
        await wait_all_final(shared, submitted)
        await assert_progress_gapless(shared, submitted)
    interpreter = await _interpreter()
    print(
        f"\nnew process to progress of all tasks: {seconds:.3f} s, of which {interpreter:.3f} s is Python with imports"
    )
    assert seconds < interpreter + BOUND


async def _interpreter() -> float:
    """Seconds in which Python starts and imports what a worker consists of, at best."""
    command = [
        sys.executable,
        "-c",
        "import asyncpg, nats, outlive.actors.worker, tests.chaos.worker_main, tests.chaos.apps",
    ]
    times: list[float] = []
    for _ in range(3):
        began = time.monotonic()
        await anyio.run_process(command, cwd=ROOT, stderr=subprocess.STDOUT)
        times.append(time.monotonic() - began)
    return min(times)


async def test_each_task_goes_to_one_of_those_who_see_the_death(shared: Server) -> None:
    """Two workers with the same list of the dead: what one of them did not win, it does not run."""
    dead, *living = [uuid.uuid4() for _ in range(3)]
    connection = await database.connect(shared.postgres_dsn, application_name="test")
    for me in living:
        await connection.fetchval(sql.load("liveness")["register"], me, 10.0, "host", 1, "1", 1, ["k"], 10)
    await connection.execute(
        "insert into task (tenant, task_id, kind, status, owner, epoch, digest, input)"
        " select 'default', 't' || n, 'k', 'running', $1, 7, '', '' from generate_series(1, 100) n",
        dead,
    )
    async with database.Pool(shared.postgres_dsn, application_name="test", size=4) as pool:
        won: Counter[str] = Counter()
        shares: list[int] = []

        async def take(me: uuid.UUID) -> None:
            claims = Claims(pool, me, ["k"])
            mine = [task for _ in range(20) for task in await claims.take_over({dead: "process ended"}, 10)]
            won.update(task.claim.task_id for task in mine)
            shares.append(len(mine))

        async with anyio.create_task_group() as both:
            for me in living:
                both.start_soon(take, me)
    rows = await connection.fetch(
        "select owner, count(*) as n, min(epoch) as low, max(epoch) as high from task group by 1"
    )
    await connection.close()
    assert len(won) == 100 and set(won.values()) == {1}
    assert sorted(shares) == sorted(row["n"] for row in rows) and 0 not in shares
    assert {(row["low"], row["high"]) for row in rows} == {(8, 8)}
