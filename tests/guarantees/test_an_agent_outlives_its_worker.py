"""An agent's worker dies at every point of its run: no question is put twice that was answered, no effect is repeated."""

import asyncio
from collections import Counter
from typing import Final

import pytest

from outlive.actors.testing import FakeService, Server, fake_service, fresh
from outlive.infra import failpoints
from outlive.infra.client import Client
from tests.chaos.agent_app import BODY, THOUGHT
from tests.chaos.harness import (
    WorkerProcess,
    assert_effects_once,
    assert_progress_gapless,
    fetch,
    send,
    some,
    submit_many,
    until,
    wait_all_final,
)

APP: Final = "tests.chaos.agent_app:app"
SOME: Final = (
    ("intent.after_commit", 5), ("effect.before", 4), ("effect.after", 1), ("outcome.before_commit", 9),
    ("outcome.after_commit", 7), ("reconcile.after", 1), ("question.after_commit", 1), ("wait.after_commit", 1),
    ("leave.after_commit", 1), ("child.after_commit", 1), ("final.before_commit", 2),
)  # fmt: skip
"""Failpoints, and the hit at which the worker dies, for the default run: between them all parts of the agent's loop."""

DECISIONS: Final = (
    "select step_id, attempt, convert_from(arguments, 'UTF8') as arguments from outlive_store.operation"
    " where name = 'worker__model.request' order by started_at, step_id"
)
PLANS: Final = "select body from outlive_store.fact where task_id = $1 and type = 'plan' order by seq"
RESULT: Final = "select body from outlive_store.fact where task_id = $1 and type = 'status' and status = 'succeeded'"
STATUS: Final = "select status = $2 from outlive.task where task_id = $1"
LOST: Final = "select step_id, attempt, error_class, reason from outlive_store.attempt where step_id = any($1) and task_id = $2 and reason like '%worker ended%'"

SPENDS: Final = "select step_id, attempt, amount, settled from outlive_store.spend where task_id = $1 order by step_id::int, attempt"


class Calm:
    """What a run without a death leaves behind, the same in every run: it is made once."""

    requests: list[str]
    decisions: list[tuple[str, str]]
    plans: list[bytes]


calm = Calm()


async def _be_the_person(server: Server, task: str) -> None:
    """Answer the question, pause and resume while nobody holds the task, say yes to the mail."""
    await until(server, STATUS, task, "paused")
    [(reasons,)] = await fetch(server, "select reasons::text from outlive.waiting where task_id = $1", task)
    assert "In which month?" in reasons
    await send(server, task, "pause")
    await until(server, "select count(*) = 1 from outlive_store.inbox where verb = 'pause' and code is not null")
    step = await until(server, "select step_id from outlive_store.fact where name = 'ask' and status = 'waiting'")
    await send(server, task, "signal", name=f"answer-{step}", value="[June]")
    await send(server, task, "resume")
    step = await until(
        server, "select step_id from outlive_store.operation where name = 'send_mail' and status = 'awaiting_approval'"
    )
    await send(server, task, "approve", operation_id=step)


async def _requests(service: FakeService) -> list[str]:
    return [str(effect.body) for effect in await service.effects(name="request")]


async def _run(server: Server, service: FakeService, dying: str = "", *, passes: bool = False) -> str:
    """One task, from its goal to its end; the worker dies once where `dying` says so, or (`passes`) is not so often there."""
    await service.behave("lose_answer", name="open_ticket", times=1)
    async with (
        WorkerProcess(server, APP, service=service, failpoints=dying, environment={"OUTLIVE_LINGER": "0"}) as worker,
        asyncio.TaskGroup() as group,
    ):
        death = group.create_task(_die_once(worker)) if dying else None
        [task] = await submit_many(server, "worker", 1, {"goal": "tidy up"})
        await _be_the_person(server, task)
        await wait_all_final(server, [task])
        if death is not None:
            await asyncio.wait([death], timeout=2 if passes else None)
            death.cancel()
        [child] = await fetch(server, "select task_id from outlive.task where parent = $1", task)
        await assert_progress_gapless(server, [task, child["task_id"]])
        assert THOUGHT not in worker.log
    return task


async def _die_once(worker: WorkerProcess) -> None:
    assert await worker.exited(60) == -9, "it died at its failpoint"
    await worker.restart()


