"""What goes wrong is stored, raised the same on every run, and ends a task only when its code lets it."""

import asyncio
import sys
import threading
from typing import Any

import pytest

from outlive.actors import (
    App,
    NotSent,
    PermissionDenied,
    RateLimited,
    RetryPolicy,
    StepFailed,
    Task,
    TaskFailed,
    Unavailable,
)
from outlive.actors.testing import Server
from outlive.protocol.task import Status
from tests.actors.scene import attempts, dying, events, ledger, row_soon, rows, serving, status_soon, steps, told

app = App("failures")
go = app.signal("go", str)
calls: list[str] = []
QUICK = RetryPolicy(max_attempts=3, base=0.02, cap=0.05)


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    calls.clear()


def _raise(how: str) -> None:
    calls.append(how)
    errors: dict[str, BaseException] = {
        "bug": ValueError("a bug\0 of the tool \ud800"),
        "denied": PermissionDenied("no credential"),
        "limited": RateLimited("slow down", retry_after=0.05),
        "down": Unavailable("no service"),
        "unsent": NotSent("nothing left"),
        "refused": ConnectionRefusedError("port closed"),
        "reset": ConnectionResetError("cut"),
        "late": TimeoutError("too late"),
        "exit": SystemExit(3),
        "cancelled": asyncio.CancelledError("by the tool itself"),
    }
    raise errors[how]


@app.tool(read_only=True, retries=QUICK)
async def read(how: str) -> str:
    _raise(how)
    return how


@app.tool(idempotent=True, retries=QUICK)
def write(how: str) -> str:
    _raise(how)
    return how


@app.tool(idempotent=True, retries=QUICK)
def recover(times: int) -> int:
    """Fail so many times, then work."""
    calls.append("recover")
    if len(calls) <= times:
        raise Unavailable("not yet")
    return len(calls)


@app.tool(idempotent=True, timeout=0.05, retries=RetryPolicy(max_attempts=2, base=0.01, cap=0.01))
async def hang() -> None:
    calls.append("hang")
    await asyncio.sleep(60)


@app.task
async def another_way(task: Task, how: str) -> list[Any]:
    """Catch what fails, and go on."""
    seen: list[Any] = []
    for tool in (read, write):
        try:
            await task.call(tool, how)
        except StepFailed as failed:
            seen.append(
                [failed.failure.type, failed.failure.error_class, failed.failure.message, failed.failure.step_id]
            )
    seen.append(await task.wait_for(go))
    return seen


PASSING = {
    "down": ("Unavailable", "unavailable", "no service", "unknown"),
    "unsent": ("NotSent", "not_sent", "nothing left", "failed"),
    "refused": ("ConnectionRefusedError", "not_sent", "port closed", "failed"),
    "reset": ("ConnectionResetError", "unavailable", "cut", "unknown"),
    "late": ("TimeoutError", "timeout", "too late", "unknown"),
    "cancelled": ("CancelledError", "timeout", "by the tool itself", "unknown"),
}
FINAL = {
    "bug": ("ValueError", "bug", "a bug\0 of the tool ?", "unknown"),
    "denied": ("PermissionDenied", "permission_denied", "no credential", "failed"),
    "exit": ("SystemExit", "bug", "3", "unknown"),
}


async def test_a_failed_step_raises_the_same_on_every_run_and_its_task_may_go_another_way(shared: Server) -> None:
    kinds = {**PASSING, **FINAL}
    async with dying(app, shared) as client:
        for how in kinds:
            await client.submit(another_way.with_options(task_id=how), how)
        await row_soon(
            shared, "select 1 from task having count(*) filter (where waiting_for = 'signal go') = $1", len(kinds)
        )
        await asyncio.sleep(0.1)
    made = sorted(calls)
    async with serving(app, shared) as client:
        for how, (name, error_class, message, status) in kinds.items():
            await client.signal(how, go, "on")
            tries = QUICK.max_attempts if how in PASSING else 1
            result = await client.result(how, list[Any], 10)
            assert result == [[name, error_class, message, "1"], [name, error_class, message, "2"], "on"]
            assert await ledger(shared, how) == [("2", status, tries)]
            assert await attempts(shared, how) == [(step, n + 1, error_class) for step in "12" for n in range(tries)]
            assert [entry[2] for entry in await steps(shared, how)][:tries] == ["waiting"] * (tries - 1) + ["failed"]
    assert sorted(calls) == made
    assert len(made) == 2 * (len(PASSING) * QUICK.max_attempts + len(FINAL))


