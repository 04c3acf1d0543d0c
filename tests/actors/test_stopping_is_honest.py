"""Pause, cancel, time limits of the function itself: what is in flight ends or is called unknown, nothing new begins."""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import anyio
import pytest

from outlive.actors import App, RetryPolicy, Task, TaskCancelled, Unavailable
from outlive.actors.testing import Server
from tests.actors.scene import attempts, dying, events, ledger, row_soon, rows, serving, soon, status_soon, steps, told

app = App("stopping")
go = app.signal("go", str)
log: list[str] = []


class Gates:
    """Effects that wait until the test lets them end."""

    def __init__(self) -> None:
        self.entered: dict[str, asyncio.Event] = {}
        self.release: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> tuple[asyncio.Event, asyncio.Event]:
        return self.entered.setdefault(name, asyncio.Event()), self.release.setdefault(name, asyncio.Event())


gates = Gates()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    log.clear()
    gates.__init__()  # type: ignore[misc]


async def _reach(name: str) -> None:
    await asyncio.wait_for(gates.of(name)[0].wait(), 10)


def _let(name: str) -> None:
    gates.of(name)[1].set()


async def _past(name: str) -> None:
    """Return when a branch has gone on, or was not let."""
    await asyncio.wait_for(gates.of(f"{name} is past")[1].wait(), 10)


@app.tool(idempotent=True)
async def effect(name: str) -> str:
    entered, release = gates.of(name)
    entered.set()
    log.append(f"begin {name}")
    await release.wait()
    log.append(f"end {name}")
    return name


@app.tool(read_only=True)
def look(name: str) -> str:
    log.append(f"look {name}")
    return name


@app.tool(idempotent=True)
async def quick(name: str) -> str:
    log.append(f"quick {name}")
    return name


@contextmanager
def _swallow() -> Generator[None]:
    try:
        yield
    except BaseException as error:  # noqa: BLE001  # what users should not write, and do
        log.append(type(error).__name__)


@app.task
async def line(task: Task) -> str:
    await task.call(effect, "one")
    await task.call(look, "two")
    return await task.call(quick, "three")


@app.task
async def side_by_side(task: Task) -> list[str]:
    async def branch(name: str) -> str:
        await task.call(look, name)
        await task.progress(f"{name} begins")
        return await task.call(effect, name)

    async def short() -> str:
        await task.call(look, "short")
        await _never("short")
        try:
            await task.progress("short goes on")
        finally:
            _let("short is past")
        return await task.call(look, "short again")

    return [*await task.gather(branch("a"), branch("b"), short())]


async def _never(name: str) -> None:
    """Wait outside of any step."""
    entered, release = gates.of(name)
    entered.set()
    await release.wait()


