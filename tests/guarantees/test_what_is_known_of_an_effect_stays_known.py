"""What is known of an effect stays known: no later error, retry or undoing makes it "did not happen", or sends it again."""

import asyncio
from collections import Counter
from typing import Final

import pytest

from outlive.actors import App, Operation, Outcome, RetryPolicy, StepFailed, Task
from outlive.actors.testing import Server
from outlive.protocol.commands import Approve, Reject, Retry
from outlive.protocol.errors import OutcomeUnknown, PermissionDenied, RateLimited, Unavailable
from outlive.protocol.operations import OperationStatus
from outlive.protocol.task import ReasonCode
from tests.actors.scene import attempts, dying, ledger, row_soon, rows, serving, status_soon

app = App("known")
go = app.signal("go", bool)
sent: "Counter[str]" = Counter()
keys: list[str] = []
QUICK: Final = RetryPolicy(max_attempts=3, base=0.01, cap=0.02)


@pytest.fixture(autouse=True)
def _anew() -> None:
    sent.clear()
    keys.clear()
    Switch.fixed = Switch.asks = False


class Switch:
    """What a deploy would change."""

    fixed = False
    asks = False


# --- a remote that knows keys: done, its answer lost, and then it lets us in no more


@app.tool(idempotent=True, retries=QUICK, unique=lambda order: order)
async def refund(op: Operation, order: str) -> int:
    if op.key in keys and not Switch.fixed:
        raise PermissionDenied("the token has run out")
    sent[order] += op.key not in keys
    keys.append(op.key)
    if not Switch.fixed:
        raise OutcomeUnknown("the line went dead")
    return 1


@app.task
async def refunding(task: Task, order: str) -> int:
    return await task.call(refund, order)


