"""An agent's model or prompt changed while its task waited: nothing switches without a word."""

import asyncio
from typing import Any

import pytest

from outlive.actors import App, RetryPolicy, TaskFailed
from outlive.actors.agents.versions import Change, OnChange, Version, choose
from outlive.actors.testing import Server
from tests.actors.scene import dying, rows, serving, status_soon, told
from tests.agents.script import Script, finish

OLD, NEW = Version("a", "p1", "old words"), Version("b", "p1", "new words")


@pytest.mark.parametrize(
    ("policy", "models", "expected"),
    [
        ("pin", ["a", "b"], OLD),
        ("pin", ["b"], Change("model a is now b", can_stay=False)),
        ("allow", ["b"], NEW),
        ("pause", ["a", "b"], Change("model a is now b", can_stay=True)),
        ("pause", ["b"], Change("model a is now b", can_stay=False)),
    ],
)
def test_the_policy_decides_about_another_model(
    policy: OnChange, models: list[str], expected: Version | Change
) -> None:
    assert choose(OLD, NEW, policy, models=models, prompt_is_there=True) == expected


def test_a_prompt_that_cannot_be_made_any_more_cannot_be_pinned() -> None:
    now = Version("a", "p2", "other")

    assert choose(OLD, now, "pin", models=["a"], prompt_is_there=True) == OLD
    assert choose(OLD, now, "pin", models=["a"], prompt_is_there=False) == Change("prompt p1 is now p2", can_stay=False)


def test_the_first_decision_and_no_change_ask_nobody() -> None:
    assert choose(None, NEW, "pause", models=[], prompt_is_there=False) == NEW
    assert choose(OLD, OLD, "pause", models=["a"], prompt_is_there=True) == OLD


QUESTION = [("ask_person", {"question": "Which one?"})]


def _app(script: Script, instructions: str = "Work.", **options: Any) -> App:
    app = App("versions")
    app.agent("worker", model=script.model, instructions=instructions, output=int, plans=False, **options)
    return app


async def _under_another(
    shared: Server, task_id: str, old: App, new: App, *, answer: str | None = None
) -> tuple[list[str], Any]:
    """Begin a task under the old app, go on under the new one; answer its question about the version."""
    async with dying(old, shared) as client:
        await client.submit(old.kinds["worker"].with_options(task_id=task_id), "go")
        await status_soon(shared, task_id, "paused")
    async with serving(new, shared) as client:
        (reason,) = (await client.get(task_id)).reasons
        await client.answer(task_id, str(reason.step_id), "this one")
        if answer is not None:
            await asyncio.wait_for(_asked(shared, task_id), 30)
            (reason,) = (await client.get(task_id)).reasons
            assert "is now" in reason.message
            await client.answer(task_id, str(reason.step_id), answer)
        async with asyncio.timeout(60):
            try:
                result: Any = await client.handle(task_id, int).result()
            except TaskFailed as failed:
                result = failed.failure.message
    return await told(shared, task_id), result


async def _asked(shared: Server, task_id: str) -> None:
    query = "select 1 from fact where task_id = $1 and name = 'version' and status = 'waiting'"
    while not await rows(shared, query, task_id):  # noqa: ASYNC110  # reason: a table tells no event
        await asyncio.sleep(0.02)
    await status_soon(shared, task_id, "paused")


async def test_a_pinned_task_stays_with_its_model(shared: Server) -> None:
    old, new = Script(QUESTION, finish(1), name="old"), Script(finish(2), name="new")

    sentences, result = await _under_another(shared, "pin-1", _app(old), _app(new, also=[old.model]))

    assert result == 1
    assert len(old.requests) == 2
    assert not new.requests
    assert [s for s in sentences if s.startswith("Stays with function:old, prompt ") and "function:new" in s]
    (audited,) = await rows(shared, "select who, detail from audit where task_id = 'pin-1' and what = 'version'")
    assert (audited["who"], "Stays with function:old" in audited["detail"]) == ("agent worker", True)


async def test_a_pinned_task_keeps_its_instructions(shared: Server) -> None:
    script = Script(QUESTION, finish(1))

    await _under_another(shared, "pin-2", _app(script, "Be brief."), _app(script, "Be long."))

    assert [words.split("\n")[0] for words in script.instructions] == ["Be brief.", "Be brief."]


async def test_a_retired_model_is_a_question(shared: Server) -> None:
    old, new = Script(QUESTION, finish(1), name="old"), Script(finish(2), name="new")

    sentences, result = await _under_another(shared, "pin-3", _app(old), _app(new), answer="go on")

    assert result == 2
    assert any("old is now" in sentence and "new" in sentence for sentence in sentences if "Decided" in sentence)


async def test_allowed_changes_are_told(shared: Server) -> None:
    old, new = Script(QUESTION, finish(1), name="old"), Script(finish(2), name="new")

    sentences, result = await _under_another(shared, "allow-1", _app(old), _app(new, on_change="allow"))

    assert result == 2
    assert [s for s in sentences if s.startswith("Decided (model ") and "old is now" in s]
    audited = await rows(shared, "select who, before, after from audit where task_id = 'allow-1' and what = 'version'")
    assert [(row["who"], "old" in row["before"], "new" in row["after"]) for row in audited] == [
        ("agent worker", True, True)
    ]