async def test_a_pause_lets_the_operation_in_flight_end_and_a_resume_repeats_nothing(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(line.with_options(task_id="t"))
        await _reach("one")
        await client.pause("t")
        await asyncio.sleep(0.2)
        assert (await client.get("t")).status == "running"
        _let("one")
        await status_soon(shared, "t", "paused")
        assert log == ["begin one", "end one"]
        assert await ledger(shared, "t") == [("1", "succeeded", 1)]
        await client.resume("t")
        assert await handle.result(10) == "three"
    assert log == ["begin one", "end one", "look two", "quick three"]


async def test_a_pause_amid_branches_lets_every_operation_in_flight_end(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(side_by_side.with_options(task_id="t"))
        for name in ("a", "b", "short"):
            await _reach(name)
        await client.pause("t")
        _let("short")  # this branch meets the pause first
        await _past("short")
        _let("a")
        await row_soon(shared, "select 1 from operation where task_id = 't' and status = 'succeeded'")
        _let("b")
        await status_soon(shared, "t", "paused")
        assert [entry for entry in log if "end" in entry] == ["end a", "end b"]
        await client.resume("t")
        assert await handle.result(10) == ["a", "b", "short again"]
    assert [entry for entry in log if "begin" in entry] == ["begin a", "begin b"]
    assert await attempts(shared, "t") == []
    notes = [event["message"] for event in await events(shared, "t") if event["type"] == "note"]
    assert sorted(notes) == ["a begins", "b begins", "short goes on"]


async def test_a_pause_and_a_resume_before_the_next_step_change_nothing(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(line.with_options(task_id="t"))
        await _reach("one")
        await client.pause("t")
        await client.resume("t")
        _let("one")
        assert await handle.result(10) == "three"
    assert not any("Paused" in message for message in await told(shared, "t"))


async def test_a_resume_that_comes_while_the_pause_is_carried_out_is_not_lost(shared: Server) -> None:
    """One branch has met the pause already, another one is in flight: the task begins again, it does not hang."""
    async with serving(app, shared) as client:
        handle = await client.submit(side_by_side.with_options(task_id="t"))
        for name in ("a", "b", "short"):
            await _reach(name)
        await client.pause("t")
        _let("short")
        await _past("short")
        await client.resume("t")
        _let("a")
        _let("b")
        assert await handle.result(10) == ["a", "b", "short again"]
    assert [entry for entry in log if "begin" in entry] == ["begin a", "begin b"]


@app.task
async def cleans_up(task: Task, how: str) -> str:
    try:
        await task.call(quick, "before")
        await task.call(effect, "one")
    finally:
        with _swallow():
            await task.call(quick, "cleanup")
        with _swallow():
            await task.sleep(0)
        with _swallow():
            task.now()
        with _swallow():
            await task.progress("cleaning")
        with _swallow():
            await task.spawn(line)
        if how == "returns":
            return "swallowed"  # noqa: B012  # that too
        if how == "raises":
            raise RuntimeError("in the cleanup")
    return "never"


@pytest.mark.parametrize("how", ["plain", "returns", "raises"])
async def test_after_a_cancel_every_new_step_is_refused_in_finally_too(shared: Server, how: str) -> None:
    async with serving(app, shared, grace=0.2) as client:
        handle = await client.submit(cleans_up.with_options(task_id="t"), how)
        await _reach("one")
        await client.cancel("t")
        with pytest.raises(TaskCancelled) as cancelled:
            await handle.result(10)
        assert str(cancelled.value) == (
            "Cancelled by tester. Nothing further was started. Happened: quick (step 1). "
            "Unknown whether it happened: effect (step 2)."
        )
    assert log[:2] == ["quick before", "begin one"]
    assert len(log) == 7 and {*log[2:]} <= {"Stopped", "CancelledError"}  # the latter where a step may wait
    assert await ledger(shared, "t") == [("1", "succeeded", 1), ("2", "unknown", 1)]
    assert await attempts(shared, "t") == [("2", 1, "timeout")]
    final = (await events(shared, "t"))[-1]
    assert final["final"] is True and final["status"] == "cancelled"


async def test_a_cancel_gives_the_operation_in_flight_its_grace(shared: Server) -> None:
    async with serving(app, shared, grace=5.0) as client:
        handle = await client.submit(line.with_options(task_id="t"))
        await _reach("one")
        await client.cancel("t")
        await asyncio.sleep(0.1)
        _let("one")
        with pytest.raises(TaskCancelled, match=r"Happened: effect \(step 1\)\.$"):
            await handle.result(10)
    assert log == ["begin one", "end one"]


@app.task
async def patient(task: Task, seconds: float) -> list[str]:
    """A time limit of the function's own around a call in flight; then another way."""
    way: list[str] = []
    try:
        async with asyncio.timeout(seconds):
            await task.call(effect, "limited")
    except TimeoutError:
        way.append("effect late")
    try:
        await asyncio.wait_for(task.sleep(60), seconds)
    except TimeoutError:
        way.append("sleep late")
    try:
        with anyio.fail_after(seconds):
            await task.wait_for(go)
    except TimeoutError:
        way.append("signal late")
    try:
        async with asyncio.timeout(seconds):
            await task.call(down)
    except TimeoutError:
        way.append("retry late")
    await task.call(quick, "after")
    way.append(await task.wait_for(go))
    return way


@app.tool(idempotent=True, retries=RetryPolicy(max_attempts=9, base=60, cap=60))
async def down() -> str:
    log.append("down")
    raise Unavailable("not yet")


async def test_what_the_function_gave_up_stays_given_up(shared: Server) -> None:
    async with dying(app, shared) as client:
        await client.submit(patient.with_options(task_id="t"), 0.3)
        await row_soon(shared, "select 1 from fact where task_id = 't' and step_id = '6' and status = 'waiting'")
    assert [entry for entry in await ledger(shared, "t") if entry[0] == "1"] == [("1", "unknown", 1)]
    _let("limited")  # it would work now
    async with serving(app, shared) as client:
        await client.signal("t", go, "on")
        assert await client.result("t", list[str], 10) == [
            "effect late",
            "sleep late",
            "signal late",
            "retry late",
            "on",
        ]
    assert log == ["begin limited", "down", "quick after"]
    assert [entry[2] for entry in await steps(shared, "t")] == [
        "unknown", "waiting", "failed", "waiting", "failed", "waiting", "unknown", "completed", "waiting", "completed",
    ]  # fmt: skip
    assert "effect was given up in flight by the task's own timeout" in await told(shared, "t")


@app.task
async def hasty(task: Task) -> str:
    """Fail as soon as one call of two has failed; the other is still in flight."""
    await asyncio.gather(task.call(effect, "slow"), task.call(broken))
    return "never"


@app.tool(read_only=True)
async def broken() -> str:
    await _reach("slow")
    raise ValueError("broken")


async def test_a_task_does_not_end_while_an_operation_that_it_began_is_in_flight(shared: Server) -> None:
    async with serving(app, shared, grace=5.0) as client:
        handle = await client.submit(hasty.with_options(task_id="t"))
        await soon(lambda: steps(shared, "t"))
        await asyncio.sleep(0.2)
        assert (await client.get("t")).status == "running"
        _let("slow")
        with pytest.raises(Exception, match="broken"):
            await handle.result(10)
        assert await ledger(shared, "t") == [("1", "succeeded", 1)]
        await client.submit(hasty.with_options(task_id="u"))
        gates.__init__()  # type: ignore[misc]
        await _reach("slow")
        await soon(lambda: rows(shared, "select 1 from fact where task_id = 'u' and status = 'failed'"))
        await client.cancel("u")
        _let("slow")
        await status_soon(shared, "u", "cancelled")
    assert log == ["begin slow", "end slow"] * 2


@app.task
async def deaf(task: Task) -> str:
    """Code that catches everything and tries again."""
    while True:
        with _swallow():
            await task.call(effect, "one")
            return "done"
        if log.count("Stopped") > 50:
            return "gave in"


async def test_code_that_catches_everything_keeps_neither_the_worker_nor_a_cancel(shared: Server) -> None:
    async with serving(app, shared, grace=0.1) as client:
        await client.submit(deaf.with_options(task_id="t"))
        await _reach("one")
        await client.cancel("t")
        await client.submit(line.with_options(task_id="other"))
        _let("one")
        await status_soon(shared, "t", "cancelled")
        await status_soon(shared, "other", "succeeded")


@asynccontextmanager
async def _reached(server: Server, **settings: Any) -> AsyncGenerator[Any]:
    async with serving(app, server, **settings) as client:
        await client.submit(line.with_options(task_id="t"))
        await _reach("one")
        yield client


async def test_a_worker_that_stops_lets_steps_end_and_hands_the_rest_back(shared: Server) -> None:
    async with _reached(shared):
        asyncio.get_running_loop().call_later(0.3, _let, "one")
    assert log == ["begin one", "end one"]
    await row_soon(shared, "select 1 from task where task_id = 't' and owner is null and due_at <= outlive.clock()")
    async with serving(app, shared) as client:
        assert await client.result("t", str, 10) == "three"
    assert log == ["begin one", "end one", "look two", "quick three"]


async def test_a_worker_that_cannot_wait_any_longer_leaves_an_intent_for_the_next(shared: Server) -> None:
    async with _reached(shared, grace=0.1):
        pass
    assert await ledger(shared, "t") == [("1", "started", 1)]
    assert not any(entry[2] == "unknown" for entry in await steps(shared, "t"))
    _let("one")
    async with serving(app, shared) as client:
        assert await client.result("t", str, 10) == "three"
    assert await ledger(shared, "t") == [("1", "succeeded", 2), ("3", "succeeded", 1)]
    assert await attempts(shared, "t") == [("1", 1, "timeout")]
