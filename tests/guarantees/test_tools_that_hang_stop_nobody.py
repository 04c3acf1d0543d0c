"""A tool that never comes back: its attempt ends as unknown and takes its path, and everybody else goes on."""

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from outlive.actors import App, Operation, Outcome, RetryPolicy, StepFailed, Task
from outlive.actors.ends import WorkerWornOut
from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from outlive.protocol.commands import Resolve
from outlive.protocol.task import ReasonCode
from tests.actors.scene import attempts, ledger, row_soon, serving, soon, told
from tests.chaos.harness import WorkerProcess, fetch, submit_many, wait_all_final

app = App("hanging")
hold = threading.Event()
calls: list[tuple[str, str]] = []
QUICK = RetryPolicy(max_attempts=3, base=0.01, cap=0.02)
HUNG = 50


@app.tool(read_only=True, timeout=0.2, retries=RetryPolicy(max_attempts=1))
def hang(n: int) -> int:
    hold.wait(60)
    return n


@app.tool(read_only=True)
def look(n: int) -> int:
    return n


@app.tool(idempotent=True, timeout=0.2, retries=QUICK)
def charge_by_key(op: Operation, how: str) -> int:
    calls.append(("charge_by_key", op.key))
    hold.wait(60)
    return 1


@app.tool(timeout=0.2, settle=0, retries=QUICK)
def charge_and_ask(op: Operation, how: str) -> int:
    calls.append(("charge_and_ask", op.key))
    hold.wait(60)
    return 1


@charge_and_ask.reconcile
def find(op: Operation, how: str) -> Outcome[int]:
    return Outcome.happened(7) if how == "happened" else Outcome.did_not_happen()


@app.tool(timeout=0.2)
def charge(op: Operation, how: str) -> int:
    calls.append(("charge", op.key))
    hold.wait(60)
    return 1


@app.tool(timeout=0.2, retries=QUICK)
async def charge_async(how: str) -> int:
    await asyncio.Event().wait()
    return 1


TOOLS = {tool.name: tool for tool in (charge_by_key, charge_and_ask, charge)}


@app.task
async def hung(task: Task, n: int) -> str:
    try:
        return str(await task.call(hang, n))
    except StepFailed as error:
        return error.failure.error_class or ""


@app.task
async def healthy(task: Task, n: int) -> int:
    return await task.call(look, n)


@app.task
async def pay(task: Task, tool: str, how: str = "") -> int:
    return await task.call(TOOLS[tool], how)


@app.task
async def pay_async(task: Task) -> int:
    return await task.call(charge_async, "")


@pytest.fixture(autouse=True)
async def _release() -> AsyncIterator[None]:
    hold.clear()
    calls.clear()
    yield
    hold.set()


async def test_50_hung_tools_do_not_stop_50_healthy_ones(shared: Server) -> None:
    async with serving(app, shared, threads=4, heartbeat=0.2) as client:
        hanging = [await client.submit(hung, n) for n in range(HUNG)]
        going = [await client.submit(healthy, n) for n in range(HUNG)]
        assert [await handle.result(timeout=30) for handle in going] == list(range(HUNG))
        assert {await handle.result(timeout=30) for handle in hanging} == {"timeout"}
        count = "select 1 from worker where (health ->> 'abandoned_threads')::int = $1"
        await row_soon(shared, count, HUNG)
        hold.set()
        await row_soon(shared, count, 0)


async def test_a_task_whose_tool_hangs_gives_its_place_to_those_behind_it(shared: Server) -> None:
    """One at a time: the first one hangs for ever, and waits for a person without holding the only place."""
    async with serving(app, shared, slots=1, grace=0.2) as client:
        await client.submit(pay.with_options(task_id="t"), "charge")
        behind = [await client.submit(healthy, n) for n in range(2)]
        assert [await handle.result(timeout=30) for handle in behind] == [0, 1]
        await row_soon(shared, "select 1 from task where task_id = 't' and status = 'paused'")
        assert len(calls) == 1


