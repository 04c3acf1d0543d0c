"""A place in the function belongs to one call: another one there is never taken for done; misuse is refused with a hint."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outlive.actors import App, Task, TaskFailed
from outlive.actors.testing import Server
from tests.actors.scene import dying, events, ledger, row_soon, serving, status_soon, steps, told

shared_app = App("tools")
go = shared_app.signal("go", str)
calls: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    calls.clear()


@shared_app.tool(read_only=True)
def read_file(path: str) -> str:
    calls.append(path)
    return path


@shared_app.tool(read_only=True)
def list_files(path: str) -> list[str]:
    calls.append(path)
    return [path]


@shared_app.tool(idempotent=True)
async def send(to: str, body: str) -> str:
    calls.append(to)
    return to


@shared_app.tool(idempotent=True)
async def hang(to: str) -> str:
    calls.append(to)
    await asyncio.sleep(60)
    return to


@shared_app.task
async def child(task: Task) -> int:
    return 1


Body = Callable[[Task], Awaitable[Any]]


def _version(*bodies: Body) -> App:
    """An app whose kinds ``story``, ``story-1`` ... run these; then they wait for ``go``."""
    app = App("version")
    app.include(shared_app)
    for number in range(len(bodies)):

        async def story(task: Task, number: int = number) -> str:
            await bodies[number](task)
            return await task.wait_for(go)

        app.task(name=f"story-{number}" if number else "story")(story)
    return app


async def _read(task: Task, path: str = "a.txt") -> None:
    await task.call(read_file, path)


async def _send(task: Task, to: str = "ann", body: str = "hi") -> None:
    await task.call(send, to, body=body)


async def _hang(task: Task) -> None:
    await task.call(hang, "ann")


async def _note(task: Task) -> None:
    await task.progress("note")


async def _now(task: Task) -> None:
    task.now()


async def _sleep(task: Task) -> None:
    await task.sleep(0.01)


async def _nap(task: Task) -> None:
    await task.sleep(3600)


async def _spawn(task: Task) -> None:
    await task.spawn(child)


CHANGES: dict[str, tuple[Body, Body, str]] = {
    "arguments": (_read, lambda t: _read(t, "b.txt"), 'Step 1 was read_file("a.txt") when this task ran before; the code now calls read_file("b.txt").'),
    "tool": (_read, lambda t: t.call(list_files, "a.txt"), 'Step 1 was read_file("a.txt") when this task ran before; the code now calls list_files("a.txt").'),
    "effect": (_send, lambda t: _send(t, "bob"), 'Step 1 was send("ann", "hi") when this task ran before; the code now calls send("bob", "hi").'),
    "a note was a step": (_read, _note, 'Step 1 was read_file("a.txt") when this task ran before; the code now calls progress(...).'),
    "a step was a note": (_note, _read, 'Step 1 was progress(...) when this task ran before; the code now calls read_file("a.txt").'),
    "a time was a step": (_now, _read, 'Step 1 was now() when this task ran before; the code now calls read_file("a.txt").'),
    "a step was a time": (_read, _now, 'Step 1 was read_file("a.txt") when this task ran before; the code now calls now().'),
    "seconds": (_sleep, lambda t: t.sleep(0.02), "Step 1 was sleep(0.01) when this task ran before; the code now calls sleep(0.02)."),
    "a child was a step": (_spawn, _read, 'Step 1 was spawn child() when this task ran before; the code now calls read_file("a.txt").'),
    "a step in flight": (_hang, _read, 'Step 1 was hang("ann") when this task ran before; the code now calls read_file("a.txt").'),
    "a step in flight, other arguments": (_hang, lambda t: t.call(hang, "bob"), 'Step 1 was hang("ann") when this task ran before; the code now calls hang("bob").'),
    "a step in flight became a note": (_hang, _note, 'Step 1 was hang("ann") when this task ran before; the code now calls progress(...).'),
    "a wait became a step": (_nap, _read, 'Step 1 was sleep(3600.0) when this task ran before; the code now calls read_file("a.txt").'),
}  # fmt: skip


async def test_another_call_at_a_place_pauses_the_task_and_a_fix_goes_on(shared: Server) -> None:
    first = _version(*(before for before, _, _ in CHANGES.values()))
    second = _version(*(after for _, after, _ in CHANGES.values()))
    tasks = [f"t{n}" for n in range(len(CHANGES))]
    async with dying(first, shared) as client:
        for task_id, kind in zip(tasks, list(first.kinds.values())[1:], strict=True):
            await client.submit(kind.with_options(task_id=task_id))
            begun = (
                "select 1 from fact where task_id = $1 and seq > 1 union all select 1 from operation where task_id = $1"
            )
            await row_soon(shared, begun, task_id)
        await asyncio.sleep(0.1)
    calls.clear()
    async with serving(second, shared) as client:
        for task_id, (title, (_, _, sentence)) in zip(tasks, CHANGES.items(), strict=True):
            await status_soon(shared, task_id, "paused")
            reason = (await client.get(task_id)).reasons[0]
            assert (reason.reason, reason.step_id, reason.do) == (
                "version_mismatch",
                "1",
                f"outlive resume {task_id}",
            ), title
            assert reason.message == f"{sentence} Nothing was run. Deploy the old code, or: outlive cancel {task_id}", (
                title
            )
    assert calls == []
    async with serving(first, shared) as client:
        for task_id, (title, (before, _, _)) in zip(tasks, CHANGES.items(), strict=True):
            if before not in {_hang, _nap}:
                await client.resume(task_id)
                await client.signal(task_id, go, "on")
                assert await client.result(task_id, str, 10) == "on", title
    assert calls == []


async def test_a_result_that_no_longer_fits_its_declared_type_pauses_the_task(shared: Server) -> None:
    first, second = App("one"), App("two")

    def declare(app: App, returns: Any) -> Any:
        def read() -> Any:
            return "text"

        read.__annotations__["return"] = returns
        tool = app.tool(read_only=True, name="read")(read)

        async def story(task: Task) -> str:
            await task.call(tool)
            return await task.wait_for(go)

        return app.task(name="story")(story)

    kind = declare(first, str)
    declare(second, int)
    async with dying(first, shared) as client:
        await client.submit(kind.with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
    async with serving(second, shared) as client:
        await client.signal("t", go, "on")
        await status_soon(shared, "t", "paused")
        assert (await client.get("t")).reasons[0].message == (
            "The result of step 1 (read) is stored and does not fit the type that is now declared: "
            "$: Expected `int`, got `str`. Nothing was run. Deploy code that reads it, or: outlive cancel t"
        )
    async with serving(first, shared) as client:
        await client.resume("t")
        assert await client.result("t", str, 10) == "on"


# --- places


async def test_chosen_step_ids_stay_when_the_code_around_them_changes(shared: Server) -> None:
    async def old(task: Task) -> None:
        await task.call(read_file.with_options(step_id="licence"), "b.txt")
        await task.call(read_file.with_options(step_id="readme"), "a.txt")

    async def new(task: Task) -> None:
        await task.call(read_file.with_options(step_id="readme"), "a.txt")
        await task.call(read_file.with_options(step_id="licence"), "b.txt")

    first, second = _version(old), _version(new)
    async with dying(first, shared) as client:
        await client.submit(first.kinds["story"].with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
    async with serving(second, shared) as client:
        await client.signal("t", go, "on")
        assert await client.result("t", str, 10) == "on"
    assert calls == ["b.txt", "a.txt"]


async def test_code_that_ends_without_a_step_that_was_made_is_another_code(shared: Server) -> None:
    second = App("second")

    @second.task(name="story")
    async def story(task: Task) -> str:
        await task.progress("nothing to read")
        return "done"

    first = _version(_note)
    async with dying(first, shared) as client:
        await client.submit(first.kinds["story"].with_options(task_id="t"))
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go'")
    async with serving(second, shared) as client:
        await client.signal("t", go, "on")
        await status_soon(shared, "t", "paused")
        assert (await client.get("t")).reasons[0].message == (
            "Step 2 was wait_for go when this task ran before; the code now ends without it. "
            "Deploy the old code, or: outlive cancel t"
        )
    async with serving(first, shared) as client:
        await client.resume("t")
        assert await client.result("t", str, 10) == "on"


async def test_a_step_id_names_one_step(shared: Server) -> None:
    async def twice(task: Task) -> None:
        one = read_file.with_options(step_id="same")
        await task.call(one, "a.txt")
        await task.call(one, "a.txt")

    await _fails(shared, twice, "step_id 'same' was given to two calls of task 't': one id, one step")
    for wrong in ("3", "4-2-1", "r2-3", "r2-x"):
        with pytest.raises(ValueError, match="looks like one of ours"):
            read_file.with_options(step_id=wrong)
    assert read_file.with_options(step_id="r2").step_id == "r2"


async def test_steps_of_another_asyncio_task_are_refused_with_what_to_write(shared: Server) -> None:
    async def sub(task: Task) -> str:
        return await task.call(read_file, "a.txt")

    async def created(task: Task) -> None:
        await asyncio.create_task(sub(task))

    async def forgotten(task: Task) -> None:
        other = asyncio.create_task(sub(task))
        await asyncio.sleep(0.05)
        assert other.exception() is not None

    async def grouped(task: Task) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(sub(task))
            group.create_task(sub(task))

    async def gathered(task: Task) -> None:
        await asyncio.gather(sub(task), sub(task))

    hint = "Write: await task.gather(coroutine, ...)"
    for wrong in (created, forgotten, grouped, gathered):
        await _fails(shared, wrong, hint, task_id=wrong.__name__)
    assert calls == []


async def test_a_call_is_awaited_once(shared: Server) -> None:
    async def call_twice(task: Task) -> None:
        call = task.call(read_file, "a.txt")
        await call
        await call

    async def sleep_twice(task: Task) -> None:
        nap = task.sleep(0)
        await nap
        await nap

    async def spawn_twice(task: Task) -> None:
        made = task.spawn(child)
        await made
        await made

    for wrong, name in ((call_twice, "read_file"), (sleep_twice, "sleep"), (spawn_twice, "spawn child")):
        await _fails(
            shared, wrong, f"step 1 ({name}) was awaited twice: keep its result instead", task_id=wrong.__name__
        )


async def test_a_tool_called_like_a_function_says_what_to_write(shared: Server) -> None:
    async def direct(task: Task) -> None:
        plain: Any = read_file
        plain("a.txt")

    await _fails(
        shared,
        direct,
        "read_file() was called directly inside task 'story': its result would not survive a crash. "
        "Write: await task.call(read_file, ...). In a test: read_file.fn(...)",
    )
    assert read_file.fn("x") == "x"


async def test_arguments_that_do_not_fit_or_cannot_be_stored_are_refused_at_the_call(shared: Server) -> None:
    async def unfit(task: Task) -> None:
        anything: Any = read_file
        await task.call(anything, "a.txt", mode="r")

    async def unstorable(task: Task) -> None:
        anything: Any = read_file
        await task.call(anything, 7)

    async def surrogate(task: Task) -> None:
        await task.call(read_file, "\ud800")

    await _fails(shared, unfit, "got an unexpected keyword argument 'mode'", task_id="unfit")
    await _fails(shared, unstorable, "read_file(path)", task_id="unstorable")
    await _fails(shared, surrogate, "lone surrogate", task_id="surrogate")
    assert calls == []


async def _fails(server: Server, body: Body, message: str, *, task_id: str = "t") -> None:
    app = _version(body)
    async with serving(app, server) as client:
        handle = await client.submit(app.kinds["story"].with_options(task_id=task_id))
        with pytest.raises(TaskFailed) as failed:
            await handle.result(10)
        assert message in str(failed.value)
        assert message in (await told(server, task_id))[-1]


# --- runs


async def test_a_restart_begins_with_an_empty_history_and_keeps_signals(shared: Server) -> None:
    app = App("loop")
    tick = app.signal("tick", int)

    @app.tool(idempotent=True, name="note_run")
    async def note_run(run: int) -> int:
        calls.append(f"run {run}")
        return run

    @app.task(name="loop")
    async def loop(task: Task, run: int, total: int = 0) -> list[Any]:
        assert task.run == run
        await task.call(note_run, run)
        await task.call(note_run.with_options(step_id="chosen"), run)
        one, two = await task.gather(task.wait_for(tick), _second(task))
        if run < 3:
            task.restart(run=run + 1, total=total + one + two)
        return [run, total + one + two, str(task.uuid())]

    async def _second(task: Task) -> int:
        return await task.call(note_run, 10)

    async with dying(app, shared) as client:
        await client.submit(loop.with_options(task_id="t"), 1)
        for n in range(2):
            await client.signal("t", tick, n)
        await row_soon(shared, "select 1 from task where run = 3 and waiting_for = 'signal tick'")
        await asyncio.sleep(0.05)
    made = list(calls)
    async with serving(app, shared) as client:
        await client.signal("t", tick, 2)
        result = await client.result("t", list[Any], 10)
        assert result[:2] == [3, 33]
        assert (await client.submit(loop.with_options(task_id="t"), 1)).answer.code == "duplicate"  # type: ignore[union-attr]
        assert (await client.get("t")).input == {"run": 3, "total": 21}
    assert calls == made == ["run 1", "run 1", "run 10", "run 2", "run 2", "run 10", "run 3", "run 3", "run 10"]
    assert [entry[0] for entry in await steps(shared, "t") if entry[1] == "note_run"] == [
        "1", "chosen", "4-2-1", "r2-1", "r2-chosen", "r2-4-2-1", "r3-1", "r3-chosen", "r3-4-2-1",
    ]  # fmt: skip
    assert len(await ledger(shared, "t")) == 9
    assert [event["message"] for event in await events(shared, "t") if event["type"] == "status"][1:3] == [
        "Run 2 begins with a new input.", "Run 3 begins with a new input.",
    ]  # fmt: skip
