"""Signals to one task are applied in the order of the stream, however often the ingester dies in between."""

import asyncio
import json
import random
from collections.abc import Sequence
from typing import Any

from outlive.actors.testing import Server
from tests.chaos import harness
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, submit_many, until, wait_all_final

COUNT = 240
ABREAST = 6
"""Senders at once: what one of them sends first may come later in the stream."""


async def test_commands_are_applied_in_the_streams_order(shared: Server) -> None:
    """The process with the ingester is killed five times at random moments; the other one takes the cursor each time."""
    environment = {"OUTLIVE_LINGER": "0.02"}  # the task leaves memory now and then: owner and clerk take turns
    async with (
        WorkerProcess(shared, environment=environment) as one,
        WorkerProcess(shared, environment=environment) as other,
    ):
        [task] = await submit_many(shared, "collector", 1, {"count": COUNT})
        sending = asyncio.create_task(_send(shared, task))
        for _ in range(5):
            await asyncio.sleep(random.uniform(0.05, 0.3))
            leader = await _leader(shared, [one, other])
            await leader.restart()
        expected = await sending
        await wait_all_final(shared, [task])
        await assert_progress_gapless(shared, [task])
    await _applied(shared, expected)


async def _send(server: Server, task: str) -> list[str]:
    """Send the signals over two seconds or so; their values in the order in which the stream has them."""
    connection = await harness.connect(server)
    stream, subject = connection.jetstream(), server.subjects.command(server.settings.tenant, task, "signal")
    values: list[tuple[int, str]] = []

    async def send(first: int) -> None:
        for n in range(first, COUNT, ABREAST):
            body = {"type": "signal", "command_id": f"c{n}", "by": "test", "name": "go", "value": f"v{n}"}
            ack = await stream.publish(subject, json.dumps(body).encode(), timeout=10)
            values.append((ack.seq, f"v{n}"))
            await asyncio.sleep(random.uniform(0, 0.1))

    try:
        await asyncio.gather(*[send(first) for first in range(ABREAST)])
    finally:
        await connection.close()
    return [value for _, value in sorted(values)]


async def _leader(server: Server, workers: Sequence[WorkerProcess]) -> WorkerProcess:
    pid = await until(
        server,
        "select w.pid from outlive_store.cursor c join outlive_store.worker w on w.incarnation = c.owner and not w.fenced",
    )
    return next(worker for worker in workers if worker.pid == pid)


async def _applied(server: Server, expected: Sequence[str]) -> None:
    """Inbox, progress and the task's own result tell the same order, and each command has one answer."""
    inbox = await fetch(server, "select body, code, taken from outlive_store.inbox where pos is not null order by pos")
    assert [json.loads(row["body"])["value"] for row in inbox] == expected
    assert {(row["code"], row["taken"]) for row in inbox} == {("applied", True)}
    facts = await fetch(server, "select type, status, event, body from outlive_store.fact order by seq")
    decided = [json.loads(row["event"])["command_id"] for row in facts if row["type"] == "command"]
    assert decided == [f"c{value[1:]}" for value in expected]
    result: Any = json.loads(facts[-1]["body"])
    assert result == expected
