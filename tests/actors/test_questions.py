"""`task.ask`: put once, answered once, the same on every run; nobody need hold the task meanwhile."""

import asyncio
from typing import Any

import pytest

from outlive.actors import App, Client, Task
from outlive.actors.testing import Server, virtual_time
from outlive.protocol.answers import Code
from outlive.protocol.commands import Signal
from outlive.protocol.errors import CommandRefused, TaskFailed
from outlive.protocol.steps import answer_signal
from tests.actors.scene import dying, events, row_soon, serving, status_soon, steps, told

app = App("questions")
go = app.signal("go", str)
words: dict[str, Any] = {"question": "In which month?", "choices": ()}


@app.task
async def asks(task: Task, limit: float | None = None) -> str:
    try:
        answer = await task.ask(words["question"], choices=words["choices"], timeout=limit)
    except TimeoutError as error:
        answer = str(error)
    then = await task.wait_for(go)
    return f"{answer}, {then}"


@app.task
async def asks_twice(task: Task) -> list[str]:
    return [*await task.gather(task.ask("left?"), task.ask("right?"))]


@app.task
async def asks_beside(task: Task) -> list[str]:
    return [*await task.gather(task.ask("sure?"), task.wait_for(go))]


@app.tool(read_only=True)
def look(name: str) -> str:
    return name


@app.task
async def asks_last(task: Task, depth: int) -> str:
    if depth:
        found, _ = await task.gather(asks_last.fn(task, depth - 1), task.call(look, "beside"))
        return str(found)
    return await task.ask("deep?")


@pytest.fixture(autouse=True)
def _same_words() -> None:
    words.update(question="In which month?", choices=())


async def _refused(client: Client, task_id: str, name: str, value: Any) -> tuple[Code, str]:
    with pytest.raises(CommandRefused) as refused:
        await client.command(task_id, Signal(name=name, value=value))
    return refused.value.answer.code, refused.value.answer.message