async def _assert_as_without_a_death(server: Server, service: FakeService, task: str) -> None:
    assert [bytes(row["body"]) for row in await fetch(server, RESULT, task)] == [b'"done in June"']
    effects = {name: count for name, count in (await service.counts()).names.items() if name != "request"}
    assert effects == {"open_ticket": 1, "send_mail": 1, "post": 2}
    await assert_effects_once(service, 4)

    rows = await fetch(server, DECISIONS)
    decisions = [(row["step_id"], row["arguments"]) for row in rows]
    requests = await _requests(service)
    plans = [bytes(row["body"]) for row in await fetch(server, PLANS, task)]
    if not hasattr(calm, "requests"):
        calm.requests, calm.decisions, calm.plans = requests, decisions, plans
        assert len(requests) == len(decisions) == 12
        assert len(plans) == 2
    assert plans == calm.plans, "the plan is the same, byte for byte"
    assert decisions == calm.decisions, "each decision rests on the same facts"
    assert not [arguments for _, arguments in decisions if BODY in arguments], "facts by reference, no transcript"
    assert sum(BODY in request for request in requests) > 8, "and yet they were shown"
    await _assert_asked_once(server, task, requests, {row["step_id"]: row["attempt"] for row in rows})


async def _assert_asked_once(server: Server, task: str, requests: list[str], attempts: dict[str, int]) -> None:
    """Each question reached the model once; one that was in flight at the death may again, and stands in the ledger."""
    assert set(requests) == set(calm.requests), "the same questions, byte for byte"
    repeated = [step for step, number in attempts.items() if number > 1]
    assert len(repeated) <= 1
    assert len(requests) - len(calm.requests) <= len(repeated)
    lost = await fetch(server, LOST, list(attempts), task)
    assert [(row["step_id"], row["attempt"], row["error_class"]) for row in lost] == [
        (s, 1, "timeout") for s in repeated
    ]
    spends = await fetch(server, SPENDS, task)
    assert {(row["step_id"], row["attempt"]) for row in spends} == {
        (step, attempt) for step, last in attempts.items() for attempt in range(1, last + 1)
    }
    assert {(row["step_id"], row["attempt"]) for row in spends if not row["settled"]} <= {(s, 1) for s in repeated}
    [used] = await fetch(server, "select used from outlive_store.budget where task_id = $1", task)
    assert list(used["used"]) == [sum(row["amount"][i] for row in spends) for i in range(3)]
    asked_again = [request for request, count in Counter(requests).items() if count > 1]
    [number] = [calm.decisions.index(each) for each in calm.decisions if each[0] in repeated] or [-1]
    assert asked_again in ([], [calm.requests[number]]), "only what was in flight"


@pytest.fixture
async def _calm(session_server: Server) -> None:
    """See once what a run without a death leaves behind."""
    if hasattr(calm, "requests"):
        return
    async with fresh(session_server) as server, fake_service() as service:
        await _assert_as_without_a_death(server, service, await _run(server, service))


@pytest.mark.usefixtures("_calm")
@pytest.mark.parametrize("at", some(SOME, *SOME[:2], SOME[5], SOME[7]))
async def test_a_kill_at(shared: Server, service: FakeService, at: tuple[str, int]) -> None:
    name, hit = at
    task = await _run(shared, service, f"{name}=kill@{hit}")
    await _assert_as_without_a_death(shared, service, task)


@pytest.mark.slow
@pytest.mark.usefixtures("_calm")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("hit", [1, 3, 9])
@pytest.mark.parametrize("name", failpoints.NAMES)
async def test_a_kill_at_any_hit_of(shared: Server, service: FakeService, name: str, hit: int) -> None:
    hit += name == "claim.before"  # its first hit comes before there is any work
    task = await _run(shared, service, f"{name}=kill@{hit}", passes=hit > 1)
    await _assert_as_without_a_death(shared, service, task)


@pytest.mark.slow
async def test_a_request_that_was_in_flight_at_the_kill_keeps_what_was_reserved_for_it(
    shared: Server, service: FakeService
) -> None:
    await service.behave("hang", name="request", after=2, seconds=60)
    async with WorkerProcess(shared, APP, service=service) as worker, Client(shared.settings) as client:
        [task] = await submit_many(shared, "worker", 1, {"goal": "tidy up"})
        while len(await _requests(service)) < 3:  # noqa: ASYNC110  # a service tells no event
            await asyncio.sleep(0.02)
        await worker.restart()
        await until(shared, STATUS, task, "paused")
        record = await client.get(task)
        spends = [(row["step_id"], row["attempt"], row["settled"]) for row in await fetch(shared, SPENDS, task)]
        amounts = [row["amount"] for row in await fetch(shared, SPENDS, task)]
        [used] = await fetch(shared, "select used from outlive_store.budget where task_id = $1", task)
    asked = await _requests(service)
    assert (asked[2], len(asked)) == (asked[3], len(spends)), "the lost one was asked again, the others were not"
    lost = spends[2][0]
    assert [(step, attempt) for step, attempt, settled in spends if not settled] == [(lost, 1)]
    assert (lost, 2, True) in spends
    assert amounts[2][0] > 4096, "all that the answer might have taken"
    assert list(used["used"]) == [sum(amount[i] for amount in amounts) for i in range(3)]
    assert record.spending is not None
    assert (record.spending.requests, record.spending.lost) == (len(asked), 1)
