"""A tool's rate limit is one for all workers, whoever is killed with tokens in hand; who must wait says so, and waits on."""

from collections.abc import Sequence
from typing import Any

import pytest

from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, submit_many, until, wait_all_final
from tests.chaos.limited_app import URL

APP = "tests.chaos.limited_app:app"
CALLS, BURST = 20.0, 3


def worker(shared: Server, service: FakeService, failpoints: str = "", **environment: str) -> WorkerProcess:
    limit = {"LIMITED_CALLS": f"{CALLS}", "LIMITED_BURST": f"{BURST}"}
    own = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5", URL: service.url, **limit, **environment}
    return WorkerProcess(shared, APP, failpoints=failpoints, environment=own)


async def begun(service: FakeService, name: str) -> list[float]:
    """When calls began, by their own word."""
    return sorted(effect.body["began"] for effect in await service.effects(name=name))


def assert_within(times: Sequence[float], calls: float, burst: int) -> None:
    """In no span of time are there more than the burst and what comes in that time."""
    for first, start in enumerate(times):
        for count, end in enumerate(times[first:], 1):
            assert count <= burst + (end - start) * calls + 0.01, f"{count} calls in {end - start:.3f} s"


@pytest.mark.parametrize("kind", ["writes", "reads"])
async def test_two_workers_together_stay_within_the_limit_though_one_is_killed_again_and_again(
    shared: Server, service: FakeService, kind: str
) -> None:
    point = "effect.before=kill@4" if kind == "writes" else ""
    async with worker(shared, service, point) as killed, worker(shared, service):
        tasks = await submit_many(shared, kind, 40)
        if point:
            await killed.exited()  # with a token that it had not spent
        else:
            await until(shared, "select count(*) > 5 from outlive.step where status = 'completed'")
        await killed.restart()
        await until(shared, "select count(*) > 20 from outlive.step where status = 'completed'")
        await killed.restart()
        await wait_all_final(shared, tasks)
        name = kind.removesuffix("s")
        times = await begun(service, name)
        assert len(times) >= 40
        assert_within(times, CALLS, BURST)
        told = await fetch(shared, "select count(*) from outlive.step where status = 'waiting' group by task_id")
        assert told and all(row[0] <= 16 for row in told)
        unknown = await fetch(shared, "select 1 from outlive.operation where status <> 'succeeded'")
        assert not unknown
        await assert_progress_gapless(shared, tasks)


async def test_who_waits_says_so_needs_no_memory_and_keeps_its_turn_when_its_worker_is_killed(
    shared: Server, service: FakeService
) -> None:
    slow = {"LIMITED_CALLS": "1", "LIMITED_PER": "4", "LIMITED_BURST": "1", "OUTLIVE_LINGER": "0"}
    async with worker(shared, service, **slow) as works:
        tasks = await submit_many(shared, "writes", 2)
        waiting = "select count(*) = 1 from outlive.task where owner is null and waiting_for like 'write%' and wait_until is not null"
        await until(shared, waiting)
        query = "select message, wait_until from (select convert_from(event, 'UTF8')::json ->> 'message' as message, wait_until from outlive_store.fact where status = 'waiting') m"
        (told,) = await fetch(shared, query)
        assert told["message"] == f"write: rate limited until {told['wait_until']:%H:%M:%S}: at most 1 call in 4 s"
        assert not await fetch(shared, "select 1 from outlive.operation where status <> 'succeeded'")  # nothing is open
        await works.restart()
        await wait_all_final(shared, tasks)
        first, second = await begun(service, "write")
        assert second - first >= 3.99
        assert [row["message"] for row in await fetch(shared, query)] == [told["message"]]
        await assert_progress_gapless(shared, tasks)


async def test_a_tool_without_a_limit_asks_nobody(shared: Server, service: FakeService) -> None:
    async with worker(shared, service):
        await wait_all_final(shared, await submit_many(shared, "frees", 3))
        rows: list[Any] = await fetch(shared, "select 1 from outlive_store.bucket")
        assert not rows
