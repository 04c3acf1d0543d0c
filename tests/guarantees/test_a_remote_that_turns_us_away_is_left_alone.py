"""429, 503, 401, 400: who is told to wait waits, with all others; what is useless is not repeated; every attempt is written down."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest

from outlive.actors.testing import Server, virtual_time
from outlive.infra.client import Client
from tests.actors.remote import Remote, Reply, Request, serving_http
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, submit_many, until, wait_all_final
from tests.chaos.limited_app import URL

APP = "tests.chaos.limited_app:app"
GOOD = Reply(200, {"effect": 1})
CLOCKS = 0.1
"""Seconds by which the database's time, as two workers know it, may differ from this process's."""

ATTEMPTS = (
    "select attempt, started_at, ended_at, error_class, reason, wait_until from outlive_store.attempt"
    " where task_id = $1 order by attempt"
)
THROTTLED = "select count(*) = $1::int from outlive.waiting where reasons::text like '%throttled%'"


class Door:
    """A remote that answers as it is told and knows when requests came, and when it first said no."""

    def __init__(self, remote: Remote) -> None:
        self.url = remote.url
        self.came: list[float] = []
        self.refused_at = float("inf")
        self.script: list[Reply] = []  # for the next requests; then `usual`
        self.usual = GOOD
        self.gate: threading.Barrier | None = None
        self._lock = threading.Lock()
        remote.answer = self._answer

    def _answer(self, _: Request) -> Reply:
        with self._lock:
            self.came.append(time.time())
            reply, gate = self.script.pop(0) if self.script else self.usual, self.gate
        if gate is not None:
            gate.wait(30)
        if reply.status != 200:
            self.refused_at = min(self.refused_at, time.time())
        return reply


async def soon(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # a log tells no event
            await asyncio.sleep(0.05)


@pytest.fixture
def door() -> Iterator[Door]:
    with serving_http() as remote:
        yield Door(remote)


def worker(shared: Server, door: Door, failpoints: str = "", **environment: str) -> WorkerProcess:
    own = {"OUTLIVE_LEASE": "6", "OUTLIVE_HEARTBEAT": "0.5", "OUTLIVE_POLL": "0.3", URL: door.url, **environment}
    return WorkerProcess(shared, APP, failpoints=failpoints, environment=own)


def later(seconds: str, status: int = 429) -> Reply:
    return Reply(status, {"error": "later"}, {"Retry-After": seconds})


@pytest.mark.parametrize("status", [429, pytest.param(503, marks=pytest.mark.slow)])
async def test_twenty_parallel_tasks_in_two_workers_and_all_that_come_after_them_leave_it_alone(
    shared: Server, door: Door, status: int
) -> None:
    door.gate, door.usual = threading.Barrier(20), later("4", status)  # all twenty are under way when the first is told
    both = {"OUTLIVE_SLOTS": "12"}
    async with worker(shared, door, **both), worker(shared, door, **both):
        tasks = await submit_many(shared, "frees", 20)
        await until(shared, "select count(*) = 20 from outlive_store.attempt")
        workers = await fetch(shared, "select distinct worker from outlive_store.attempt")
        assert len(workers) == 2
        door.gate, door.usual = None, GOOD
        more = await submit_many(shared, "frees", 20, name="more")
        await wait_all_final(shared, [*tasks, *more])
        assert len(door.came) == 60
        assert min(door.came[20:]) >= door.refused_at + 4 - CLOCKS
        told = await fetch(
            shared,
            "select convert_from(event, 'UTF8')::json ->> 'message' from outlive_store.fact where status = 'waiting'",
        )
        assert len(told) == 40
        kind = "rate limited" if status == 429 else "unavailable"
        own = [row[0] for row in told if row[0].startswith(f"free: {kind} until ") and ", attempt 1 of 8: " in row[0]]
        held = [row[0] for row in told if row[0].endswith(": another call was told to wait")]
        assert (len(own), len(held)) == (20, 20)
        await assert_progress_gapless(shared, [*tasks, *more])


@pytest.mark.parametrize("kind", [pytest.param("frees", marks=pytest.mark.slow), "writes"])
async def test_one_is_told_and_all_workers_know_also_one_that_starts_later(
    shared: Server, door: Door, kind: str
) -> None:
    door.script = [later("8")]
    async with worker(shared, door) as one, worker(shared, door) as other:
        tasks = await submit_many(shared, kind, 1)
        await soon(lambda: all("a remote is left alone" in each.log for each in (one, other)))
        await one.restart()
        tasks += await submit_many(shared, kind, 6, name="more")
        await wait_all_final(shared, tasks)
        assert min(door.came[1:]) >= door.refused_at + 8 - CLOCKS
        assert len(door.came) == 8


async def test_a_day_pauses_every_task_without_a_call_until_a_person_has_it_asked_again(
    shared: Server, door: Door
) -> None:
    door.script = [later("86400")]
    async with worker(shared, door):
        await submit_many(shared, "frees", 1)
        await until(shared, THROTTLED, 1)
        await submit_many(shared, "frees", 3, name="more")
        await until(shared, THROTTLED, 4)
        assert len(door.came) == 1
        async with Client(shared.settings, by="ann") as client:
            (reason,) = (await client.get("more-0")).reasons
            assert reason.do == "outlive resume more-0"
            assert reason.message.startswith("free: rate limited until ")
            left = (reason.until or datetime.now(UTC)) - datetime.now(UTC)
            assert timedelta(hours=23) < left < timedelta(hours=25)
            await client.resume("more-0")
            assert await client.result("more-0", int, timeout=20) == 1
            await client.resume("frees-0")
            assert await client.result("frees-0", int, timeout=20) == 1
            await wait_all_final(shared, await submit_many(shared, "frees", 1, name="new"))  # the pause is over for all
            assert [row[0] for row in await fetch(shared, "select task_id from outlive.waiting order by 1")] == [
                "more-1",
                "more-2",
            ]


async def test_what_the_remote_says_is_honoured_and_what_cannot_be_read_is_backed_off_from(
    shared: Server, door: Door
) -> None:
    in_three = format_datetime(datetime.now(UTC) + timedelta(hours=1, seconds=3), usegmt=True)
    clock = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)  # the remote's own, an hour wrong
    said: dict[str, tuple[dict[str, str], float, float]] = {
        "seconds": ({"Retry-After": "2"}, 2, 2.1),
        "date": ({"Retry-After": in_three, "Date": clock}, 3, 3.1),
        "garbage": ({"Retry-After": "soon"}, 0, 0.2),
        "absent": ({}, 0, 0.2),
    }
    async with worker(shared, door):
        for name, (headers, least, most) in said.items():
            door.script = [Reply(429, {}, headers)]
            await wait_all_final(shared, await submit_many(shared, "frees", 1, name=name))
            (attempt,) = await fetch(shared, ATTEMPTS, f"{name}-0")
            waits = (attempt["wait_until"] - attempt["ended_at"]).total_seconds()
            assert least - 0.05 <= waits <= most + 0.05, name


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_what_is_useless_is_called_once(shared: Server, door: Door, status: int) -> None:
    door.usual = Reply(status, {})
    async with worker(shared, door):
        await wait_all_final(shared, await submit_many(shared, "frees", 1), status="failed")
        assert len(door.came) == 1
        (attempt,) = await fetch(shared, ATTEMPTS, "frees-0")
        assert attempt["error_class"] == ("invalid_arguments" if status == 400 else "permission_denied")


async def test_503_without_key_and_query_is_one_call_and_a_person(shared: Server, door: Door) -> None:
    door.usual = Reply(503, {})
    async with worker(shared, door):
        await submit_many(shared, "charges", 1)
        await until(shared, "select count(*) = 1 from outlive.waiting where reasons::text like '%outcome_unknown%'")
        assert len(door.came) == 1


async def test_ten_minutes_of_503_with_a_key_are_growing_capped_recorded_pauses_across_a_kill(
    shared: Server, door: Door
) -> None:
    door.usual = Reply(503, {})
    due = "select due_at from outlive_store.task where owner is null and due_at > (select outlive.clock())"
    ended = "select 1 from outlive.task where ended_at is not null"
    async with (
        virtual_time(shared.postgres_dsn) as clock,
        worker(shared, door, OUTLIVE_LINGER="0", OUTLIVE_LEASE="60") as works,
    ):
        (task,) = await submit_many(shared, "persists", 1)
        killed = False
        while not await fetch(shared, ended):
            if waiting := await fetch(shared, due):
                before = await fetch(shared, ATTEMPTS, task)
                if not killed and len(before) == 5:
                    killed = True
                    await works.restart()
                    assert await fetch(shared, ATTEMPTS, task) == before
                await clock.advance((waiting[0]["due_at"] - await clock.now()).total_seconds() + 0.01)
            await asyncio.sleep(0.02)
        attempts = await fetch(shared, ATTEMPTS, task)
        pauses = [(row["wait_until"] - row["ended_at"]).total_seconds() for row in attempts[:-1]]
        assert killed and len(door.came) == len(attempts) >= 10
        assert [row["attempt"] for row in attempts] == list(range(1, len(attempts) + 1))
        assert max(pauses) <= 60 and pauses[0] <= 8 and max(pauses[3:]) > 20
        assert all(row["error_class"] == "unavailable" and "503" in row["reason"] for row in attempts)
        assert attempts[-1]["wait_until"] is None
        assert (attempts[-1]["started_at"] - attempts[0]["started_at"]).total_seconds() <= 630
        for row, following in pairwise(attempts):
            assert row["started_at"] <= row["ended_at"] <= row["wait_until"]
            assert following["started_at"] >= row["wait_until"] - timedelta(seconds=CLOCKS)


async def test_each_attempt_of_a_step_is_written_down(shared: Server, door: Door) -> None:
    door.script = [Reply(503, {}), later("1")]
    async with worker(shared, door):
        await wait_all_final(shared, await submit_many(shared, "frees", 1))
        first, second = await fetch(shared, ATTEMPTS, "frees-0")
        assert [first["error_class"], second["error_class"]] == ["unavailable", "rate_limited"]
        assert first["wait_until"] <= second["started_at"] <= second["ended_at"] < second["wait_until"]
        (operation,) = await fetch(shared, "select status, attempts, started_at from outlive.operation")
        assert (operation["status"], operation["attempts"]) == ("succeeded", 3)
        assert operation["started_at"] >= second["wait_until"] - timedelta(seconds=CLOCKS)


async def test_a_killed_attempt_counts_with_its_reason_and_there_is_no_fourth(shared: Server, door: Door) -> None:
    await submit_many(shared, "frees", 1)
    for _ in range(3):
        async with worker(shared, door, "effect.before=kill") as killed:
            await killed.exited()
    async with worker(shared, door):
        await until(shared, "select count(*) = 1 from outlive.waiting where reasons::text like '%quarantined%'")
        assert not door.came
        rows: list[Any] = await fetch(shared, "select attempt, worker from outlive.attempt order by attempt")
        assert [row["attempt"] for row in rows] == [1, 2, 3]
        assert len({row["worker"] for row in rows}) == 3
        lost = await fetch(shared, ATTEMPTS, "frees-0")
        assert {row["reason"] for row in lost} == {"its worker ended before the outcome was recorded"}


async def test_a_thousand_tasks_that_back_off_are_cancelled_and_heard_of_no_more(shared: Server, door: Door) -> None:
    count = 1000
    async with virtual_time(shared.postgres_dsn) as clock, worker(shared, door, OUTLIVE_LEASE="60") as works:
        tasks = await submit_many(shared, "downs", count)
        await until(shared, "select count(distinct task_id) = $1::int from outlive_store.attempt", count, within=60)
        async with Client(shared.settings) as client:
            for start in range(0, count, 50):
                await asyncio.gather(*(client.cancel(task) for task in tasks[start : start + 50]))
        await wait_all_final(shared, tasks, status="cancelled")
        await until(shared, "select busy = 0 from outlive_store.worker where not fenced")  # no actor, so no timer
        made = await fetch(shared, "select count(*) from outlive_store.attempt")
        log = works.log
        await clock.advance(3 * 3600)
        await wait_all_final(shared, await submit_many(shared, "frees", 1))
        assert await fetch(shared, "select count(*) from outlive_store.attempt") == made
        assert "downs-" not in works.log[len(log) :]