async def test_a_question_pauses_its_task_and_its_answer_lets_it_go_on(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(asks.with_options(task_id="q"))
        await status_soon(shared, "q", "paused")
        task = await client.get("q")
        (asked,) = task.reasons
        assert (asked.reason, asked.message, asked.step_id, asked.until) == ("question", "In which month?", "1", None)
        assert task.needs == ["outlive answer q 1 TEXT"]
        assert "To go on: outlive answer q 1 TEXT" in await client.why("q")
    async with serving(app, shared) as client:
        assert (await client.answer("q", "1", "June")).message == ("Question 1 is answered by tester. Task q goes on.")
        code, message = await _refused(client, "q", "answer-1", "May")
        assert code is Code.STALE
        assert message.startswith("Task q asks no question that answer-1 would answer: tester answered it at 20")
        await client.signal("q", go, "on")
        assert await client.result("q", str, 20) == "June, on"
    assert [fact for fact in await steps(shared, "q") if fact[1] == "ask"] == [
        ("1", "ask", "waiting"), ("1", "ask", "completed"),
    ]  # fmt: skip
    assert {"Asks: In which month?", "Paused: In which month?", "tester answered: June"} <= {*await told(shared, "q")}


async def test_only_a_text_and_only_a_choice_is_an_answer(shared: Server) -> None:
    words["choices"] = ("yes", "no")
    async with serving(app, shared) as client:
        await client.submit(asks.with_options(task_id="c"))
        await status_soon(shared, "c", "paused")
        (asked,) = (await client.get("c")).reasons
        assert (asked.message, asked.choices) == ("In which month? (yes / no)", ["yes", "no"])
        for value in ("maybe", 3, None):
            assert await _refused(client, "c", "answer-1", value) == (
                Code.INVALID, "Question 1 of task c is answered with one of: yes, no. Nothing was changed.",
            )  # fmt: skip
        assert await _refused(client, "c", "answer-2", "yes") == (
            Code.STALE, "Task c asks no question that answer-2 would answer. It waits for: question (outlive answer c 1 TEXT)",
        )  # fmt: skip
        await client.answer("c", "1", "no")
        await client.signal("c", go, "on")
        assert await client.result("c", str, 20) == "no, on"


async def test_two_questions_stand_side_by_side_and_the_task_goes_on_when_both_are_answered(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(asks_twice.with_options(task_id="two"))
        await status_soon(shared, "two", "paused")
        questions = {one.message: one.step_id or "" for one in (await client.get("two")).reasons}
        answer = await client.answer("two", questions["right?"], "r")
        assert "Task two stays paused. It waits for: question" in answer.message
        await client.answer("two", questions["left?"], "l")
        assert await client.result("two", list[str], 20) == ["l", "r"]


async def test_a_task_with_another_branch_stays_in_memory_and_takes_the_answer_there(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(asks_beside.with_options(task_id="b"))
        await row_soon(shared, "select 1 from task where task_id = 'b' and reasons is not null and status = 'running'")
        (asked,) = (await client.get("b")).reasons
        await client.answer("b", asked.step_id or "", "yes")
        code, message = await _refused(client, "b", answer_signal(asked.step_id or ""), "no")
        assert (code, "tester answered it at" in message) == (Code.STALE, True)
        await client.signal("b", go, "on")
        assert await client.result("b", list[str], 20) == ["yes", "on"]


async def test_who_comes_second_is_told_who_came_first_by_another_worker_too(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(asks.with_options(task_id="w"))
        await status_soon(shared, "w", "paused")
        await client.answer("w", "1", "June")
        await row_soon(shared, "select 1 from task where task_id = 'w' and waiting_for = 'signal go'")
    async with serving(app, shared) as client:
        await row_soon(shared, "select 1 from task where task_id = 'w' and owner is not null and epoch > 3")
        code, message = await _refused(client, "w", "answer-1", "May")
        assert (code, "tester answered it at 20" in message) == (Code.STALE, True)


async def test_a_question_deep_in_branches_has_a_signal_all_the_same(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(asks_last.with_options(task_id="deep"), 32)
        await status_soon(shared, "deep", "paused")
        (asked,) = (await client.get("deep")).reasons
        assert len(asked.step_id or "") == 64
        await client.answer("deep", asked.step_id or "", "down here")
        assert await client.result("deep", str, 20) == "down here"


async def test_an_unanswered_question_runs_out_of_time_the_same_on_every_run(shared: Server) -> None:
    async with virtual_time(shared.postgres_dsn) as time:
        async with serving(app, shared, poll=0.2) as client:
            await client.submit(asks.with_options(task_id="late"), 3600.0)
            await status_soon(shared, "late", "paused")
            (asked,) = (await client.get("late")).reasons
            assert asked.until is not None
        await time.advance(3700)
        async with serving(app, shared, poll=0.2, linger=0) as client:
            await row_soon(shared, "select 1 from task where task_id = 'late' and waiting_for = 'signal go'")
            assert (await client.get("late")).reasons == []
            await status_soon(shared, "late", "running")
            assert (await _refused(client, "late", "answer-1", "June"))[0] is Code.STALE
            await client.signal("late", go, "on")
            assert await client.result("late", str, 20) == "nobody answered within 3600 s: In which month?, on"
    assert "nobody answered within 3600 s: In which month?" in await told(shared, "late")


async def test_another_question_at_the_same_place_is_never_taken_for_answered(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(asks.with_options(task_id="other"))
        await status_soon(shared, "other", "paused")
    words["question"] = "In which year?"
    async with serving(app, shared) as client:
        await client.answer("other", "1", "June")
        await row_soon(
            shared, "select 1 from task where task_id = 'other' and status = 'paused' and reasons is not null"
        )
        await status_soon(shared, "other", "paused")
        (reason,) = (await client.get("other")).reasons
        assert reason.reason == "version_mismatch"
        assert 'Step 1 was ask("In which month?") when this task ran before' in reason.message
        assert 'the code now calls ask("In which year?")' in reason.message
    assert [event["status"] for event in await events(shared, "other") if event["type"] == "status"][-1] == "paused"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"question": ""}, "ask: the question has 0 characters, 1 to 2000 are allowed"),
        ({"question": "x" * 2001}, "ask: the question has 2001 characters, 1 to 2000 are allowed"),
        ({"question": "x", "choices": ["a", "a"]}, "give different texts, none of them empty"),
        ({"question": "x", "choices": "ab"}, "give different texts, none of them empty"),
        ({"question": "x", "timeout": 0}, "give seconds above 0"),
    ],
)  # fmt: skip
async def test_what_cannot_be_asked_is_refused(shared: Server, arguments: dict[str, Any], said: str) -> None:
    own = App("wrong")

    @own.task
    async def wrong(task: Task) -> str:
        return await task.ask(**arguments)

    async with serving(own, shared) as client:
        handle = await client.submit(wrong)
        with pytest.raises(TaskFailed, match=said):
            await asyncio.wait_for(handle.result(), 20)


def test_the_names_of_answers_are_taken() -> None:
    with pytest.raises(ValueError, match=r"signal 'answer-4' is taken: answer-\.\.\. are the answers to task\.ask"):
        App("taken").signal("answer-4", str)
