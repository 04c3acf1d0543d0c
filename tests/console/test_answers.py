"""What a person says to a task that cannot go on alone: from Python and from the command line, against a worker."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outlive.actors import App, Operation, OutcomeUnknown, StepFailed, Task, TaskCancelled
from outlive.actors.console.submit import Order, submit
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.protocol.answers import Code
from outlive.protocol.errors import CommandRefused, TaskFailed
from outlive.protocol.task import Status
from tests.console.keyboard import typed

app = App("answers")
ORDER = ("kind", "words", "whole", "task_id", "priority", "labels", "requires_approval")
broken: set[str] = set()


@app.tool(requires_approval=lambda amount, **_: amount > 100)
def pay(amount: int, to: str = "me") -> str:
    return f"{amount} to {to}"


@app.tool(timeout=2)
def charge(amount: int) -> int:
    raise OutcomeUnknown("the line went dead")


@app.tool(read_only=True)
def look(path: str) -> str:
    if path in broken:
        raise ValueError(f"{path} is broken")
    return path


@app.tool(idempotent=True)
def reserve(seat: str) -> str:
    return seat


@reserve.compensate(idempotent=True)
def release(op: Operation, seat: str) -> str:
    return f"{op.undoes.result} is free"


@app.task
async def sit(task: Task) -> str:
    await task.call(charge_nothing, 5)
    await task.call(reserve, "4a")
    return await task.wait_for(go)


@app.tool(idempotent=True)
def charge_nothing(amount: int) -> int:
    return amount


go = app.signal("go", str)


@app.task
async def buy(task: Task, amount: int) -> str:
    try:
        return await task.call(pay, amount)
    except StepFailed as error:
        return error.failure.message


@app.task
async def buy_two(task: Task) -> list[str]:
    return [*await task.gather(task.call(pay, 500), task.call(pay, 600))]


@app.task
async def bill(task: Task) -> int:
    return await task.call(charge, 12)


@app.task
async def read(task: Task, path: str) -> str:
    return await task.call(look, path)


@app.task
async def stumble(task: Task) -> str:
    found = await task.call(look, "a")
    if "stumble" in broken:
        raise RuntimeError("a bug of the task")
    return found


@app.task
async def plan_trip(task: Task) -> str:
    return f"{await task.ask('When?')} {await task.ask('Sure?', choices=['yes', 'no'])}"


@app.task
async def ask_two(task: Task) -> list[str]:
    return [*await task.gather(task.ask("left?"), task.ask("right?"))]


@pytest.fixture(autouse=True)
def _mended() -> Iterator[None]:
    yield
    broken.clear()


async def reaches(handle: Handle[object], status: Status) -> None:
    async with asyncio.timeout(10):
        while await handle.status() is not status:  # noqa: ASYNC110  # asks over the wire
            await asyncio.sleep(0.02)


async def test_the_first_answer_counts_and_the_second_is_told_who_came_first(client: Client) -> None:
    handle = await client.submit(buy, 500)
    await reaches(handle, Status.PAUSED)
    (reason,) = (await handle.record()).reasons
    with pytest.raises(CommandRefused) as caught:
        await client.approve(handle.task_id, "1", digest="0" * 32)
    assert caught.value.answer.code is Code.STALE
    await client.pause(handle.task_id)  # so that it still lives when the second answer comes
    assert (await client.approve(handle.task_id, "1:1", digest=reason.digest)).code is Code.APPLIED
    with pytest.raises(CommandRefused) as caught:
        await client.reject(handle.task_id, "1")
    assert caught.value.answer.code is Code.STALE
    assert "does not wait for an approval: ann approved it at " in caught.value.answer.message
    await client.resume(handle.task_id)
    assert await handle.result(10) == "500 to me"


async def test_a_small_amount_needs_no_yes(client: Client) -> None:
    assert await (await client.submit(buy, 3)).result(10) == "3 to me"


async def test_who_submits_may_want_a_yes_for_a_small_amount_too(client: Client) -> None:
    words = ["buy", "amount:=3", "--task-id", "small", "--require-approval", "pay"]
    order = submit.make_context("submit", words).params
    wanted = Order.read(**{name: order[name] for name in ORDER})
    handle = await wanted.submit(client)
    await reaches(handle, Status.PAUSED)
    assert (await typed("approve", "small")).exit_code == 0
    assert await handle.result(10) == "3 to me"


async def test_an_operation_may_be_left_out_where_there_is_one(client: Client) -> None:
    handle = await client.submit(buy, 500)
    await reaches(handle, Status.PAUSED)
    done = await typed("reject", handle.task_id, "--reason", "too much", "--by", "bob")
    assert (done.exit_code, done.stdout) == (0, f"Operation 1:1 is rejected by bob. Task {handle.task_id} goes on.\n")
    assert "too much" in await handle.result(10)
    again = await typed("approve", handle.task_id)
    assert again.exit_code == 1
    assert f"task {handle.task_id} does not wait for an approval. See: outlive why" in again.stderr


async def test_one_of_several_operations_must_be_named(client: Client) -> None:
    handle = await client.submit(buy_two)
    await reaches(handle, Status.PAUSED)
    unnamed = await typed("approve", handle.task_id)
    assert unnamed.exit_code == 2
    assert "2 steps of task" in unnamed.stderr
    names = sorted(str(reason.step_id) for reason in (await handle.record()).reasons)
    for name in names:
        assert (await typed("approve", handle.task_id, name, "--json")).exit_code == 0
    assert await handle.result(10) == ["500 to me", "600 to me"]


async def test_a_lost_answer_is_resolved_and_stands_on_the_receipt(client: Client) -> None:
    handle = await client.submit(bill)
    await reaches(handle, Status.PAUSED)
    wrong = await typed("resolve", handle.task_id)
    assert wrong.exit_code == 2
    assert "say one of --happened JSON, --result-lost, --did-not-happen, --give-up" in wrong.stderr
    done = await typed("resolve", handle.task_id, "1", "--happened", "7", "--reference", "bank, line 3", "--by", "bob")
    assert done.exit_code == 0, done.stderr
    assert await handle.result(10) == 7
    shown = await typed("receipt", handle.task_id)
    assert shown.exit_code == 0
    for text in ("charge (step 1)", "happened", ":1:1", '{"amount":12}', "bob (claimed)", "bank, line 3"):
        assert text in shown.stdout, shown.stdout
    (effect,) = json.loads((await typed("receipt", handle.task_id, "--json")).stdout)["effects"]
    assert (effect["operation_id"], effect["status"], effect["arguments"]) == ("1:1", "succeeded", {"amount": 12})
    assert [(word["verb"], word["verdict"], word["by"]) for word in effect["words"]] == [("resolve", "happened", "bob")]


async def test_a_cancel_that_undoes_stands_on_the_receipt(client: Client) -> None:
    handle = await client.submit(sit)
    async with asyncio.timeout(10):
        while (await handle.record()).waiting_for != "signal go":  # noqa: ASYNC110  # a table tells no event
            await asyncio.sleep(0.01)
    done = await typed("cancel", handle.task_id, "--compensate", "--by", "bob")
    assert done.exit_code == 0, done.stderr
    assert "then what it did is undone" in done.stdout
    with pytest.raises(TaskCancelled, match=r"Stays: charge_nothing \(step 1: no compensator\). Undone: reserve"):
        await handle.result(10)
    effects = json.loads((await typed("receipt", handle.task_id, "--json")).stdout)["effects"]
    assert [(one["operation_id"], one["name"], one["outcome"], one["undoes"]) for one in effects] == [
        ("1:1", "charge_nothing", "happened", None),
        ("2:1", "reserve", "undone", None),
        ("undo-2:1", "release", "happened", "2:1"),
    ]
    assert "happened, and was undone" in (await typed("receipt", handle.task_id)).stdout
    late = await typed("cancel", handle.task_id, "--compensate")
    assert late.exit_code == 1
    assert "can be undone by hand only" in late.stderr


async def test_a_failed_task_goes_on_after_a_fix(client: Client) -> None:
    broken.add("a")
    handle = await client.submit(read, "a")
    with pytest.raises(TaskFailed):
        await handle.result(10)
    broken.clear()
    done = await typed("retry", handle.task_id)
    assert (done.exit_code, done.stdout) == (0, f"Task {handle.task_id} goes on from its checkpoint.\n"), done.stderr
    assert await handle.result(10) == "a"


async def test_a_task_whose_own_code_failed_goes_on_after_a_fix(client: Client) -> None:
    broken.add("stumble")
    handle = await client.submit(stumble)
    with pytest.raises(TaskFailed):
        await handle.result(10)
    with pytest.raises(CommandRefused) as caught:
        await client.skip(handle.task_id, "1", "b")
    assert caught.value.answer.message == f'Step 1 of task {handle.task_id} is completed: its result stands: "a"'
    again = await typed("retry", handle.task_id, "1")
    assert again.exit_code == 1
    assert 'its result stands: "a"' in again.stderr
    broken.clear()
    assert (await typed("retry", handle.task_id)).exit_code == 0
    assert await handle.result(10) == "a"


async def test_a_step_that_failed_is_tried_with_other_arguments(client: Client, tmp_path: Path) -> None:
    broken.add("a")
    handle = await client.submit(read, "a")
    with pytest.raises(TaskFailed):
        await handle.result(10)
    for words, said in (
        ("[1]", "--args must be a JSON object"),
        ("{", "--args is no JSON"),
        ("@nothing", "--args @nothing"),
    ):
        wrong = await typed("retry", handle.task_id, "1", "--args", words)
        assert (wrong.exit_code, said in wrong.stderr) == (2, True), wrong.stderr
    unfit = await typed("retry", handle.task_id, "1", "--args", '{"paht": "b"}')
    assert unfit.exit_code == 1
    assert "Object contains unknown field `paht`. Nothing was changed." in unfit.stderr
    (tmp_path / "args.json").write_text('{"path": "b"}')
    done = await typed("retry", handle.task_id, "--args", f"@{tmp_path}/args.json", "--by", "bob")
    message = f"Task {handle.task_id} goes on from its checkpoint, step 1 with the arguments given by bob.\n"
    assert (done.exit_code, done.stdout) == (0, message), done.stderr
    assert await handle.result(10) == "b"
    shown = await typed("show", handle.task_id)
    assert "1:2" in shown.stdout
    assert "arguments corrected: bob (claimed)" in shown.stdout
    pieces = [json.loads(line) for line in (await typed("export", handle.task_id)).stdout.splitlines()]
    assert [piece["word"]["operation_id"] for piece in pieces if "word" in piece] == ["2"]
    (corrected,) = [piece["audit"] for piece in pieces if "audit" in piece and piece["audit"]["what"] == "correct"]
    assert (corrected["who"], corrected["before"], corrected["after"]) == ("bob", '{"path":"a"}', '{"path":"b"}')


async def test_an_effect_is_sent_again_under_a_new_key_and_the_receipt_shows_both(client: Client) -> None:
    handle = await client.submit(bill)
    await reaches(handle, Status.PAUSED)
    wrong = await typed("resolve", handle.task_id, "--give-up", "--new-operation")
    assert wrong.exit_code == 2
    assert "--new-operation goes with --did-not-happen alone" in wrong.stderr
    done = await typed("resolve", handle.task_id, "--did-not-happen", "--new-operation")
    assert done.exit_code == 0, done.stderr
    async with asyncio.timeout(10):
        while [each.operation_id for each in (await handle.record()).reasons] != ["2"]:  # noqa: ASYNC110  # asks over the wire
            await asyncio.sleep(0.02)
    old = await typed("resolve", handle.task_id, "1:1", "--give-up")
    assert old.exit_code == 1
    assert "the current operation of step 1 is 1:2" in old.stderr
    assert (await typed("resolve", handle.task_id, "--happened", "7")).exit_code == 0
    assert await handle.result(10) == 7
    shown = await typed("receipt", handle.task_id)
    for text in ("charge (step 1)", "charge (step 1, operation 2)", "sent again under a new key", ":1:1", ":1:2"):
        assert text in shown.stdout, shown.stdout
    first, second = json.loads((await typed("receipt", handle.task_id, "--json")).stdout)["effects"]
    assert (first["status"], first["result"], second["status"], second["result"]) == ("failed", None, "succeeded", 7)


async def test_a_failed_step_gets_its_result_from_a_person(client: Client) -> None:
    broken.add("a")
    handle = await client.submit(read, "a")
    with pytest.raises(TaskFailed):
        await handle.result(10)
    done = await typed("skip", handle.task_id, "1", '"b"')
    assert done.exit_code == 0, done.stderr
    assert await handle.result(10) == "b"


async def test_a_question_is_answered_by_its_text_alone_or_by_step_and_text(client: Client) -> None:
    handle = await client.submit(plan_trip)
    await reaches(handle, Status.PAUSED)
    assert f"  When?\n  outlive answer {handle.task_id} 1 TEXT" in (await typed("waiting")).stdout
    answered = await typed("answer", handle.task_id, "in June", "--by", "ann")
    assert answered.stdout == f"Question 1 is answered by ann. Task {handle.task_id} goes on.\n"
    async with asyncio.timeout(10):
        while [one.step_id for one in (await handle.record()).reasons] != ["2"]:  # noqa: ASYNC110  # asks over the wire
            await asyncio.sleep(0.02)
    wrong = await typed("answer", handle.task_id, "2", "maybe")
    assert (wrong.exit_code, "is answered with one of: yes, no" in wrong.stderr) == (1, True)
    unquoted = await typed("answer", handle.task_id, "in", "the", "summer")
    assert (unquoted.exit_code, "quote a text of several words" in unquoted.stderr) == (2, True)
    assert (await typed("answer", handle.task_id, "2", "yes")).exit_code == 0
    assert await handle.result(20) == "in June yes"
    late = await typed("answer", handle.task_id, "more")
    assert (late.exit_code, "does not wait for an answer" in late.stderr) == (1, True)


async def test_of_several_questions_one_must_be_named(client: Client) -> None:
    handle = await client.submit(ask_two)
    await reaches(handle, Status.PAUSED)
    unnamed = await typed("answer", handle.task_id, "yes")
    assert (unnamed.exit_code, "2 steps of task" in unnamed.stderr, "left?" in unnamed.stderr) == (2, True, True)
