"""A task that kills its worker each time is told from one that raises, and from its neighbours; people requeue or drop it."""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

import psutil
import pytest

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    send,
    submit_many,
    until,
    wait_all_final,
)

MEMORY: Final = 100 << 20
"""Bytes that a worker may take before it is killed, as a container's limit would have it."""


@contextlib.asynccontextmanager
async def _limited(server: Server, service: FakeService) -> AsyncGenerator[WorkerProcess]:
    """A worker that is killed (SIGKILL) when it takes too much memory, and is started again whenever it has ended."""
    quick = server.with_settings(lease=3, heartbeat=0.3)
    async with WorkerProcess(quick, "tests.chaos.hostile:app", service=service) as worker:
        minding = asyncio.create_task(_mind(worker))
        try:
            yield worker
        finally:
            minding.cancel()
            await asyncio.wait([minding])


async def _mind(worker: WorkerProcess) -> None:
    while True:
        process = psutil.Process(worker.pid)
        own = process.memory_info().rss
        while worker.alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.memory_info().rss > own + MEMORY:
                    worker.kill()
                    await worker.exited()
            await asyncio.sleep(0.01)  # memory tells no event
        await worker.start()
        await worker.ready()


async def _quarantined(server: Server, *tasks: str) -> list[dict[str, Any]]:
    """Wait until these are in quarantine; the reasons."""
    query = "select count(*) = $2::int from outlive_store.task where task_id = any($1) and status = 'paused' and owner is null"
    await until(server, query, list(tasks), len(tasks), within=60)
    rows = await fetch(server, "select reasons from outlive_store.task where task_id = any($1)", list(tasks))
    return [reason for row in rows for reason in json.loads(row["reasons"])]


async def _typed(server: Server, *words: str) -> None:
    """Type a command of the command line."""
    environment = {**os.environ, **server.environment}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "outlive", *words, env=environment, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


async def test_it_convicts_itself_and_people_let_it_go_on_or_drop_it(
    shared: Server, service: FakeService, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    async with _limited(shared, service), Client(shared.settings, by="ann") as client:
        neighbours = await submit_many(shared, "innocent", 3, {"steps": 3, "seconds": 0.3})
        [poison] = await submit_many(shared, "hungry", 1, {"mended": str(mended)})
        [raising] = await submit_many(shared, "raises", 1)
        [reason] = await _quarantined(shared, poison)
        assert (reason["reason"], reason["do"]) == ("quarantined", f"outlive resume {poison}")
        assert "died 3 times" in reason["message"]
        assert reason["message"].count("process ended, last seen at step") == 3, "each death with its reason"
        assert f"outlive cancel {poison}" in reason["message"]

        await wait_all_final(shared, [raising], status="failed")
        failure = (await client.get(raising)).failure
        assert failure is not None
        assert "MemoryError" in failure.message + failure.type, "who raises is told, and kills nobody"

        await wait_all_final(shared, neighbours)
        await assert_effects_once(service, 9)
        convicted = await fetch(
            shared, "select task_id from outlive_store.death where steps >= 0 group by 1 having count(*) > 2"
        )
        assert [row[0] for row in convicted] == [poison]

        mended.touch()
        await client.resume(poison)
        assert await client.result(poison, int, timeout=30) == 0
        await assert_progress_gapless(shared, [poison, raising, *neighbours])


@pytest.mark.slow
async def test_requeue_and_drop_by_the_command_line_python_and_nats(
    shared: Server, service: FakeService, tmp_path: Path
) -> None:
    mended = tmp_path / "mended"
    ways = ("command-line", "python", "nats")
    again, dropped = [f"again-{n}" for n in range(3)], [f"dropped-{n}" for n in range(3)]
    async with _limited(shared, service), Client(shared.settings, by="ann") as client:
        for name in ("again", "dropped"):
            await submit_many(shared, "hungry", len(ways), {"mended": str(mended)}, name=name)
        await _quarantined(shared, *again, *dropped)

        await _typed(shared, "cancel", dropped[0])
        await client.cancel(dropped[1])
        await send(shared, dropped[2], "cancel", command_id="drop")
        await wait_all_final(shared, dropped, status="cancelled")

        mended.touch()
        await _typed(shared, "resume", again[0])
        await client.resume(again[1])
        await send(shared, again[2], "resume", command_id="requeue")
        await wait_all_final(shared, again)
        await assert_progress_gapless(shared, [*again, *dropped])
