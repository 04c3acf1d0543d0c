"""Whatever happens to the link and to the stream: every command that is stored is applied once, in its task's order."""

import asyncio
import contextlib
import json
import random
import shutil
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import nats
import nats.errors
import pytest
from nats.js.errors import APIError, NoStreamResponseError

from outlive.actors.testing import Server
from tests.chaos.harness import (
    WorkerProcess,
    assert_progress_gapless,
    fetch,
    submit_many,
    until,
    wait_all_final,
)
from tests.infra.proxy import Proxy

TASKS = 4


@contextlib.asynccontextmanager
async def _stream(server: Server) -> AsyncGenerator[Any]:
    """JetStream, over a link that nobody cuts."""
    connection = await nats.connect(server.nats_url, max_reconnect_attempts=-1, reconnect_time_wait=0.1)
    try:
        yield connection.jetstream(timeout=2)
    finally:
        await connection.close()


async def _go(stream: Any, server: Server, tasks: Sequence[str], numbers: range, *, ids: bool = True) -> None:
    """Send each task the numbers as signals, in order; again until it is stored (with an id that is safe)."""
    for n in numbers:
        for task in tasks:
            body = {"type": "signal", "by": "test", "name": "go", "value": str(n)}
            if ids:
                body["command_id"] = f"{task}-{n}"
            await _stored(stream, server.subjects.command("default", task, "signal"), json.dumps(body).encode())


async def _stored(stream: Any, subject: str, body: bytes) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                await stream.publish(subject, body)
            except (nats.errors.Error, APIError, NoStreamResponseError):
                await asyncio.sleep(0.05)
            else:
                return


async def _results(server: Server) -> list[list[str]]:
    rows = await fetch(
        server,
        "select f.body from outlive_store.task t join outlive_store.fact f using (tenant, task_id)"
        " where f.seq = t.last_seq order by t.task_id",
    )
    return [json.loads(row["body"]) for row in rows]


async def _taken(server: Server, count: int) -> None:
    await until(server, "select bool_and(inbox_head >= $1 and applied = inbox_head) from outlive_store.task", count)


def _numbers(count: int) -> list[list[str]]:
    return [[str(n) for n in range(count)]] * TASKS


async def test_cut_links_skip_and_repeat_nothing(shared: Server) -> None:
    await _cut(shared, cuts=8)


@pytest.mark.slow
async def test_50_cut_links_skip_and_repeat_nothing(shared: Server) -> None:
    await _cut(shared, cuts=50)


async def _cut(server: Server, *, cuts: int) -> None:
    """The link of both workers breaks in the middle of a batch: some of its messages come, the rest is lost."""
    count = 5 * cuts
    async with (
        Proxy(server.nats_url) as proxy,
        WorkerProcess(server.with_settings(nats_url=proxy.url)) as one,
        WorkerProcess(server.with_settings(nats_url=proxy.url)) as two,
        _stream(server) as stream,
    ):
        tasks = await submit_many(server, "collector", TASKS, {"count": count})
        for cut in range(cuts):
            await asyncio.sleep(random.uniform(0.05, 0.3))
            proxy.answers_left = random.randrange(6)
            await _go(stream, server, tasks, range(5 * cut, 5 * cut + 5))
            proxy.answers_left = None
            proxy.cut()
        await wait_all_final(server, tasks)
        assert await _results(server) == _numbers(count)
        await assert_progress_gapless(server, tasks)
        assert one.alive and two.alive


async def test_a_command_stream_that_is_deleted_and_made_anew_skips_nothing(shared: Server) -> None:
    async with WorkerProcess(shared), WorkerProcess(shared), _stream(shared) as stream:
        tasks = await submit_many(shared, "collector", TASKS, {"count": 30})
        for start in (0, 10, 20):
            await _go(stream, shared, tasks, range(start, start + 10))
            await _taken(shared, start + 10)
            await stream.delete_stream(shared.subjects.commands_stream)
        await wait_all_final(shared, tasks)
        assert await _results(shared) == _numbers(30)
        await assert_progress_gapless(shared, tasks)


@pytest.mark.parametrize("ids", [True, False], ids=["with ids", "without ids"])
async def test_a_stream_whose_end_was_cut_off_skips_nothing(server: Server, tmp_path: Path, *, ids: bool) -> None:
    """An older copy of NATS's store is put back: sequences are given a second time, to other commands."""
    if server.pair is None:
        pytest.skip("these servers are not ours to kill")
    bus, store = server.pair.nats, server.pair.nats.folder / "jetstream"
    async with WorkerProcess(server), _stream(server) as stream:
        tasks = await submit_many(server, "collector", TASKS, {"count": 20})
        await _go(stream, server, tasks, range(5), ids=ids)
        await _taken(server, 5)
        await bus.stop()
        shutil.copytree(store, tmp_path / "copy")
        await bus.start()
        await _go(stream, server, tasks, range(5, 10), ids=ids)
        await _taken(server, 10)
        bus.kill()
        shutil.rmtree(store)
        shutil.copytree(tmp_path / "copy", store)
        await bus.start()
        await _go(stream, server, tasks, range(10, 20), ids=ids)
        await wait_all_final(server, tasks)
        assert await _results(server) == _numbers(20)
        await assert_progress_gapless(server, tasks)