async def test_an_error_that_passes_is_outlasted_even_by_another_worker(shared: Server) -> None:
    @app.task(name="patient")
    async def patient(task: Task, times: int) -> int:
        return await task.call(recover.with_options(retries=RetryPolicy(max_attempts=9, base=0.6, cap=0.6)), times)

    async with dying(app, shared) as client:
        await client.submit(patient.with_options(task_id="p"), 2)
        await row_soon(shared, "select 1 from attempt where task_id = 'p'")
    until = await rows(shared, "select attempt, wait_until from attempt where task_id = 'p' order by attempt")
    async with serving(app, shared) as client:
        assert await client.result("p", int, 10) == 3
    kept = await rows(shared, "select attempt, wait_until from attempt where task_id = 'p' order by attempt")
    assert kept[: len(until)] == until
    assert [row["attempt"] for row in kept] == [1, 2]
    assert await ledger(shared, "p") == [("1", "succeeded", 3)]
    waits = [event for event in await events(shared, "p") if event["type"] == "step" and event["status"] == "waiting"]
    assert [event.get("attempt", 1) for event in waits] == [1, 2]
    assert waits[0]["message"].startswith("recover: unavailable until ")
    assert waits[0]["message"].endswith("attempt 1 of 9: not yet")


async def test_a_tool_that_hangs_is_given_up_and_its_outcome_is_unknown(shared: Server) -> None:
    @app.task(name="hangs")
    async def hangs(task: Task) -> None:
        await task.call(hang)

    async with serving(app, shared) as client:
        handle = await client.submit(hangs.with_options(task_id="h"))
        with pytest.raises(TaskFailed) as failed:
            await handle.result(10)
    assert failed.value.failure.error_class == "timeout"
    assert await ledger(shared, "h") == [("1", "unknown", 2)]
    assert await attempts(shared, "h") == [("1", 1, "timeout"), ("1", 2, "timeout")]


async def test_no_attempt_begins_while_the_thread_of_the_last_one_lives(shared: Server) -> None:
    go_on = threading.Event()

    @app.tool(idempotent=True, timeout=0.05, retries=RetryPolicy(max_attempts=2, base=0.0, cap=0.0), name="blocks")
    def blocks() -> int:
        calls.append("begin")
        if len(calls) == 1:
            assert go_on.wait(30)
        calls.append("end")
        return len(calls)

    @app.task(name="blocked")
    async def blocked(task: Task) -> int:
        return await task.call(blocks)

    async with serving(app, shared) as client:
        handle = await client.submit(blocked.with_options(task_id="b"))
        await row_soon(shared, "select 1 from attempt where task_id = 'b'")
        await asyncio.sleep(0.1)
        assert calls == ["begin"]
        go_on.set()
        assert await handle.result(10) == 2
    assert calls == ["begin", "end"], "what the thread came to in the end is the result"
    assert await attempts(shared, "b") == [("1", 1, "timeout")]
    assert await ledger(shared, "b") == [("1", "succeeded", 1)]


async def test_an_effect_is_not_sent_again_once_its_remote_has_forgotten_the_key(shared: Server) -> None:
    """The key's life counts from the first attempt, in whatever worker that was."""

    @app.tool(idempotent=True, key_ttl=0.8, retries=RetryPolicy(max_attempts=20, base=0.1, cap=0.1), name="forgets")
    async def forgets(how: str) -> None:
        calls.append(how)
        raise Unavailable("an answer was lost")

    @app.task(name="remembers")
    async def remembers(task: Task, how: str) -> None:
        await task.call(forgets, how)

    async with dying(app, shared) as client:
        await client.submit(remembers.with_options(task_id="one"), "one")
        await status_soon(shared, "one", "paused")
        await client.submit(remembers.with_options(task_id="two"), "two")
        await row_soon(shared, "select 1 from attempt where task_id = 'two' and attempt = 2")
    async with serving(app, shared) as client:
        await status_soon(shared, "two", "paused")
        for task_id in ("one", "two"):
            reason = (await client.get(task_id)).reasons[0]
            assert (reason.reason, reason.do) == ("outcome_unknown", f"outlive resolve {task_id} 1")
            assert "forgets may or may not have happened" in reason.message
            assert "the remote has forgotten its key by now" in reason.message
    spent = await rows(shared, "select max(started_at) - min(started_at) from attempt group by task_id")
    assert all(row[0].total_seconds() < 0.8 for row in spent)


async def test_a_remote_that_never_lets_us_in_pauses_the_task_until_a_person_says_so(shared: Server) -> None:
    @app.task(name="limited")
    async def limited(task: Task) -> str:
        return await task.call(write, "limited")

    async with serving(app, shared) as client:
        await client.submit(limited.with_options(task_id="l"))
        await status_soon(shared, "l", "paused")
        reasons = (await client.get("l")).reasons
        assert [(reason.reason, reason.step_id, reason.do) for reason in reasons] == [
            ("throttled", "1", "outlive resume l")
        ]
        assert reasons[0].message == "write was turned away 3 times: slow down"
        await client.resume("l")
        await row_soon(shared, "select 1 from attempt where task_id = 'l' and attempt = 4")
        await status_soon(shared, "l", "paused")
        await client.cancel("l")
    assert (await told(shared, "l"))[-1].endswith(
        "No effect is recorded as having happened. Did not happen: write (step 1)."
    )
    assert await ledger(shared, "l") == [("1", "failed", 4)]