async def test_with_a_key_it_is_sent_again_with_the_same_key(shared: Server) -> None:
    async with serving(app, shared, grace=0.2) as client:
        handle = await client.submit(pay.with_options(task_id="t"), "charge_by_key")
        await row_soon(shared, "select 1 from task where task_id = 't' and status = 'failed'")
        assert calls == [("charge_by_key", "default/t:1:1")] * 3
        assert [row[1:] for row in await attempts(shared, "t")] == [(n, "timeout") for n in (1, 2, 3)]
        assert await ledger(shared, "t") == [("1", "unknown", 3)]
        assert handle.task_id == "t"


async def test_where_the_world_can_be_asked_it_is(shared: Server) -> None:
    async with serving(app, shared, grace=0.2) as client:
        handle = await client.submit(pay, "charge_and_ask", "happened")
        assert await handle.result(timeout=30) == 7
        assert len(calls) == 1


@pytest.mark.parametrize("tool", ["charge_and_ask", "charge"])
async def test_where_nothing_can_be_found_out_while_it_hangs_a_person_decides(shared: Server, tool: str) -> None:
    async with serving(app, shared, grace=0.2) as client:
        handle = await client.submit(pay.with_options(task_id="t"), tool)
        await row_soon(shared, "select 1 from task where task_id = 't' and status = 'paused'")
        (reason,) = (await client.get("t")).reasons
        assert reason.reason is ReasonCode.OUTCOME_UNKNOWN
        assert "It is not sent again before the thread of attempt 1, which still runs in process" in reason.message
        await client.command("t", Resolve(operation_id="1", verdict="happened", result=9))
        assert await handle.result(timeout=30) == 9
        assert calls == [(tool, "default/t:1:1")]


async def test_a_no_sends_nothing_while_the_thread_lives_and_its_late_result_counts(shared: Server) -> None:
    async with serving(app, shared, grace=0.2) as client:
        handle = await client.submit(pay.with_options(task_id="t"), "charge")
        await row_soon(shared, "select 1 from task where task_id = 't' and status = 'paused'")
        await client.command("t", Resolve(operation_id="1", verdict="did_not_happen"))

        async def waits() -> bool:
            return any("sent again as soon as the thread" in message for message in await told(shared, "t"))

        await soon(waits)
        hold.set()
        assert await handle.result(timeout=30) == 1
        assert len(calls) == 1
        assert "it took longer than its timeout, and has happened. Not sent again." in (await told(shared, "t"))[-2]


async def test_an_asynchronous_tool_that_hangs_is_ended(shared: Server) -> None:
    async with serving(app, shared, grace=0.2) as client:
        await client.submit(pay_async.with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where task_id = 't' and status = 'paused'")
        assert await ledger(shared, "t") == [("1", "unknown", 1)]


async def test_too_many_threads_that_hang_wear_a_worker_out(shared: Server) -> None:
    own = shared.with_settings(abandoned_threads=3, heartbeat=0.1, lease=10, grace=0.5)
    await submit_many(own, "hung", 4, {"n": 1})
    with pytest.raises(WorkerWornOut, match="4 threads of synchronous tools outlived their timeouts, more than 3"):
        await Worker(app, own.settings).run()


async def test_a_worn_out_worker_says_why_and_the_next_one_does_its_tasks(shared: Server) -> None:
    worn = shared.with_settings(abandoned_threads=3, heartbeat=0.1, lease=10, grace=1)
    async with WorkerProcess(worn, f"{__name__}:app") as leaving:
        hanging = await submit_many(shared, "hung", 4, {"n": 1})
        assert await leaving.exited() == 1
        assert "4 threads of synchronous tools outlived their timeouts, more than 3" in leaving.log
        assert "worn out: drains to be started again" in leaving.log and "WorkerWornOut" in leaving.log
        await leaving.restart()
        await wait_all_final(shared, [*hanging, *await submit_many(shared, "healthy", 4, {"n": 1})])
    assert await fetch(shared, "select 1 from outlive_store.death") == []