async def test_paused_tasks_may_stay(shared: Server) -> None:
    old, new = Script(QUESTION, QUESTION, finish(1), name="old"), Script(finish(2), name="new")
    app = _app(new, also=[old.model], on_change="pause")
    async with dying(_app(old), shared) as client:
        await client.submit(app.kinds["worker"].with_options(task_id="stay-1"), "go")
        await status_soon(shared, "stay-1", "paused")
    async with serving(app, shared) as client:
        for text in ("this", "stay", "that"):
            async with asyncio.timeout(30):
                while not (reasons := (await client.get("stay-1")).reasons):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            await client.answer("stay-1", str(reasons[0].step_id), text)
        async with asyncio.timeout(60):
            assert await client.handle("stay-1", int).result() == 1
    assert len(old.requests) == 3
    assert not new.requests


async def test_a_person_may_stop_it(shared: Server) -> None:
    old, new = Script(QUESTION, name="old"), Script(finish(2), name="new")

    _, result = await _under_another(shared, "stop-1", _app(old), _app(new), answer="stop")

    assert "stopped by a person" in result
    assert not new.requests


async def _in_flight(shared: Server, task_id: str, app: App, reached: asyncio.Event) -> None:
    """The worker dies while the second decision is asked for."""
    async with dying(app, shared) as client:
        await client.submit(app.kinds["worker"].with_options(task_id=task_id), "go")
        await status_soon(shared, task_id, "paused")
        (reason,) = (await client.get(task_id)).reasons
        await client.answer(task_id, str(reason.step_id), "this one")
        await asyncio.wait_for(reached.wait(), 30)


@pytest.mark.parametrize("policy", ["pin", "allow", "pause"])
async def test_a_request_in_flight_goes_to_no_other_model_without_a_word(shared: Server, policy: OnChange) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def stuck(_: str) -> Any:
        reached.set()
        await gate.wait()

    old, new = Script(QUESTION, stuck, finish(1), name="old"), Script(finish(2), name="new")
    task_id = f"flight-{policy}"
    await _in_flight(shared, task_id, _app(old), reached)
    async with serving(_app(new, also=[old.model], on_change=policy), shared) as client:
        if policy == "pause":
            await asyncio.wait_for(_asked(shared, task_id), 30)
            (reason,) = (await client.get(task_id)).reasons
            assert not new.requests
            await client.answer(task_id, str(reason.step_id), "go on")
        async with asyncio.timeout(60):
            result = await client.handle(task_id, int).result()
        versions = (await client.get(task_id)).versions
    assert versions.model == ("function:old" if policy == "pin" else "function:new")
    assert versions.prompt
    assert (result, len(old.requests), len(new.requests)) == {"pin": (1, 3, 0)}.get(policy, (2, 2, 1))
    audited = await rows(shared, "select before, after from audit where task_id = $1 and what = 'version'", task_id)
    assert len(audited) == 1


async def test_the_first_request_in_flight_goes_to_no_other_model_without_a_word(shared: Server) -> None:
    reached, gate = asyncio.Event(), asyncio.Event()

    async def stuck(_: str) -> Any:
        reached.set()
        await gate.wait()

    old, new = Script(stuck, name="old"), Script(finish(2), name="new")
    app = _app(old)
    async with dying(app, shared) as client:
        await client.submit(app.kinds["worker"].with_options(task_id="first"), "go")
        await asyncio.wait_for(reached.wait(), 30)
    async with serving(_app(new), shared) as client:
        await asyncio.wait_for(_asked(shared, "first"), 30)
        assert not new.requests
        (reason,) = (await client.get("first")).reasons
        assert "model function:old is now function:new" in reason.message
        await client.answer("first", str(reason.step_id), "go on")
        async with asyncio.timeout(60):
            assert await client.handle("first", int).result() == 2
    assert len(await rows(shared, "select 1 from audit where task_id = 'first' and what = 'version'")) == 1
    assert [s for s in await told(shared, "first") if s.startswith("Decided (model function:old is now function:new)")]


async def test_another_version_stands_in_the_audit_trail_once_however_often_it_is_tried(shared: Server) -> None:
    reached, again, gate = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def stuck(event: asyncio.Event) -> Any:
        async def hang(_: str) -> None:
            event.set()
            await gate.wait()

        return hang

    old = Script(QUESTION, stuck(reached), name="old")
    new = Script(ConnectionRefusedError("not yet"), stuck(again), finish(2), name="new")
    await _in_flight(shared, "once", _app(old), reached)
    app = _app(new, on_change="allow", retries=RetryPolicy(base=0.01))
    async with dying(app, shared):
        await asyncio.wait_for(again.wait(), 30)
    async with serving(app, shared) as client, asyncio.timeout(60):
        assert await client.handle("once", int).result() == 2
    assert len(new.requests) == 3
    assert len(await rows(shared, "select 1 from audit where task_id = 'once' and what = 'version'")) == 1


async def test_a_stopped_task_that_is_retried_is_asked_about_again(shared: Server) -> None:
    old, new = Script(QUESTION, name="old"), Script(finish(2), name="new")
    await _under_another(shared, "stop-2", _app(old), _app(new), answer="stop")
    async with serving(_app(new), shared) as client:
        await client.retry("stop-2")
        await asyncio.wait_for(_asked(shared, "stop-2"), 30)
        (reason,) = (await client.get("stop-2")).reasons
        await client.answer("stop-2", str(reason.step_id), "go on")
        async with asyncio.timeout(60):
            assert await client.handle("stop-2", int).result() == 2