async def test_a_later_no_says_nothing_of_the_attempt_whose_answer_was_lost(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(refunding.with_options(task_id="a"), "o-1")
        await status_soon(shared, "a", "failed")
        assert [row[1:] for row in await attempts(shared, "a")] == [(1, "timeout"), (2, "permission_denied")]
        assert await ledger(shared, "a") == [("1", "unknown", 2)]
        await client.submit(refunding.with_options(task_id="b"), "o-1")
        await status_soon(shared, "b", "paused")  # the same action: nobody knows, so it is not sent under another key
        assert sent == {"o-1": 1}
        await client.cancel("b")
        Switch.fixed = True
        await client.retry("a", "1")
        assert await client.result("a", int, timeout=20) == 1
    assert sent == {"o-1": 1}
    assert set(keys) == {"default/a:1:1"}


async def test_the_same_after_the_death_of_its_worker(shared: Server) -> None:
    """Another worker makes the attempt that is turned away: what the first one left open stays open."""
    async with dying(app, shared) as client:
        await client.submit(slowly.with_options(task_id="a"), "o-1")
        await row_soon(shared, "select 1 from attempt where task_id = 'a' and attempt = 1")
    async with serving(app, shared) as client:
        await status_soon(shared, "a", "failed")
        assert await ledger(shared, "a") == [("1", "unknown", 2)]
        await client.retry("a", "1")
        await row_soon(shared, "select 1 from attempt where attempt = 3")
        await status_soon(shared, "a", "failed")
        assert await ledger(shared, "a") == [("1", "unknown", 3)]


@app.task
async def slowly(task: Task, order: str) -> int:
    wait = RetryPolicy(max_attempts=2, base=2, cap=2)
    return await task.call(refund.with_options(retries=wait), order)


# --- it has happened, and its result is lost


class Odd:
    """Cannot be stored."""


def _result() -> int:
    return 7 if Switch.fixed else Odd()  # type: ignore[return-value]  # a mistake in the tool


@app.tool
async def mute(op: Operation) -> int:
    sent["mute"] += 1
    return _result()


@app.tool(settle=0)
async def asked(op: Operation) -> int:
    sent["asked"] += 1
    return _result()


@asked.reconcile
async def find_asked(op: Operation) -> Outcome[int]:
    return Outcome.happened(7) if sent["found"] else Outcome.did_not_happen()


@app.tool(idempotent=True)
async def keyed(op: Operation) -> int:
    keys.append(op.key)
    return _result()


TOOLS = {tool.name: tool for tool in (mute, asked, keyed)}


@app.task
async def once(task: Task, tool: str) -> int:
    return await task.call(TOOLS[tool])


@pytest.mark.parametrize("tool", ["mute", "asked"])
async def test_what_has_happened_is_not_sent_again_by_a_retry(shared: Server, tool: str) -> None:
    async with serving(app, shared) as client:
        await client.submit(once.with_options(task_id="t"), tool)
        await status_soon(shared, "t", "failed")
        assert await ledger(shared, "t") == [("1", "succeeded", 1)]
        await client.retry("t", "1")
        await status_soon(shared, "t", "paused")
        assert sent[tool] == 1
        (reason,) = (await client.get("t")).reasons
        assert reason.reason is ReasonCode.OUTCOME_UNKNOWN
        assert f"{tool} has happened" in reason.message
        await client.resolve("t", "1", "happened", result=7)
        assert await client.result("t", int, timeout=20) == 7
    assert sent[tool] == 1


async def test_a_retry_asks_the_world_for_the_result_that_was_lost(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(once.with_options(task_id="t"), "asked")
        await status_soon(shared, "t", "failed")
        sent["found"] = 1
        await client.retry("t", "1")
        assert await client.result("t", int, timeout=20) == 7
    assert sent["asked"] == 1


async def test_with_a_key_a_retry_gets_the_result_under_the_same_key(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(once.with_options(task_id="t"), "keyed")
        await status_soon(shared, "t", "failed")
        Switch.fixed = True
        await client.retry("t", "1")
        assert await client.result("t", int, timeout=20) == 7
    assert keys == ["default/t:1:1"] * 2


# --- a person's word that was taken back


@app.tool(requires_approval=True)
async def pay(op: Operation, cents: int) -> int:
    sent["pay"] += 1
    return sent["pay"]


@app.task
async def paying(task: Task) -> list[int]:
    first = await task.call(pay, 5)
    await task.wait_for(go)
    return [first, await task.call(pay, 5)]


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_no_that_a_person_has_taken_back_refuses_no_later_call(shared: Server, restarted: bool) -> None:
    async with dying(app, shared, linger=0 if restarted else 30) as client:
        await client.submit(paying.with_options(task_id="p"))
        await status_soon(shared, "p", "paused")
        await client.command("p", Reject(operation_id="1", reason="too much"))
        await status_soon(shared, "p", "failed")
        await client.command("p", Retry(step_id="1"))
        await status_soon(shared, "p", "paused")
        await client.command("p", Approve(operation_id="1"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
        await client.signal("p", go, True)
        await status_soon(shared, "p", "paused")
        await client.command("p", Approve(operation_id="3"))
        assert await client.result("p", list[int], timeout=20) == [1, 2]
        notes = await rows(shared, "select note from operation order by step_id")
        assert not any("rejected" in (row["note"] or "") for row in notes)


# --- an answer of the world that does not fit


@app.tool(timeout=0.2, settle=0)
async def lost(op: Operation, how: str) -> int:
    sent["lost"] += 1
    raise OutcomeUnknown("the line went dead")


@lost.reconcile
async def find_lost(op: Operation, how: str) -> Outcome[int]:
    match how:
        case "misfit":
            return Outcome.happened("seven")  # type: ignore[arg-type]  # a mistake in the reconciler
        case "nothing":
            return None  # type: ignore[return-value]  # the same
        case _:
            return Outcome.unknown("no \ud800 file")


@app.task
async def losing(task: Task, how: str) -> int:
    return await task.call(lost.with_options(retries=QUICK), how)


@pytest.mark.parametrize(
    ("how", "said"),
    [("misfit", "its result does not fit"), ("nothing", "not an Outcome"), ("surrogate", "cannot tell: no ? file")],
)
async def test_a_reconciler_that_answers_nonsense_leads_to_a_person(shared: Server, how: str, said: str) -> None:
    async with serving(app, shared) as client:
        await client.submit(losing.with_options(task_id="l"), how)
        await status_soon(shared, "l", "paused")
        (reason,) = (await client.get("l")).reasons
        assert reason.reason is ReasonCode.OUTCOME_UNKNOWN
        assert said in reason.message
        await client.resolve("l", "1", "happened", result=7)
        assert await client.result("l", int, timeout=20) == 7
    assert sent == {"lost": 1}


# --- it did not happen, and the remote wants to be left alone


@app.tool(timeout=0.2, settle=0, retries=RetryPolicy(max_attempts=3, base=0.01, cap=0.02, max_wait=1))
async def busy(op: Operation) -> int:
    sent["busy"] += 1
    if sent["busy"] == 1:
        raise Unavailable("closed", retry_after=7200)
    return 1


@busy.reconcile
async def find_busy(op: Operation) -> Outcome[int]:
    return Outcome.did_not_happen()


@app.task
async def knocking(task: Task) -> int:
    return await task.call(busy)


async def test_what_did_not_happen_waits_as_long_as_its_remote_says(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(knocking.with_options(task_id="k"))
        await status_soon(shared, "k", "paused")
        (reason,) = (await client.get("k")).reasons
        assert (reason.reason, reason.do, reason.until is not None) == (ReasonCode.THROTTLED, "outlive resume k", True)
        await client.resume("k")
        assert await client.result("k", int, timeout=20) == 1
    assert sent == {"busy": 2}


# --- the yes of an operation


@app.tool(requires_approval=True, retries=RetryPolicy(max_attempts=2, base=0.01, cap=0.02))
async def limited(op: Operation) -> int:
    sent["limited"] += 1
    if sent["limited"] <= 2:
        raise RateLimited("slow down")
    return 1


@app.task
async def limping(task: Task) -> int:
    return await task.call(limited)


async def test_an_attempt_after_a_long_pause_rests_on_the_yes_of_the_first(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(limping.with_options(task_id="l"))
        await status_soon(shared, "l", "paused")
        await client.approve("l", "1")
        await row_soon(
            shared, "select 1 from task where status = 'paused' and convert_from(reasons, 'UTF8') like '%throttled%'"
        )
        await client.resume("l")
        assert await client.result("l", int, timeout=20) == 1
        asked = await rows(shared, "select 1 from fact where type = 'approval' and status = 'asked'")
        assert len(asked) == 1


def _today(how: str) -> bool:
    return Switch.asks


@app.tool(idempotent=True, requires_approval=_today)
async def stricter(op: Operation, how: str) -> int:
    sent[op.key] += 1
    if not Switch.asks:
        await asyncio.Event().wait()
    return 1


@app.task
async def deployed(task: Task) -> int:
    return await task.call(stricter, "x")


async def test_a_repeat_after_a_crash_passes_todays_rule(shared: Server) -> None:
    Switch.asks = False
    async with dying(app, shared) as client:
        await client.submit(deployed.with_options(task_id="d"))
        await row_soon(shared, "select 1 from operation where status = 'started'")
    Switch.asks = True
    try:
        async with serving(app, shared) as client:
            await status_soon(shared, "d", "paused")
            assert sum(sent.values()) == 1
            assert await ledger(shared, "d") == [("1", "unknown", 1)]
            await client.approve("d", "1")
            assert await client.result("d", int, timeout=20) == 1
        assert sent == {"default/d:1:1": 2}
    finally:
        Switch.asks = False


# --- texts that cannot be stored as they are


@app.tool(requires_approval=True, title="tell {text}")
async def tell(op: Operation, text: str) -> int:
    return 1


@tell.prepare
async def preview(text: str) -> str:
    return f"tells {text} \ud800"


@app.task
async def telling(task: Task, together: bool) -> str:
    calls = [task.call(tell, "a\0b"), task.call(tell, "c")]
    if together:
        await task.approve_all(calls)
    try:
        return str(await calls[0])
    except StepFailed as error:
        return error.failure.type


@pytest.mark.parametrize("together", [False, True])
async def test_a_no_to_a_call_with_a_nul_is_recorded(shared: Server, together: bool) -> None:
    async with serving(app, shared) as client:
        await client.submit(telling.with_options(task_id="n"), together)
        await status_soon(shared, "n", "paused")
        await client.command("n", Reject(operation_id="3" if together else "1", reason="no"))
        assert await client.result("n", str, timeout=20) == "Rejected"
        assert (await client.operations("n")).operations[0].status is OperationStatus.FAILED


# --- undone, and made again


@app.tool(unique=lambda seat: seat)
async def book(op: Operation, seat: str) -> int:
    sent[seat] += 1
    return sent[seat]


@book.compensate
async def unbook(op: Operation, seat: str) -> None:
    sent["un" + seat] += 1


@app.task
async def travelling(task: Task) -> int:
    booked = await task.call(book, "7a")
    await task.wait_for(go)
    return booked


async def test_what_was_undone_is_made_again_by_the_next_who_wants_it(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(travelling.with_options(task_id="one"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
        await client.cancel("one", compensate=True)
        await status_soon(shared, "one", "cancelled")
        assert sent == {"7a": 1, "un7a": 1}
        await client.submit(travelling.with_options(task_id="two"))
        await client.signal("two", go, True)
        assert await client.result("two", int, timeout=20) == 2
