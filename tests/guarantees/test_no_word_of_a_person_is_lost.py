"""Whatever moment a person's word comes at: it is applied, or answered with why it came too late. None vanishes.

Each word is sent at a random moment around the one at which its task moves on by itself.
"""

import asyncio
import collections
from random import Random
from typing import Final

import nats
import pytest

from outlive.actors import App, Client, InvalidArguments, Operation, OutcomeUnknown, StepFailed, Task
from outlive.actors.testing import Server
from outlive.protocol.answers import Code
from outlive.protocol.commands import AnyCommand, Approve, Pause, Resolve, Resume, Retry, Signal, Skip
from outlive.protocol.errors import CommandRefused
from outlive.protocol.task import Status
from tests.actors.scene import dying, events, ledger, row_soon, rows, serving, soon

TIMES: Final = 100
MOMENT: Final = 0.4
"""Seconds after its submit at which a task moves on."""

app = App("words")
go = app.signal("go", int)
sent: "collections.Counter[str]" = collections.Counter()
open_: list[asyncio.Event] = []
NO: Final = {Code.STALE, Code.TOO_LATE, Code.ILLEGAL_TRANSITION}


@app.tool(idempotent=True)
async def fails_once(op: Operation) -> int:
    task_id = op.key.partition("/")[2].partition(":")[0]
    sent[task_id] += 1
    if sent[task_id] > 1:
        return 1
    await asyncio.sleep(MOMENT)
    raise InvalidArguments("not like this")


@app.tool(timeout=5)
async def lost(op: Operation) -> int:
    sent[op.key.partition("/")[2].partition(":")[0]] += 1
    await asyncio.sleep(MOMENT)
    raise OutcomeUnknown("the line went dead")


@app.tool(read_only=True)
async def holds() -> int:
    await open_[-1].wait()
    return 1


@app.tool(requires_approval=True, approval_ttl=MOMENT)
async def pay(op: Operation) -> int:
    sent[op.key.partition("/")[2].partition(":")[0]] += 1
    return 1


@app.tool(requires_approval=True)
async def confirm(op: Operation) -> int:
    sent[op.key.partition("/")[2].partition(":")[0]] += 1
    return 1


@app.task
async def failing(task: Task) -> int:
    return await task.call(fails_once)


@app.task
async def losing(task: Task) -> int:
    return await task.call(lost)


@app.task
async def beside(task: Task, tool: str) -> list[int]:
    skipped: asyncio.Event = asyncio.Event()

    async def first() -> int:
        result = await task.call(lost if tool == "lost" else confirm)
        skipped.set()
        return result

    async def second() -> int:
        return await task.call(holds)

    open_.append(skipped)
    return [*await task.gather(first(), second())]


@app.task
async def paying(task: Task) -> str:
    try:
        await task.call(pay)
    except StepFailed as error:
        return error.failure.type
    return "paid"


@app.task
async def ending(task: Task) -> list[int]:
    await task.sleep(MOMENT)
    return []


@app.task
async def waiting(task: Task) -> int:
    return await task.wait_for(go)


@pytest.fixture(autouse=True)
def _anew() -> None:
    sent.clear()


async def say(client: Client, task_id: str, command: AnyCommand, pause: float) -> Code:
    """Say it after a pause; there is always an answer."""
    await asyncio.sleep(pause)
    try:
        return (await client.command(task_id, command, timeout=60)).code
    except CommandRefused as refused:
        return refused.answer.code


async def race(client: Client, kind: str, command: AnyCommand) -> dict[str, Code]:
    """Submit tasks, and say the same to each at a random moment around that at which it moves on; the answers."""
    random = Random(kind)

    async def one(n: int) -> tuple[str, Code]:
        task_id = f"{kind}-{n}"
        await client.submit(kind, {}, task_id=task_id)
        return task_id, await say(client, task_id, command, random.uniform(0.5, 2.0) * MOMENT)

    return dict([await each for each in asyncio.as_completed([one(n) for n in range(TIMES)])])


async def settled(server: Server, status: str) -> None:
    """All tasks have come to rest, the words that were kept are answered, and every event has its number."""
    await soon(
        lambda: rows(
            server, "select 1 where not exists (select 1 from task where owner is not null and ended_at is null)"
        )
    )
    open_words = "select command_id from inbox where code is null and pos is not null and verb <> 'submit'"
    assert not await rows(server, open_words)
    assert {row["status"] for row in await rows(server, "select distinct status from task")} <= set(status.split())


