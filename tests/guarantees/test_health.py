"""What stands still is told within three periods; such a worker claims nothing, and leaves when it cannot recover."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from outlive.actors.ends import WorkerUnhealthy
from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from outlive.infra import failpoints
from outlive.infra.bus import Bus, Disconnected
from outlive.infra.database import Unreachable
from tests.chaos import apps
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, submit_many, until, wait_all_final
from tests.infra.proxy import Proxy

QUICK: Final[dict[str, Any]] = {"lease": 1.5, "heartbeat": 0.2, "patience": 1.5, "grace": 0.5}
"""Three periods are 0.6 s."""


async def _eventually(check: Callable[[], bool], within: float = 5.0) -> None:
    async with asyncio.timeout(within):
        while not check():  # noqa: ASYNC110  # nothing tells
            await asyncio.sleep(0.01)


async def test_a_healthy_worker_tells_its_lags_through_the_api(shared: Server) -> None:
    quick = shared.with_settings(**QUICK)
    async with Worker(apps.app, quick.settings) as worker:
        await submit_many(shared, "steps10", 3)
        await wait_all_final(shared, [f"steps10-{n}" for n in range(3)])
        await until(
            shared,
            "select health ->> 'last_command' <> '' and health ->> 'last_commit' <> '' from outlive_store.worker",
        )
        async with Bus(shared.nats_url) as bus:
            answer = await bus.request(shared.subjects.api("default", "health"))
        report = json.loads(answer.data)
        (record,) = report["workers"]
        assert record["incarnation"] == str(worker.incarnation) == report["ingester"]
        assert record["health"]["problems"] == []
        assert set(record["health"]["lags"]) == {"heartbeat", "journal", "relay", "ingester", "loop"}
        assert all(0 <= lag < 5 for lag in record["health"]["lags"].values())
        assert record["health"]["last_command"] and record["health"]["last_commit"]
        assert report["commands_behind"] == 0


@pytest.mark.parametrize(
    ("point", "name"),
    [("ingest.before_commit", "ingester"), ("outcome.before_commit", "journal"), ("publish.before", "relay")],
)
async def test_what_hangs_is_named_and_nothing_is_claimed_until_it_goes_on(
    shared: Server, point: str, name: str
) -> None:
    quick = shared.with_settings(**{**QUICK, "patience": 60.0})
    failpoints.arm(point, "hang")
    async with Worker(apps.app, quick.settings) as worker:
        tasks = await submit_many(shared, "steps10", 1)
        await _eventually(lambda: any(problem.startswith(f"{name} is ") for problem in worker._problems))
        await until(shared, "select health::text like $1 from outlive_store.worker", f"%{name} is %")
        assert worker.supervisor is not None and not worker.supervisor.healthy
        # Whatever is due now waits for a healthy worker.
        await fetch(
            shared,
            "insert into outlive_store.task (tenant, task_id, kind, digest, input, due_at)"
            " values ('default', 'waits', 'steps10', '', '{}', outlive.clock())",
        )
        worker.supervisor.due()
        await asyncio.sleep(0.5)
        assert (await fetch(shared, "select owner from outlive_store.task where task_id = 'waits'"))[0]["owner"] is None
        failpoints.disarm()
        await wait_all_final(shared, [*tasks, "waits"])
        await assert_progress_gapless(shared, [*tasks, "waits"])
        await _eventually(lambda: not worker._problems)


async def test_a_blocked_loop_is_told_when_it_goes_on(shared: Server) -> None:
    """While it stands still the heartbeat stops: the lease runs out although the process lives."""
    quick = shared.with_settings(
        **QUICK,
    )
    async with WorkerProcess(quick) as worker:
        (row,) = await fetch(shared, "select until from outlive_store.worker")
        await submit_many(shared, "blocker", 1, {"seconds": 1.2})
        await until(shared, "select count(*) = 1 from outlive_store.task where status = 'running'")
        await until(shared, "select until < outlive.clock() + interval '0.9 s' from outlive_store.worker", within=3)
        assert row["until"] is not None
        await wait_all_final(shared, ["blocker-0"])
        assert worker.alive


async def test_a_worker_without_nats_gives_up_with_exit_code_1_and_names_what_is_wrong(shared: Server) -> None:
    quick = shared.with_settings(**QUICK)
    async with Proxy(shared.nats_url) as proxy, WorkerProcess(quick.with_settings(nats_url=proxy.url)) as worker:
        tasks = await submit_many(shared, "steps10", 3, {"seconds": 0.5})
        await until(shared, "select count(*) = 3 from outlive_store.task where status = 'running'")
        proxy.refuse = True
        proxy.cut()
        assert await worker.exited(within=12) == 1
        assert "WorkerUnhealthy: unhealthy for 2 s: " in worker.log and "NATS is out of reach" in worker.log
        async with WorkerProcess(quick):
            await wait_all_final(shared, tasks)
            await assert_progress_gapless(shared, tasks)


async def test_an_ingester_that_never_moves_again_makes_the_worker_leave(shared: Server) -> None:
    """Deaf, while heartbeats flow: what a worker must not be."""
    quick = shared.with_settings(**QUICK)
    async with WorkerProcess(quick, failpoints="ingest.before_commit=hang") as deaf:
        tasks = await submit_many(shared, "steps10", 1)
        assert await deaf.exited(within=12) == 1
        assert "ingester is" in deaf.log
        async with WorkerProcess(quick):
            await wait_all_final(shared, tasks)


@pytest.mark.parametrize(
    "point",
    [
        "ingest.before_commit",
        "outcome.after_commit",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in ("claim.before", "claim.after", "outcome.before_commit")
        ),
    ],
)
async def test_a_service_that_fails_by_surprise_is_restarted_and_all_goes_on(shared: Server, point: str) -> None:
    failpoints.arm(point, "error", after=2 if point.startswith("ingest") else 1)
    async with Worker(apps.app, shared.settings) as worker:
        incarnation = worker.incarnation
        tasks = await submit_many(shared, "steps10", 5)
        await _eventually(lambda: failpoints.hits(point) > 0)
        tasks += await submit_many(shared, "steps10", 5, name="later")
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        assert worker.incarnation == incarnation
        assert failpoints.hits(point) > 1
    assert not await fetch(shared, "select 1 from outlive_store.worker"), "it took its leave"


async def test_a_heartbeat_that_is_restarted_keeps_the_tasks(shared: Server) -> None:
    """Its connection may be broken in a way that nobody foresaw."""
    async with Worker(apps.app, shared.with_settings(**QUICK).settings) as worker:
        tasks = await submit_many(shared, "steps10", 5, {"seconds": 0.2})
        await until(shared, "select count(*) = 5 from outlive_store.task where owner is not null")
        before = worker.heartbeat
        before._failed = RuntimeError("nobody foresaw this")
        await _eventually(lambda: worker.heartbeat is not before)
        await wait_all_final(shared, tasks)
        await assert_progress_gapless(shared, tasks)
        assert (await fetch(shared, "select count(*) from outlive_store.death"))[0][0] == 0


async def test_a_claim_whose_worker_goes_on_without_it_starts_within_a_lease(shared: Server) -> None:
    """The claim is committed and its answer never comes back: the table says whose it is."""
    async with WorkerProcess(shared, failpoints="claim.after=hang"):
        tasks = await submit_many(shared, "steps10", 5)
        await until(shared, "select bool_and(owner is not null) and count(*) = 5 from outlive_store.task")
        await wait_all_final(shared, tasks, within=5)


async def test_a_worker_that_misses_its_heartbeat_right_after_a_claim_loses_the_tasks_within_a_lease(
    shared: Server,
) -> None:
    quick = shared.with_settings(lease=1.5, heartbeat=0.3)
    async with WorkerProcess(quick) as late:
        tasks = await submit_many(shared, "steps10", 5, {"seconds": 0.1})
        await until(shared, "select count(*) = 5 from outlive_store.task where owner is not null")
        late.stop()
        async with WorkerProcess(quick):
            await wait_all_final(shared, tasks, within=12)
            await assert_progress_gapless(shared, tasks)
        late.cont()


async def test_without_postgres_a_worker_says_so_at_once(shared: Server) -> None:
    settings = shared.with_settings(postgres_dsn="postgresql://me:secret@127.0.0.1:1/tasks").settings
    with pytest.raises(Unreachable, match=r"no connection to Postgres at 127\.0\.0\.1:1/tasks: .*Is the server up"):
        await Worker(apps.app, settings).run()


async def test_without_nats_a_worker_says_so_and_leaves_nothing_behind(
    shared: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outlive.infra.bus.CONNECT_TIMEOUT", 0.5)
    settings = shared.with_settings(nats_url="nats://127.0.0.1:1").settings
    with pytest.raises(Disconnected, match=r"no connection to NATS at nats://127\.0\.0\.1:1: .*Is the server up"):
        await Worker(apps.app, settings).run()
    sessions = "select count(*) = 0 from pg_stat_activity where datname = current_database() and application_name like 'outlive:%'"
    await until(shared, sessions, within=3)


async def test_an_embedded_worker_raises_its_one_error(shared: Server) -> None:
    failpoints.arm("ingest.before_commit", "hang")
    await submit_many(shared, "steps10", 1)
    with pytest.raises(WorkerUnhealthy, match="ingester is "):
        await Worker(apps.app, shared.with_settings(**{**QUICK, "patience": 0.5}).settings).run()
    assert (await fetch(shared, "select count(*) from outlive_store.task"))[0][0] == 0
