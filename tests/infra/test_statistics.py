"""How tools fared, counted from rows written by hand: each call once, under what it came to last."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from outlive.actors.testing import Server
from outlive.infra import happenings
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.records import Claim
from outlive.infra.store import Store
from outlive.protocol import api
from tests.infra.pencil import START, Pencil

WORKER = "018f0000-0000-7000-8000-000000000001"


@pytest.fixture
async def pencil(shared: Server) -> AsyncIterator[Pencil]:
    async with (
        Bus.of(shared.settings, name="test") as bus,
        Pool(shared.postgres_dsn, application_name="test", size=2) as pool,
    ):
        yield Pencil(pool, bus, shared.subjects)


async def facts(pencil: Pencil, claim: Claim, step_id: str, name: str, *statuses: Any) -> None:
    made = [happenings.step(claim, START, step_id, name, status, "", attempt=n) for n, status in enumerate(statuses, 1)]
    await pencil.write(claim, made)
    last = len(statuses)
    await pencil.pool.execute("update outlive_store.fact set attempt = $1 where step_id = $2", last, step_id)


async def operation(pencil: Pencil, step_id: str, name: str, status: str, number: int = 1, attempts: int = 1) -> None:
    await pencil.insert(
        "operation", tenant="default", task_id="t", step_id=step_id, operation_id=str(number), name=name, status=status,
        attempt=attempts, epoch=1, worker=WORKER, digest=b"", arguments=b"{}", started_at=START,
    )  # fmt: skip


async def attempt(pencil: Pencil, step_id: str, number: int, error_class: str, wait: float | None = None) -> None:
    await pencil.insert(
        "attempt", tenant="default", task_id="t", step_id=step_id, operation_id="1", attempt=number, worker=WORKER,
        started_at=START, ended_at=START, error_class=error_class, reason="",
        wait_until=None if wait is None else START + timedelta(seconds=wait),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("operation_status", "statuses", "outcome"),
    [
        (None, ["completed"], "succeeded"),
        (None, ["started", "failed"], "failed"),
        (None, ["unknown"], "unknown"),
        (None, ["waiting"], "open"),
        ("awaiting_approval", [], "open"),
        ("started", ["unknown"], "open"),  # asked, did not happen, sent again
        ("unknown", ["waiting"], "open"),  # sent again in a moment, with its key
        ("unknown", ["unknown"], "unknown"),
        ("unknown", ["unknown", "failed"], "unknown"),  # given up by a person
        ("succeeded", ["unknown", "completed"], "succeeded"),
        ("failed", ["failed"], "failed"),
        ("failed", ["completed"], "succeeded"),  # a person gave it its result
    ],
)
async def test_a_call_counts_as_what_it_came_to_last(
    pencil: Pencil, operation_status: str | None, statuses: list[str], outcome: str
) -> None:
    await facts(pencil, await pencil.task("t"), "1", "send", *statuses)
    if operation_status is not None:
        await operation(pencil, "1", "send", operation_status)
    (tool,) = (await Store(pencil.pool).stats("default", api.Stats())).tools
    ends = {"succeeded": tool.succeeded, "failed": tool.failed, "unknown": tool.unknown, "open": tool.open}
    assert [name for name, count in ends.items() if count] == [outcome]
    assert (tool.name, tool.calls) == ("send", 1)


async def test_a_call_with_corrected_arguments_counts_once_as_what_its_last_operation_came_to(pencil: Pencil) -> None:
    claim = await pencil.task("t")
    await facts(pencil, claim, "1", "send", "failed", "waiting", "completed")
    for number in range(1, 11):
        await operation(pencil, "1", "send", "succeeded" if number == 10 else "failed", number, 2)
    await facts(pencil, claim, "2", "send", "failed", "unknown")
    await operation(pencil, "2", "send", "failed")
    await operation(pencil, "2", "send", "unknown", 2)
    (tool,) = (await Store(pencil.pool).stats("default", api.Stats())).tools
    assert (tool.calls, tool.succeeded, tool.unknown, tool.attempts) == (2, 1, 1, 22)


async def test_an_unstable_service_is_told_from_bad_arguments(pencil: Pencil) -> None:
    claim = await pencil.task("t")
    await facts(pencil, claim, "1", "fetch", "waiting", "waiting", "completed")
    await attempt(pencil, "1", 1, "unavailable", 2)
    await attempt(pencil, "1", 2, "unavailable", 4.5)
    await facts(pencil, claim, "2", "file", "failed")
    await attempt(pencil, "2", 1, "invalid_arguments")
    await facts(pencil, claim, "3", "file", "completed")
    await facts(pencil, claim, "4", "sleep", "waiting", "completed")  # no tool
    await facts(pencil, claim, "5", "wait_for go", "completed")
    page = await Store(pencil.pool).stats("default", api.Stats())
    fetch, file = page.tools
    assert (fetch.errors, fetch.attempts, fetch.waited, fetch.longest_wait) == ({"unavailable": 2}, 3, 6.5, 4.5)
    assert (file.errors, file.attempts, file.calls, file.failed) == ({"invalid_arguments": 1}, 2, 2, 1)
    assert file.waited == 0


async def test_pages_of_tasks_by_time_and_kind(pencil: Pencil) -> None:
    now = await pencil.pool.fetchval("select outlive.clock()")
    for n in range(5):
        claim = await pencil.task(f"t{n}", created_at=now - timedelta(hours=n), kind="even" if n % 2 == 0 else "odd")
        await facts(pencil, claim, "1", "look", "completed")
    store = Store(pencil.pool)

    async def calls(**question: Any) -> list[int]:
        found: list[int] = []
        page = await store.stats("default", api.Stats(**question))
        found.append(sum(tool.calls for tool in page.tools))
        while page.after is not None:
            page = await store.stats("default", api.Stats(**question, after=page.after))
            found.append(sum(tool.calls for tool in page.tools))
        return found

    assert await calls() == [5]
    assert await calls(limit=2) == [2, 2, 1]
    assert await calls(within=2.5 * 3600) == [3]
    assert await calls(within=2.5 * 3600, kind="even") == [2]
    assert (await store.stats("other", api.Stats())).tasks == 0
