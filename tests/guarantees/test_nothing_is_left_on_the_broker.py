"""Workers and readers that die leave no consumer behind for long, and nothing outstanding that others must wait for."""

import asyncio
import time

import pytest

from outlive.actors.testing import Server
from outlive.infra import pull
from outlive.infra.bus import Bus
from tests.chaos.harness import WorkerProcess, fetch, submit_many, until, wait_all_final


async def _consumers(server: Server) -> int:
    async with Bus(server.nats_url) as bus:
        streams = (server.subjects.commands_stream, server.subjects.progress_stream)
        return sum([(await bus.api(f"STREAM.INFO.{stream}"))["state"]["consumer_count"] for stream in streams])


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_consumers_of_50_killed_workers_go_by_themselves(shared: Server) -> None:
    async with WorkerProcess(shared) as worker:
        for n in range(50):
            await wait_all_final(shared, await submit_many(shared, "steps10", 2, name=f"round-{n}"))
            await worker.restart()
        ended = time.monotonic()
        while await _consumers(shared) > 1 and time.monotonic() < ended + pull._FORGOTTEN + 10:  # noqa: ASYNC110
            await asyncio.sleep(0.2)
        assert await _consumers(shared) == 1, "the reader of commands, and no other"


async def test_a_killed_worker_holds_no_command_back(shared: Server) -> None:
    """It has read a thousand commands and started a few of them; the next worker needs no time-out to get them."""
    one_by_one = shared.with_settings(slots=5)
    async with WorkerProcess(one_by_one) as greedy:
        tasks = await submit_many(shared, "steps10", 1000)
        await until(shared, "select count(*) >= 500 from outlive_store.task")
        greedy.kill()
        await greedy.exited()
        async with WorkerProcess(shared):
            begun = time.monotonic()
            await until(shared, "select count(*) > 100 from outlive.task where ended_at is not null", within=5)
            assert time.monotonic() - begun < 5
            await wait_all_final(shared, tasks)


async def test_a_stopped_worker_gives_all_it_had_to_the_next_at_once(shared: Server) -> None:
    """Hundreds of tasks waited for a slot when it was stopped: the other starts on them within a second."""
    narrow = shared.with_settings(slots=2)
    async with WorkerProcess(narrow) as stopping:
        await submit_many(shared, "steps10", 500, {"seconds": 0.05})
        await until(shared, "select count(*) = 500 from outlive_store.task")
        async with WorkerProcess(narrow):
            (row,) = await fetch(shared, "select incarnation from outlive_store.worker where pid = $1", stopping.pid)
            stopping.terminate()
            owned = "select count(*) = 0 from outlive_store.task where owner = $1"
            await until(shared, owned, row["incarnation"], within=3)
            before = (await fetch(shared, "select count(*) from outlive.task where ended_at is not null"))[0][0]
            await until(
                shared, "select count(*) > $1 + 2 from outlive.task where ended_at is not null", before, within=3
            )
            assert await stopping.exited(within=5) == 0
