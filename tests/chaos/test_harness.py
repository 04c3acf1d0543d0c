"""The proofs must fail when there is something to find."""

import json
from collections.abc import Sequence
from typing import Any

import asyncpg
import nats
import pytest

from outlive.actors.chaoskit.processes import WorkerEnded
from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import WorkerProcess, assert_effects_once, assert_progress_gapless, fetch, read_progress


async def test_a_whole_story_passes(shared: Server) -> None:
    await _tell(shared, "a", [1, 2, 3], [1, 2, 3])
    await assert_progress_gapless(shared, ["a"])
    assert [seq for seq, _ in (await read_progress(shared))["a"]] == [1, 2, 3]


@pytest.mark.parametrize(
    ("history", "stream"),
    [
        ([1, 3], [1, 3]),
        ([1, 2, 3], [1, 3]),
        ([1, 2, 3], [1, 2, 2, 3]),
        ([1, 2, 3], [1, 3, 2]),
        ([1, 2, 3], [1, 2]),
        ([1, 2], [1, 2, 3]),
    ],
    ids=["gap in both", "gap", "duplicate", "disorder", "tail missing", "tail unknown"],
)
async def test_a_broken_story_is_found(shared: Server, history: list[int], stream: list[int]) -> None:
    await _tell(shared, "a", history, stream)
    with pytest.raises(AssertionError, match=r"a: the (history|stream) is"):
        await assert_progress_gapless(shared, ["a"], final=False)


async def test_events_after_the_end_are_found(shared: Server) -> None:
    await _tell(shared, "a", [1, 2, 3], [1, 2, 3], final=2)
    with pytest.raises(AssertionError, match="final ones"):
        await assert_progress_gapless(shared, ["a"])


async def test_an_effect_that_happened_twice_is_found(service: FakeService) -> None:
    for key in ("a", "b"):
        await service.effect("mail", 1, key=key)
    await assert_effects_once(service, 2)
    await service.effect("mail", 1, key="b", keys=False)
    with pytest.raises(AssertionError, match="more than once"):
        await assert_effects_once(service)


async def test_a_worker_that_cannot_start_says_why(shared: Server) -> None:
    with pytest.raises(WorkerEnded, match="No module named 'nowhere'"):
        async with WorkerProcess(shared, "nowhere:app"):
            pass


async def test_fetch_sees_the_views(shared: Server) -> None:
    assert await fetch(shared, "select * from outlive.task") == []


async def _tell(server: Server, task: str, history: Sequence[int], stream: Sequence[int], *, final: int = 0) -> None:
    def event(seq: int) -> bytes:
        return json.dumps({"type": "status", "seq": seq, "final": seq == (final or history[-1])}).encode()

    connection: Any = await asyncpg.connect(server.postgres_dsn)
    tenant = server.settings.tenant
    await connection.execute(
        "insert into outlive_store.task (tenant, task_id, kind, digest, input, last_seq, published)"
        " values ($1, $2, 'k', '', '', $3, $3)",
        tenant,
        task,
        history[-1],
    )
    rows = [(tenant, task, seq, event(seq)) for seq in history]
    await connection.executemany(
        "insert into outlive_store.fact (tenant, task_id, seq, type, event) values ($1, $2, $3, 'status', $4)", rows
    )
    await connection.close()
    bus: Any = await nats.connect(server.nats_url)
    for seq in stream:
        await bus.jetstream().publish(
            server.subjects.progress(tenant, task), event(seq), headers={"Outlive-Seq": str(seq)}
        )
    await bus.close()
