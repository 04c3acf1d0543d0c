"""Whatever a step returned, it does not run again, and the function sees the same value of the same type on every run."""

import pytest

from outlive.actors.testing import Server
from outlive.protocol import codec
from tests.actors.scene import dying, ledger, row_soon, rows, serving, told
from tests.guarantees import values


@pytest.fixture(autouse=True)
def _nothing_called_yet() -> None:
    values.calls.clear()


async def test_after_each_kind_of_value(shared: Server) -> None:
    tasks = {f"t{upto}": upto for upto in range(1, len(values.VALUES) + 1)}
    stored = [codec.pack(value, returns)[1] for returns, value in values.VALUES.values()]
    expected = [f"{type(value).__name__} {value!r}" for value in stored]
    async with dying(values.app, shared) as client:
        for task_id, upto in tasks.items():
            await client.submit(values.every_value.with_options(task_id=task_id), upto)
        await row_soon(shared, "select 1 from task where waiting_for = 'signal go' having count(*) = $1", len(tasks))
    assert len(values.calls) == sum(tasks.values())
    values.calls.clear()
    async with serving(values.app, shared) as client:
        for task_id, upto in tasks.items():
            await client.signal(task_id, values.go, "on")
            assert await client.result(task_id, list[str], 10) == expected, upto
    names = list(values.VALUES)
    assert sorted(values.calls) == sorted(name for upto in tasks.values() for name in names[upto:])


async def test_what_cannot_be_stored_fails_its_step_visibly_with_the_path(shared: Server) -> None:
    expected = [f"not_storable {why}" for _, _, why in values.REFUSED.values()]
    async with serving(values.app, shared) as client:
        handle = await client.submit(values.every_refusal.with_options(task_id="t"))
        assert await handle.result(10) == expected
    failed = [message for message in await told(shared, "t") if "failed" in message]
    assert failed == [f"bad_{name} failed: NotStorable: {why}" for name, (_, _, why) in values.REFUSED.items()]


async def test_a_result_above_the_limit_is_refused_with_advice_and_its_effect_stands(shared: Server) -> None:
    from outlive.actors import App, Operation, StepFailed, Task

    app = App("large")

    @app.tool(read_only=True)
    def read(size: int) -> str:
        return "x" * size

    @app.tool(idempotent=True)
    async def write(op: Operation, size: int) -> str:
        return "x" * size

    @app.task
    async def story(task: Task) -> list[str]:
        seen = [str(len(await task.call(read, 9_000)))]
        for tool in (read, write):
            try:
                await task.call(tool, 20_000)
            except StepFailed as failed:
                seen.append(str(failed))
        return seen

    async with serving(app, shared, result_limit=10_000) as client:
        result = await (await client.submit(story.with_options(task_id="t"))).result(10)
    advice = "NotStorable: $: 20,002 bytes are above the limit of 10,000 for a result: store it elsewhere, return a reference"
    assert result == ["9000", f"step 2: {advice}", f"step 3: {advice}"]
    assert await ledger(shared, "t") == [("3", "succeeded", 1)]  # it happened; only what it returned is not kept


async def test_a_tasks_own_result_above_the_limit_fails_it(shared: Server) -> None:
    from outlive.actors import App, Task

    app = App("large")

    @app.task
    async def story(task: Task, size: int) -> str:
        return "x" * size

    @app.task
    async def nan(task: Task) -> float:
        return float("nan")

    async with serving(app, shared, result_limit=10_000) as client:
        await client.submit(story.with_options(task_id="large"), 20_000)
        await client.submit(nan.with_options(task_id="nan"))
        await row_soon(shared, "select 1 from task where status = 'failed' having count(*) = 2")
        for task_id, why in (("large", "20,002 bytes are above the limit"), ("nan", "nan is no JSON number")):
            failure = (await client.get(task_id)).failure
            assert failure is not None and failure.error_class == "not_storable" and why in failure.message
    assert await rows(shared, "select 1 from task where status = 'succeeded'") == []
