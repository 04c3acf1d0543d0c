"""SIGTERM hands everything back and always ends the process; an embedding program keeps its own signal handlers."""

import asyncio
import contextlib
import os
import random
import signal
import time
from typing import Final

import anyio
import pytest

from outlive.actors.testing import FakeService, Server
from outlive.actors.worker import Worker
from tests.chaos import apps
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    frozen,
    submit_many,
    until,
    wait_all_final,
)

HOSTILE: Final = "tests.chaos.hostile:app"
EXTRA: Final = 5.0
"""Seconds beyond the grace within which a process must be gone."""


async def _ended_within(worker: WorkerProcess, seconds: float) -> int:
    """Send SIGTERM and wait; the return code."""
    begun = time.monotonic()
    worker.terminate()
    code = await worker.exited(within=seconds + 20)
    took = time.monotonic() - begun
    assert took <= seconds, f"it took {took:.1f} s to end, not {seconds} s:\n{worker.log[-5000:]}"
    return code


async def _said(worker: WorkerProcess, text: str, times: int = 1) -> None:
    """Return when a worker's process has written a text so often."""
    async with asyncio.timeout(30):
        while worker.log.count(text) < times:  # noqa: ASYNC110  # a file tells no event
            await asyncio.sleep(0.01)


async def _deaths(server: Server) -> int:
    rows = await fetch(server, "select count(*) from outlive_store.death")
    return int(rows[0][0])


async def test_under_load_tasks_go_on_elsewhere_at_once(shared: Server, service: FakeService) -> None:
    """Twenty tasks on a worker that gets SIGTERM: another has them well before a lease is over, and nothing failed."""
    async with WorkerProcess(shared, service=service) as leaving:
        tasks = await submit_many(shared, "mixed", 20, {"seconds": 1.5})
        await until(shared, "select count(*) = 20 from outlive.task where epoch = 1 and status = 'running'")
        async with WorkerProcess(shared, service=service):
            old = await fetch(shared, "select owner from outlive_store.task where owner is not null limit 1")
            begun = time.monotonic()
            leaving.terminate()
            gone = (
                "select count(*) = 0 from outlive_store.task where owner = $1 or (owner is null and ended_at is null)"
            )
            await until(shared, gone, old[0]["owner"], within=4)
            moved = time.monotonic() - begun
            assert await leaving.exited(within=5) == 0
            await wait_all_final(shared, tasks)
            await assert_progress_gapless(shared, tasks)
            await assert_effects_once(service, 100)
            assert moved < 4.0, "a step's rest and a moment, not a lease"
    assert await _deaths(shared) == 0
    workers = await fetch(shared, "select * from outlive_store.worker where incarnation = $1", old[0]["owner"])
    assert not workers, "a worker that ended well has taken its leave"


async def test_a_step_within_the_grace_is_finished_and_a_longer_one_is_handed_back(shared: Server) -> None:
    shared = shared.with_settings(grace=1.5)
    async with WorkerProcess(shared, HOSTILE) as leaving:
        short = await submit_many(shared, "slow", 1, {"seconds": 1.0, "steps": 2}, name="short")
        long = await submit_many(shared, "slow", 1, {"seconds": 3.0}, name="long")
        await _said(leaving, "look begins", times=2)
        assert await _ended_within(leaving, 1.5 + EXTRA) == 0
        rows = await fetch(
            shared, "select task_id, status, steps, owner, due_at from outlive_store.task order by task_id"
        )
        assert [(row["task_id"], row["status"], row["steps"]) for row in rows] == [
            ("long-0", "running", 0),
            ("short-0", "running", 1),
        ]
        assert all(row["owner"] is None and row["due_at"] for row in rows)
        async with WorkerProcess(shared, HOSTILE):
            await wait_all_final(shared, [*short, *long])
            await assert_progress_gapless(shared, [*short, *long])
    failed = await fetch(shared, "select event from outlive_store.fact where status in ('failed', 'unknown')")
    assert not failed and await _deaths(shared) == 0