async def test_a_failure_that_leaves_the_function_fails_the_task_at_once(shared: Server) -> None:
    @app.task(name="gives_up")
    async def gives_up(task: Task) -> str:
        await task.call(read, "denied")
        return "never"

    async with serving(app, shared) as client:
        handle = await client.submit(gives_up.with_options(task_id="g"))
        with pytest.raises(TaskFailed, match="PermissionDenied: no credential") as failed:
            await handle.result(10)
        assert failed.value.failure.step_id == "1"
        assert "gives_up" in (failed.value.failure.traceback or "")
        assert (await client.get("g")).status is Status.FAILED
    assert calls == ["denied"]
    assert (await told(shared, "g"))[-1] == "Failed: PermissionDenied: no credential"


runs: list[str] = []


@app.task
async def buggy(task: Task, how: str) -> str:
    runs.append(how)
    await task.call(recover, 0)
    if how == "once" and runs.count(how) > 1:
        return "fine"
    if how == "exit":
        sys.exit(3)
    if how == "cancelled":
        raise asyncio.CancelledError
    raise KeyError("missing \ud800")


async def test_a_bug_restarts_its_actor_once_and_the_same_bug_again_fails_the_task(shared: Server) -> None:
    runs.clear()
    expected = {
        "once": None,
        "always": "KeyError: 'missing \\ud800'",
        "exit": "SystemExit: 3",
        "cancelled": "RuntimeError: the function ended with asyncio.CancelledError, although nobody had cancelled the task",
    }
    async with serving(app, shared) as client:
        for how, message in expected.items():
            handle = await client.submit(buggy.with_options(task_id=how), how)
            if message is None:
                assert await handle.result(10) == "fine"
                continue
            with pytest.raises(TaskFailed) as failed:
                await handle.result(10)
            assert f"{failed.value.failure.type}: {failed.value.failure.message}" == message
            assert "in buggy" in (failed.value.failure.traceback or "") or how == "cancelled"
            assert (await told(shared, how))[-1] == f"Failed: {message}"
    assert {how: runs.count(how) for how in expected} == dict.fromkeys(expected, 2)
    assert calls.count("recover") == len(expected)  # the step before the bug was not repeated


async def test_an_error_that_cannot_be_shown_or_has_a_constructor_of_its_own_is_readable(shared: Server) -> None:
    class Odd(Exception):
        def __init__(self, status: int, detail: str) -> None:
            super().__init__()
            self.status, self.detail = status, detail

        def __str__(self) -> str:
            raise RuntimeError("even that fails")

    @app.tool(read_only=True, name="odd")
    def odd() -> str:
        raise Odd(500, "x")

    @app.task(name="reads_odd")
    async def reads_odd(task: Task) -> str:
        return await task.call(odd)

    async with serving(app, shared) as client:
        handle = await client.submit(reads_odd)
        with pytest.raises(TaskFailed, match="Odd: \\(its message cannot be shown"):
            await handle.result(10)


async def test_a_record_that_postgres_refuses_fails_the_task_and_no_other(shared: Server, monkeypatch: Any) -> None:
    """A mistake of ours must not restart an actor for ever."""
    from outlive.actors.step import ToolStep

    original = ToolStep._fact

    def poisoned(step: Any, *args: Any, **more: Any) -> Any:
        fact = original(step, *args, **more)
        return fact._replace(name="a\0b") if step.bound.get("times") == 7 else fact

    monkeypatch.setattr(ToolStep, "_fact", poisoned)

    @app.task(name="calls_recover")
    async def calls_recover(task: Task, times: int) -> int:
        return await task.call(recover, times)

    async with serving(app, shared) as client:
        handle = await client.submit(calls_recover.with_options(task_id="bad"), 7)
        assert await (await client.submit(calls_recover.with_options(task_id="good"), 0)).result(10) > 0
        with pytest.raises(TaskFailed, match="Postgres refused a record's content"):
            await handle.result(10)


async def test_two_steps_that_fail_at_the_same_moment_end_the_task_once(shared: Server) -> None:
    meeting = asyncio.Barrier(2)

    @app.tool(read_only=True, name="fails_together")
    async def fails_together(n: int) -> int:
        async with meeting:
            raise PermissionDenied(f"no {n}")

    @app.task(name="both_fail")
    async def both_fail(task: Task) -> None:
        await task.gather(task.call(fails_together, 1), task.call(fails_together, 2))

    async with serving(app, shared) as client:
        with pytest.raises(TaskFailed, match=r"no [12]"):
            await (await client.submit(both_fail.with_options(task_id="t"))).result(10)
        ends = [event["status"] for event in await events(shared, "t") if event.get("final")]
        assert ends == ["failed"]
        assert [status for _, _, status in await steps(shared, "t")].count("failed") == 2
