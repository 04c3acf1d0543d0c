"""Limits of synchronous tools, and what ends a wait for them before its time."""

from outlive.actors import App, Limit, Operation, Task
from outlive.actors.testing import Server
from tests.actors.scene import attempts, ledger, row_soon, rows, serving, status_soon, told

app = App("limits")
calls: list[str] = []


@app.tool(idempotent=True, rate_limit=Limit(calls=1, per=600, burst=2))
def post(op: Operation, text: str) -> str:
    calls.append(text)
    return op.key


@app.task
async def posts(task: Task, count: int) -> int:
    return len([await task.call(post, str(n)) for n in range(count)])


async def test_a_synchronous_tool_waits_without_an_intent_and_a_cancel_ends_the_wait(shared: Server) -> None:
    calls.clear()
    async with serving(app, shared) as client:
        await client.submit(posts.with_options(task_id="p"), 3)
        await row_soon(shared, "select 1 from task where task_id = 'p' and waiting_for = 'post, which is rate limited'")
        assert calls == ["0", "1"]
        assert [entry[1] for entry in await ledger(shared, "p")] == ["succeeded", "succeeded"]
        waits = [text for text in await told(shared, "p") if ": rate limited until " in text]
        assert len(waits) == 1 and waits[0].endswith(": at most 1 call in 600 s, 2 at once")
        await client.cancel("p")
        await status_soon(shared, "p", "cancelled")
    assert calls == ["0", "1"]
    assert await attempts(shared, "p") == []
    (row,) = await rows(shared, "select leases, paused_until from bucket")
    assert (row["leases"], row["paused_until"]) == (b"[]", None)