async def test_retry_while_the_step_fails(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        answers = await race(client, "failing", Retry(step_id="1"))
        assert set(answers.values()) <= {Code.APPLIED, *NO}
        applied = [task_id for task_id, code in answers.items() if code is Code.APPLIED]
        for task_id in applied:
            assert await client.result(task_id, int, timeout=60) == 1
        await settled(shared, "failed succeeded")
    assert sent == {task_id: 1 + (task_id in applied) for task_id in answers}


@pytest.mark.parametrize("kind", ["failing", "losing"])
async def test_skip_while_the_step_ends(shared: Server, kind: str) -> None:
    async with serving(app, shared, linger=0) as client:
        answers = await race(client, kind, Skip(step_id="1", result=7))
        assert set(answers.values()) <= {Code.APPLIED, *NO}
        for task_id, code in answers.items():
            if code is Code.APPLIED:
                assert await client.result(task_id, int, timeout=60) == 7
        await settled(shared, "failed paused succeeded")
    assert set(sent.values()) == {1}


async def test_resolve_while_the_question_is_asked(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        answers = await race(client, "losing", Resolve(operation_id="1", verdict="happened", result=7))
        assert set(answers.values()) <= {Code.APPLIED, *NO}
        for task_id, code in answers.items():
            if code is not Code.APPLIED:  # it came before the question, and said so: now is the time
                await row_soon(shared, "select 1 from task where task_id = $1 and status = 'paused'", task_id)
                await client.command(task_id, Resolve(operation_id="1", verdict="happened", result=7))
            assert await client.result(task_id, int, timeout=60) == 7
        await settled(shared, "succeeded")
    assert set(sent.values()) == {1}


@pytest.mark.parametrize(("tool", "status", "calls"), [("lost", "unknown", 1), ("confirm", "failed", 0)])
async def test_a_step_that_is_skipped_beside_one_that_runs_ends_at_once(
    shared: Server, tool: str, status: str, calls: int
) -> None:
    """The task stays in memory for the other branch's sake: the word reaches the step that waits."""
    async with serving(app, shared) as client:
        await client.submit("beside", {"tool": tool}, task_id="b")
        await row_soon(shared, "select 1 from task where reasons is not null and reasons <> '[]'")
        await client.command("b", Skip(step_id="1-1-1", result=7))
        assert await client.result("b", list[int], timeout=20) == [7, 1]
        assert await ledger(shared, "b") == [("1-1-1", status, 1)]
    assert sent["b"] == calls


async def test_two_people_answer_at_once_and_the_first_one_counts(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        for n in range(20):
            await client.submit("losing", {}, task_id=f"t-{n}")
        for n in range(20):
            await row_soon(shared, "select 1 from task where task_id = $1 and status = 'paused'", f"t-{n}")
            both = [Resolve(operation_id="1", verdict="happened", result=result) for result in (1, 2)]
            codes = await asyncio.gather(*(say(client, f"t-{n}", each, 0) for each in both))
            assert sorted(code is Code.APPLIED for code in codes) == [False, True], codes
            assert await client.result(f"t-{n}", int, timeout=60) == 1 + codes.index(Code.APPLIED)


async def test_approve_while_the_question_runs_out(shared: Server) -> None:
    async with serving(app, shared, linger=0) as client:
        answers = await race(client, "paying", Approve(operation_id="1"))
        assert set(answers.values()) <= {Code.APPLIED, *NO}
        for task_id, code in answers.items():
            result = await client.result(task_id, str, timeout=60)
            assert result == ("paid" if sent[task_id] else "ApprovalExpired")
            assert code is Code.APPLIED or not sent[task_id], "what was refused sends nothing"
        await settled(shared, "succeeded")
    assert set(sent.values()) <= {1}


@pytest.mark.parametrize("command", [Signal(name="go", value=1), Pause()], ids=lambda each: type(each).__name__.lower())
async def test_what_comes_with_the_end_of_a_task_is_applied_or_too_late(shared: Server, command: AnyCommand) -> None:
    async with serving(app, shared, linger=0) as client:
        answers = await race(client, "ending", command)
        assert set(answers.values()) <= {Code.APPLIED, Code.TOO_LATE}
        for task_id in answers:
            record = await client.get(task_id)
            if record.status is Status.PAUSED:
                await client.resume(task_id)
            assert await client.result(task_id, list[int], timeout=60) == []
            ends = [event["seq"] for event in await events(shared, task_id) if event.get("final")]
            assert ends == [len(await events(shared, task_id))], "nothing follows the end"
        await settled(shared, "succeeded")


async def test_an_old_resume_that_comes_again_undoes_no_later_pause(shared: Server) -> None:
    first, second = Resume(command_id="r-1"), Resume(command_id="r-2")
    async with serving(app, shared) as client:
        await client.submit("waiting", {}, task_id="w")
        await row_soon(shared, "select 1 from task where waiting_for is not null")
        assert await say(client, "w", second, 0) is Code.ILLEGAL_TRANSITION  # it overtook the pause it was meant for
        await client.pause("w")
        assert await say(client, "w", first, 0) is Code.APPLIED
        await client.pause("w")
        await row_soon(shared, "select 1 from task where status = 'paused'")
        for again in (second, first, second, first):  # each is answered as it was, and does nothing
            await say(client, "w", again, 0)
            assert (await client.get("w")).status is Status.PAUSED
        await client.resume("w")
        await client.signal("w", go, 3)
        assert await client.result("w", int, timeout=20) == 3


async def test_a_stale_wake_up_after_a_take_over_changes_nothing(shared: Server) -> None:
    """Words meant for the last owner, and looks for work where there is none, move no task and run nothing twice."""
    async with dying(app, shared) as client:
        await client.submit("waiting", {}, task_id="w")
        held = await row_soon(shared, "select owner from task where waiting_for is not null and owner is not null")
    async with serving(app, shared) as client:
        await row_soon(shared, "select 1 from task where owner <> $1", held["owner"])
        before = await rows(shared, "select owner, epoch, last_seq from task")
        options = {"token": shared.nats_token} if shared.nats_token else {}
        bus = await nats.connect(shared.nats_url, **options)
        for _ in range(20):
            await bus.publish(shared.subjects.wake(str(held["owner"])), b'[["default","w"]]')
            await bus.publish(shared.subjects.wake(str(before[0]["owner"])), b'[["default","w"],["default","x"]]')
            await bus.publish(shared.subjects.wake("all"), b'{"due":true,"mail":true}')
        await bus.close()
        await client.submit("ending", {}, task_id="behind")  # what was published before it has been heard
        await client.result("behind", list[int], timeout=20)
        assert await rows(shared, "select owner, epoch, last_seq from task where task_id = 'w'") == before
        await client.signal("w", go, 3)
        assert await client.result("w", int, timeout=20) == 3
