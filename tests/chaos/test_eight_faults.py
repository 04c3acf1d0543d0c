"""The eight faults of the exam: what it says is held against tables, stream and shop, read here anew."""

from collections.abc import Mapping
from typing import Any

import pytest

from outlive.actors.chaoskit import eight
from outlive.actors.chaoskit.evidence import Question
from outlive.actors.chaoskit.exam import Result, examine
from outlive.actors.chaoskit.faults import GOES, TAKEN
from outlive.actors.chaoskit.scene import Scene
from outlive.actors.testing import FakeService, Server
from tests.chaos.harness import assert_effects_once, assert_progress_gapless, fetch

AS_THEY_SHOULD_BE = {
    Question.REPEATED: False,
    Question.CONSISTENT: True,
    Question.REAL: True,
    Question.TAKE_OVER: True,
}


async def sit(name: str, server: Server, service: FakeService) -> Result:
    """Sit one fault; what holds for each of them is checked here."""
    (fault,) = (fault for fault in eight.EIGHT if fault.name == name)
    async with Scene.at(server, service) as scene:
        result = await examine(fault, scene)
        assert result.ok, result
    assert {question: answer.yes for question, answer in result.answers.items()} == AS_THEY_SHOULD_BE
    await assert_effects_once(service)
    await assert_progress_gapless(server, [GOES, TAKEN])
    query = "select 1 from outlive_store.task where owner is not null or last_seq <> published or inbox_head <> applied"
    assert await fetch(server, query) == []
    assert await fetch(server, "select 1 from outlive_store.inbox where code is null") == []
    evidence = result.answers[Question.CONSISTENT].evidence
    for task in (GOES, TAKEN):
        assert evidence[task]["events"] == evidence[task]["stream"] == await numbers(server, task)
    return result


async def numbers(server: Server, task: str) -> list[int]:
    return [
        row[0] for row in await fetch(server, "select seq from outlive_store.fact where task_id = $1 order by 1", task)
    ]


async def ledger(server: Server, name: str) -> list[tuple[Any, ...]]:
    query = "select task_id, status from outlive.operation where name = $1 order by task_id, started_at"
    return [tuple(row) for row in await fetch(server, query, name)]


async def statuses(server: Server) -> Mapping[str, str]:
    return {row[0]: row[1] for row in await fetch(server, "select task_id, status from outlive.task")}


async def things_done(service: FakeService) -> Mapping[str, int]:
    """What the shop did, without its counts of requests to models."""
    names = (await service.counts()).names
    return {name: count for name, count in names.items() if not name.startswith("decision-")}


async def test_llm_times_out_at_step_3(shared: Server, service: FakeService) -> None:
    await sit("llm-times-out", shared, service)
    asked = (await service.counts()).names
    assert [asked[f"decision-{n}-of-{GOES}"] for n in (1, 2, 3, 4)] == [1, 1, 2, 1]
    assert [asked[f"decision-{n}-of-{TAKEN}"] for n in (1, 2, 3, 4)] == [1, 1, 3, 1]
    assert await things_done(service) == {"order": 4}
    query = "select task_id, error_class from outlive_store.attempt order by task_id"
    assert [tuple(row) for row in await fetch(shared, query)] == [
        (GOES, "timeout"),
        (TAKEN, "timeout"),
        (TAKEN, "timeout"),
    ]
    assert set((await statuses(shared)).values()) == {"succeeded"}


async def test_tool_succeeds_and_its_answer_is_lost(shared: Server, service: FakeService) -> None:
    await sit("answer-lost", shared, service)
    assert await things_done(service) == {"order": 3, "phone": 1}
    assert await ledger(shared, "phone") == [(TAKEN, "succeeded")], "a person said so, nothing was sent again"
    assert set((await service.counts()).requests.values()) == {1}


async def test_worker_dies_before_it_writes_the_checkpoint(shared: Server, service: FakeService) -> None:
    result = await sit("worker-dies", shared, service)
    assert list(result.happened.values()) == [[-9, -9]]
    assert await things_done(service) == {"order": 3, "phone": 1}
    assert set((await service.counts()).requests.values()) == {1}
    deaths = await fetch(shared, "select task_id from outlive_store.death order by at")
    assert [row[0] for row in deaths] == [GOES, TAKEN]


async def test_same_message_comes_twice(shared: Server, service: FakeService) -> None:
    await sit("message-twice", shared, service)
    assert await things_done(service) == {"order": 6}
    rows = await fetch(shared, "select verb, count(*) from outlive_store.inbox group by verb order by verb")
    assert [tuple(row) for row in rows] == [("pause", 1), ("resume", 1), ("signal", 4), ("submit", 2)]
    (cursor,) = await fetch(shared, "select seq from outlive_store.cursor")
    assert cursor["seq"] == 15, "seven messages came twice, the resume once"


async def test_user_cancels_before_a_risky_action(shared: Server, service: FakeService) -> None:
    result = await sit("cancelled-before-risk", shared, service)
    assert await things_done(service) == {"order": 2, "wire": 1}
    assert await statuses(shared) == {GOES: "cancelled", TAKEN: "succeeded"}
    assert await ledger(shared, "wire") == [(GOES, "awaiting_approval"), (TAKEN, "succeeded")]
    (late,) = result.happened.values()
    assert late.startswith(("too_late", "stale", "illegal_transition"))


async def test_model_is_another_one_at_the_resume(shared: Server, service: FakeService) -> None:
    await sit("model-changed", shared, service)
    asked = {effect.name: effect.body for effect in await service.effects() if effect.name.startswith("decision-")}
    assert [asked[f"decision-{n}-of-{GOES}"] for n in range(1, 6)] == ["m-1"] * 5
    assert [asked[f"decision-{n}-of-{TAKEN}"] for n in range(1, 6)] == ["m-1"] * 3 + ["m-2"] * 2
    assert await things_done(service) == {"order": 4}


async def test_service_throttles_for_long(shared: Server, service: FakeService) -> None:
    await sit("throttled", shared, service)
    assert await things_done(service) == {"order": 4}
    assert sorted((await service.counts()).requests.values()) == [1, 1, 2, 2], "refused once each, and asked once more"


@pytest.mark.timeout(180)
async def test_two_workers_have_the_same_task(shared: Server, service: FakeService) -> None:
    await sit("two-workers", shared, service)
    assert await things_done(service) == {"order": 4}
    assert set((await service.counts()).requests.values()) == {1}
    writers = await fetch(shared, "select distinct worker from outlive.operation")
    assert len(writers) == 1, "the frozen one has written no outcome"
