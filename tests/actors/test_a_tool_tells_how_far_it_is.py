"""`op.progress`: facts for people, from any thread, not too many, and no step of the task."""

from outlive.actors import App, Operation, Task
from outlive.actors.testing import Server
from outlive.protocol.events import StepEvent
from tests.actors.scene import dying, rows, serving

app = App("reports")


@app.tool(read_only=True)
def work(op: Operation, last: int) -> int:
    """Report from the tool's thread."""
    for n in range(1, last + 1):
        op.progress(f"sent {n} of {last} lines", done=n, total=last)
    return last


@app.task
async def reports(task: Task) -> int:
    """Two calls."""
    return await task.call(work, 1) + await task.call(work, 1000)


async def test_reports_of_a_tool_are_notes_and_never_too_many(shared: Server) -> None:
    async with serving(app, shared) as client:
        handle = await client.submit(reports)
        assert await handle.result(20) == 1001
        notes = await rows(
            shared,
            "select convert_from(event, 'utf8')::json->>'message' as message, step_id from fact where type = 'note'",
        )
        assert [(note["message"], note["step_id"]) for note in notes] == [
            ("sent 1 of 1 lines", None),
            ("sent 1 of 1000 lines", None),
        ]


async def test_a_resumed_task_passes_its_tools_reports_over(shared: Server) -> None:
    go = app.signal("go_on", int)

    @app.task
    async def reports_and_waits(task: Task) -> int:
        return await task.call(work, 1) + await task.wait_for(go)

    async with dying(app, shared) as client:
        handle = await client.submit(reports_and_waits.with_options(task_id="w"))
        async for event in handle.events():
            if isinstance(event, StepEvent) and event.status == "waiting":
                break
    async with serving(app, shared) as client:
        await client.signal("w", go, 5)
        assert await client.result("w", int, timeout=20) == 6
