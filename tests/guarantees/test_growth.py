"""A task may be long and many may wait: the last step costs what the first did, and who waits costs a row."""

import asyncio
import gc
import itertools
import statistics
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

import psutil
import pytest

from outlive.actors.flow import Flow
from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from outlive.infra.bus import Bus
from outlive.protocol import codec
from tests.chaos.harness import (
    WorkerProcess,
    assert_progress_gapless,
    fetch,
    submit_many,
    wait_all_final,
)
from tests.guarantees.growing import app

GROWING: Final = "tests.guarantees.growing:app"
PAYLOAD: Final = 1000
"""Bytes of a result or argument."""
BYTES_PER_STEP: Final = 600
"""What a step may store besides its payload: its event (some 250 bytes of JSON), names, digest, times, row headers, and
for an effect its operation."""
SLOTS: Final = 50
LINGERING: Final = 100 * 2 * SLOTS
"""KiB of those that have not waited long enough to leave memory."""

STORED: Final = """
select (select sum(pg_column_size(f.*)) from outlive_store.fact f where f.task_id = $1)
     + (select sum(pg_column_size(o.*)) from outlive_store.operation o where o.task_id = $1)
     + (select pg_column_size(t.*) from outlive_store.task t where t.task_id = $1) as bytes
"""
WAITING: Final = (
    "select count(*) filter (where waiting_for is not null) as waiting, count(owner) as owned from outlive_store.task"
)
STEPS: Final = "select seq, at from outlive_store.fact where task_id = $1 and type = 'step' order by seq"
WOKEN: Final = """
select extract(epoch from max(f.at) - min(y.received_at))::float8
  from outlive_store.inbox y join outlive_store.fact f on f.tenant = y.tenant and f.task_id = y.task_id
 where y.verb = 'signal' and f.type = $1
"""


