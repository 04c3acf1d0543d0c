"""An effect that may have happened is sent again only while its remote still knows the key; after that a person decides."""

import asyncio

import pytest

from outlive.actors import App, Client, Task
from outlive.actors.testing import Server
from outlive.protocol.events import StatusEvent
from outlive.protocol.task import ReasonCode
from tests.actors.scene import dying, ledger, serving, status_soon


@pytest.mark.parametrize(("key_ttl", "calls"), [(0.05, 1), (3600.0, 2)])
async def test_after_the_time_that_the_remote_keeps_it(shared: Server, key_ttl: float, calls: int) -> None:
    app = App("forgetful")
    called = 0
    entered = asyncio.Event()

    @app.tool(idempotent=True, key_ttl=key_ttl)
    async def pay() -> str:
        nonlocal called
        called += 1
        entered.set()
        if called == 1:
            await asyncio.sleep(3600)
        return "paid"

    @app.task
    async def order(task: Task) -> str:
        return await task.call(pay)

    async with dying(app, shared) as client:
        await client.submit(order.with_options(task_id="o"))
        await asyncio.wait_for(entered.wait(), 10)
        await asyncio.sleep(0.1)
    async with serving(app, shared) as client:
        if calls == 2:
            assert await client.result("o", str, 10) == "paid"
        else:
            await status_soon(shared, "o", "paused")
            [reason] = (await client.get("o")).reasons
            assert (reason.reason, reason.do) == (ReasonCode.OUTCOME_UNKNOWN, "outlive resolve o 1")
            assert "may or may not have happened" in reason.message
            assert (await client.cancel("o")).ok
            await status_soon(shared, "o", "cancelled")
            assert "Unknown whether it happened: pay (step 1)" in await _last(client)
    assert called == calls
    [(step_id, _, attempt)] = await ledger(shared, "o")
    assert (step_id, attempt) == ("1", calls)


async def _last(client: Client) -> str:
    return [event.message async for event in client.events("o") if isinstance(event, StatusEvent)][-1]