async def test_an_effect_longer_than_the_grace_is_sent_again_with_its_key(shared: Server, service: FakeService) -> None:
    shared = shared.with_settings(grace=0.5)
    async with WorkerProcess(shared, HOSTILE, service=service) as leaving:
        tasks = await submit_many(shared, "slow_effect", 3, {"seconds": 2.0})
        await until(shared, "select count(*) = 3 from outlive_store.operation")
        assert await _ended_within(leaving, 0.5 + EXTRA) == 0
        async with WorkerProcess(shared, HOSTILE, service=service):
            await wait_all_final(shared, tasks)
            await assert_effects_once(service, 3)
            await assert_progress_gapless(shared, tasks)


@pytest.mark.parametrize("kind", ["hung_thread", "deaf"])
async def test_what_cannot_be_stopped_does_not_hold_the_exit(shared: Server, kind: str) -> None:
    shared = shared.with_settings(grace=0.5)
    async with WorkerProcess(shared, HOSTILE) as leaving:
        await submit_many(shared, kind, 1, {"seconds": 60.0} if kind == "hung_thread" else {})
        await _said(leaving, "hang begins" if kind == "hung_thread" else "deaf begins")
        code = await _ended_within(leaving, 0.5 + EXTRA)
        assert code == (0 if kind == "hung_thread" else 1)
        handed_back = await fetch(shared, "select owner is null and due_at is not null from outlive_store.task")
        assert handed_back[0][0] is (kind == "hung_thread")
        assert ("watchdog was not fed for 5 s" in leaving.log) is (kind == "deaf"), "ended by force, with its stack"


async def test_sigterm_at_any_moment_of_start_and_work_ends_the_process(shared: Server, service: FakeService) -> None:
    await _at_any_moment(shared, service, times=6)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_sigterm_at_50_moments_ends_the_process(shared: Server, service: FakeService) -> None:
    await _at_any_moment(shared, service, times=50)


async def _at_any_moment(server: Server, service: FakeService, *, times: int) -> None:
    server = server.with_settings(grace=1.0)
    tasks = await submit_many(server, "mixed", 10 + 2 * times, {"seconds": 0.1})
    worker = WorkerProcess(server, service=service)
    try:
        for n in range(times):
            await worker.start()
            # The first moments of the interpreter, of the start, and of the work.
            await asyncio.sleep(random.uniform(0, 2.0) if n % 2 else 0.0)
            if n % 2 == 0:
                with contextlib.suppress(AssertionError):
                    await worker.ready()
                await asyncio.sleep(random.uniform(0, 0.5))
            assert await _ended_within(worker, 1.0 + EXTRA) in {0, -signal.SIGTERM}
        await worker.start()
        await wait_all_final(server, tasks, within=90)
        await assert_progress_gapless(server, tasks)
        await assert_effects_once(service, 5 * len(tasks))
    finally:
        await worker.close()


@pytest.mark.parametrize("which", ["nats", pytest.param("postgres", marks=pytest.mark.slow)])
@pytest.mark.parametrize("how", ["gone", pytest.param("frozen", marks=pytest.mark.slow)])
async def test_sigterm_ends_the_process_while_a_server_is_away(
    server: Server, service: FakeService, which: str, how: str
) -> None:
    if server.pair is None:
        pytest.skip("these servers are not ours to stop")
    broken = server.pair.nats if which == "nats" else server.pair.postgres
    server = server.with_settings(grace=0.5, lease=3.0)
    async with WorkerProcess(server, service=service) as worker:
        tasks = await submit_many(server, "mixed", 10, {"seconds": 0.2})
        await until(server, "select count(*) > 5 from outlive.step")
        assert broken.pid is not None
        with frozen(broken.pid) if how == "frozen" else contextlib.nullcontext():
            if how == "gone":
                broken.kill()
            await asyncio.sleep(random.uniform(0, 0.5))
            assert await _ended_within(worker, 0.5 + EXTRA) in {0, 1}
        if how == "gone":
            await broken.start()
        await worker.start()
        await worker.ready()
        await wait_all_final(server, tasks)
        await assert_progress_gapless(server, tasks)
        await assert_effects_once(service, 50)


async def test_an_embedded_worker_leaves_signal_handlers_alone(shared: Server) -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
        async with Worker(apps.app, shared.settings) as worker:
            assert {number: signal.getsignal(number) for number in handlers} == handlers
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.sleep(0.05)
                assert heard == [signal.SIGTERM]
                worker.stop()
                worker.stop()
        assert {number: signal.getsignal(number) for number in handlers} == handlers
    finally:
        signal.signal(signal.SIGTERM, before)