@pytest.mark.parametrize("steps", [400, pytest.param(5000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_the_last_step_of_a_long_task_costs_what_the_first_did(shared: Server, steps: int) -> None:
    async with WorkerProcess(shared, GROWING) as worker:
        [task] = await submit_many(shared, "grow", 1, {"steps": steps, "size": PAYLOAD})
        await _waiting(shared, 1)
        _assert_as_cheap_at_the_end([row["at"].timestamp() for row in await fetch(shared, STEPS, task)])
        await _assert_stored_once(shared, task, steps)
        await worker.restart()
        await _signal(shared, [task])
        await wait_all_final(shared, [task])
        await _assert_resumed_quickly(shared, task)
        await assert_progress_gapless(shared, [task])


def _assert_as_cheap_at_the_end(times: Sequence[float]) -> None:
    """Compare the medians of the first and the last fifth, two steps at a time (a result and an effect)."""
    costs = [after - before for before, after in itertools.pairwise(times[::2])]
    fifth = len(costs) // 5
    first, last = statistics.median(costs[:fifth]), statistics.median(costs[-fifth:])
    print(f"{len(times)} steps: {first * 1e3:.2f} ms for two at the start, {last * 1e3:.2f} ms at the end")
    assert last < 4 * first


async def _assert_stored_once(server: Server, task: str, steps: int) -> None:
    [row] = await fetch(server, STORED, task)
    more = (int(row["bytes"]) - steps * PAYLOAD) / steps
    print(f"{steps} steps: {more:.0f} bytes a step besides its payload of {PAYLOAD}")
    assert row["bytes"] <= steps * (1.2 * PAYLOAD + BYTES_PER_STEP)


async def _assert_resumed_quickly(server: Server, task: str) -> None:
    """From the signal to the next step: a small part of what the steps took, since none of them ran again."""
    *before, _, _ = [row["at"] for row in await fetch(server, STEPS, task)]
    ran = (before[-1] - before[0]).total_seconds()
    [(seconds,)] = [tuple(row) for row in await fetch(server, WOKEN, "step")]
    print(f"{len(before)} steps took {ran:.2f} s; {seconds * 1e3:.0f} ms from the signal to the next step")
    [(bodies,)] = [
        tuple(row) for row in await fetch(server, "select count(*) from outlive.step where status = 'completed'")
    ]
    assert bodies == len(before) + 1
    assert seconds < max(ran / 5, 2.0)


@pytest.mark.parametrize("tasks", [500, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(300)])])
async def test_who_waits_leaves_memory_and_comes_back(shared: Server, tasks: int) -> None:
    async with WorkerProcess(shared, GROWING, environment={"OUTLIVE_SLOTS": str(SLOTS)}, forks=False) as worker:
        process = psutil.Process(worker.pid)
        await _warm(shared)
        before = _memory(process)
        began = time.monotonic()
        names = await submit_many(shared, "wait", tasks)
        await _waiting(shared, tasks, owned=2 * SLOTS)
        print(f"{tasks} tasks wait after {time.monotonic() - began:.1f} s")
        await _assert_idle(process)
        assert _memory(process) - before <= max(2 * tasks, LINGERING), "KiB"
        await _signal(shared, names)
        await wait_all_final(shared, names, within=120)
        [(seconds,)] = [tuple(row) for row in await fetch(shared, WOKEN, "status")]
        print(f"all ended {seconds:.1f} s after the first signal")
        await assert_progress_gapless(shared, names)


async def test_what_is_let_go_or_has_ended_is_freed_at_once(shared: Server) -> None:
    """Nothing is left for the garbage collector, whose pauses would grow with the number of tasks."""
    gc.disable()
    try:
        async with Worker(app, shared.with_settings(linger=0.0).settings):
            names = await submit_many(shared, "wait", 20)
            await _waiting(shared, len(names), owned=0)
            await _nothing_left(names)
            await _signal(shared, names)
            await wait_all_final(shared, names)
            await _nothing_left(names)
    finally:
        gc.enable()


async def _nothing_left(names: Collection[str]) -> None:
    def left() -> bool:
        return any(isinstance(each, Flow) and each.claim.task_id in names for each in gc.get_objects())

    async with asyncio.timeout(5):  # its last events are on their way
        while left():  # noqa: ASYNC110  # memory tells no asyncio.Event
            await asyncio.sleep(0.1)


async def _warm(server: Server) -> None:
    """Let the worker have held as many tasks as it can, so that its code, pools and buffers are there."""
    names = await submit_many(server, "wait", 4 * SLOTS, name="warm")
    await _waiting(server, len(names), owned=2 * SLOTS)
    await _signal(server, names)
    await wait_all_final(server, names)
    await fetch(server, "delete from outlive_store.inbox where verb = 'signal'")


async def _assert_idle(process: psutil.Process) -> None:
    """Nothing is looked at because it waits."""
    used = sum(process.cpu_times()[:2])
    await asyncio.sleep(3)
    used = (sum(process.cpu_times()[:2]) - used) / 3
    print(f"idle: {used:.1%} of a core")
    assert used < 0.1


def _memory(process: psutil.Process) -> float:
    """Unshared memory in KiB."""
    kib = process.memory_full_info().uss / 1024
    print(f"memory: {kib:.0f} KiB")
    return kib


async def _waiting(server: Server, tasks: int, *, owned: int = 1) -> None:
    """Return when so many tasks wait, and not more than `owned` of them in memory; asks rarely, to be no load itself."""
    async with asyncio.timeout(100):
        while True:
            [row] = await fetch(server, WAITING)
            if row["waiting"] >= tasks and row["owned"] <= owned:
                return
            await asyncio.sleep(0.1)


async def _signal(server: Server, tasks: Sequence[str]) -> None:
    """Send each task its signal, as fast as one connection can."""
    async with Bus.of(server.settings, name="signals") as bus:
        for start in range(0, len(tasks), 500):
            await asyncio.gather(*(_send(server, bus, task) for task in tasks[start : start + 500]))


def _send(server: Server, bus: Bus, task: str) -> Any:
    body = {"type": "signal", "command_id": f"go-{task}", "name": "go", "value": 7}
    return bus.publish_tracked(server.subjects.command(server.settings.tenant, task, "signal"), codec.encode(body))
