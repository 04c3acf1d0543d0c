"""An agent works on a goal by recorded decisions; what a model gives that is of no use stops nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import (
    AgentInfo,
    DeltaThinkingCalls,
    DeltaThinkingPart,
    DeltaToolCall,
    DeltaToolCalls,
    FunctionModel,
)

from outlive.actors import App, Client, PermissionDenied
from outlive.actors.signature import RegistrationError
from outlive.actors.testing import Server
from outlive.protocol.tools import AnyTool
from tests.actors.scene import attempts, dying, events, ledger, row_soon, rows, serving, status_soon, steps, told
from tests.agents.script import Script, finish, plan
from tests.chaos.harness import send


class Report(msgspec.Struct):
    files: int
    words: list[str]


class Gate:
    """A tool that stays at it until it is told to go on."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()


def _app(script: Script, gate: Gate | None = None, **options: Any) -> tuple[App, list[str]]:
    app, effects = App("agents"), list[str]()

    @app.tool(read_only=True)
    def list_files(folder: str) -> list[str]:
        """List the files of a folder."""
        return ["a.txt", "b.txt"]

    @app.tool(read_only=True, title="reading {path}")
    def read_file(path: str) -> str:
        """Read a file."""
        return f"words of {path}"

    @app.tool(requires_approval=True)
    def send(to: str) -> str:
        """Send the report."""
        effects.append(to)
        return "sent"

    @app.tool(read_only=True)
    def secret(path: str) -> str:
        """Not for us."""
        raise PermissionDenied("no access")

    @app.tool(read_only=True)
    async def dwell() -> str:
        """Take long."""
        assert gate is not None
        gate.reached.set()
        await gate.open.wait()
        return "done"

    tools: list[AnyTool] = [list_files, read_file, send, secret, dwell]
    app.agent("reader", model=script.model, instructions="Read.", tools=tools, output=Report, **options)
    return app, effects


REPORT = {"files": 2, "words": ["x"]}
WORK = (
    plan("list", "read"),
    [("list_files", {"folder": ".", "plan_item": "list"})],
    [("read_file", {"path": "a.txt", "plan_item": "read"}), ("read_file", {"path": "b.txt", "plan_item": "read"})],
    finish(REPORT),
)


async def _run(client: Client, app: App, task_id: str, goal: str = "count the files") -> Any:
    handle = await client.submit(app.kinds["reader"].with_options(task_id=task_id), goal)
    async with asyncio.timeout(60):
        return await handle.result()


async def _answer(client: Client, task_id: str, text: str) -> None:
    (reason,) = (await client.get(task_id)).reasons
    assert reason.step_id is not None
    await client.answer(task_id, reason.step_id, text)


async def test_a_goal_is_planned_worked_on_and_finished(shared: Server) -> None:
    script = Script(*WORK)
    app, _ = _app(script)
    async with serving(app, shared) as client:
        assert await _run(client, app, "goal-1") == Report(files=2, words=["x"])

    assert len(script.requests) == 4
    assert "# Goal\ncount the files" in script.requests[0]
    assert script.offered[0] == ["make_plan", "ask_person", "finish"], "a plan comes first"
    assert "words of a.txt" in script.requests[3]
    assert "- read (done): read" in script.requests[3]
    sentences = await told(shared, "goal-1")
    assert {"step 2 of 2: reading a.txt", "step 2 of 2: reading b.txt"} <= set(sentences)
    assert 'Decided: read_file("a.txt"), read_file("b.txt")' in sentences


async def test_nothing_decided_is_asked_again_after_a_death(shared: Server) -> None:
    script = Script(*WORK[:2], [("dwell", {"plan_item": "read"})], *WORK[2:])
    app, _ = _app(script, gate := Gate())
    async with dying(app, shared) as client:
        await client.submit(app.kinds["reader"].with_options(task_id="goal-2"), "go")
        await asyncio.wait_for(gate.reached.wait(), 30)
    before = list(script.requests)
    assert len(before) == 3

    gate.open.set()
    async with serving(app, shared) as client:
        async with asyncio.timeout(60):
            assert await client.handle("goal-2", Report).result() == Report(files=2, words=["x"])

    assert script.requests[:3] == before
    assert len(script.requests) == 5, "each decision was asked for once"


async def test_what_cannot_be_used_is_told_to_the_model_and_in_the_end_a_person_is_asked(shared: Server) -> None:
    script = Script(
        plan("read"), "Let me think.", [("rm", {})], [("read_file", {"file": 1})], "I am lost.", finish(REPORT)
    )
    app, _ = _app(script, repairs=3)
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["reader"].with_options(task_id="goal-3"), "go")
        await status_soon(shared, "goal-3", "paused")
        assert len(script.requests) == 5
        assert "- rm: there is no such tool" in script.requests[3]
        waiting = [message for message in await told(shared, "goal-3") if "could not be used" in message]
        assert waiting, await told(shared, "goal-3")

        await _answer(client, "goal-3", "Finish now.")

        async with asyncio.timeout(60):
            assert await handle.result() == Report(files=2, words=["x"])
    assert "Finish now." in script.requests[5]


async def test_the_same_denied_call_for_ever_stops_at_a_person(shared: Server) -> None:
    denied = [("secret", {"path": "x", "plan_item": "read"})]
    script = Script(plan("read"), *[denied] * 3, finish(REPORT))
    app, _ = _app(script)
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["reader"].with_options(task_id="goal-4"), "go")
        await status_soon(shared, "goal-4", "paused")
        assert len(script.requests) == 4
        assert any('secret("x") failed 3 times: PermissionDenied: no access' in m for m in await told(shared, "goal-4"))
        await _answer(client, "goal-4", "Give up on the secret.")
        async with asyncio.timeout(60):
            await handle.result()


async def test_an_effect_that_wants_a_yes_waits_for_it(shared: Server) -> None:
    script = Script(plan("send"), [("send", {"to": "me", "plan_item": "send"})], finish(REPORT))
    app, effects = _app(script)
    async with serving(app, shared) as client:
        handle = await client.submit(app.kinds["reader"].with_options(task_id="goal-5"), "go")
        await status_soon(shared, "goal-5", "paused")
        assert not effects
        step = next(step for step, name, _ in await _operations(shared, "goal-5") if name == "send")
        await client.approve("goal-5", step)
        async with asyncio.timeout(60):
            await handle.result()
    assert effects == ["me"]


async def _operations(shared: Server, task_id: str) -> list[tuple[str, str, str]]:
    found = await rows(shared, "select step_id, name, status from operation where task_id = $1", task_id)
    return [(row["step_id"], row["name"], row["status"]) for row in found]


async def test_a_models_thinking_is_kept_nowhere(shared: Server) -> None:
    script = Script(*WORK)
    app, _ = _app(script)
    async with serving(app, shared) as client:
        await _run(client, app, "goal-6")

    stored = await rows(
        shared,
        "select convert_from(body, 'UTF8') as body, convert_from(event, 'UTF8') as event from fact where task_id = $1",
        "goal-6",
    )
    ops = await rows(
        shared, "select convert_from(arguments, 'UTF8') as arguments from operation where task_id = $1", "goal-6"
    )
    everything = str([tuple(row) for row in (*stored, *ops)]) + "".join(script.requests)
    assert "read_file" in everything
    assert "CANARY" not in everything


async def test_an_error_that_passes_is_tried_again_and_recorded(shared: Server) -> None:
    script = Script(plan("list"), ConnectionResetError("cut"), finish(REPORT))
    app, _ = _app(script)
    async with serving(app, shared) as client:
        await _run(client, app, "goal-7")

    assert len(script.requests) == 3
    assert [(attempt, error) for _, attempt, error in await attempts(shared, "goal-7")] == [(1, "unavailable")]
    assert [status for _, status, _ in await ledger(shared, "goal-7")] == ["succeeded", "succeeded"]


async def test_a_tool_that_is_gone_pauses_the_task(shared: Server) -> None:
    script = Script(plan("list"), [("list_files", {"folder": ".", "plan_item": "list"})], ConnectionRefusedError("no"))
    app, _ = _app(script)
    async with dying(app, shared) as client:
        await client.submit(app.kinds["reader"].with_options(task_id="goal-8"), "go")
        async with asyncio.timeout(30):
            while len(script.requests) < 3:  # noqa: ASYNC110  # reason: the model tells no event
                await asyncio.sleep(0.01)
    other = App("other")
    other.agent("reader", model=script.model, output=Report)
    async with serving(other, shared):
        await status_soon(shared, "goal-8", "paused")

    reasons = [
        event for event in await events(shared, "goal-8") if event["type"] == "status" and event["status"] == "paused"
    ]
    assert "list_files" in reasons[-1]["message"]
    assert reasons[-1]["reasons"][0]["reason"] == "version_mismatch"


def test_a_bad_declaration_says_what_is_wrong() -> None:
    app = App("bad")

    @app.tool(read_only=True)
    def finish(x: int) -> int:
        return x

    with pytest.raises(RegistrationError, match="a tool cannot be called finish"):
        app.agent("one", model="test", tools=[finish])

    @app.tool(read_only=True)
    def look(plan_item: str) -> str:
        return plan_item

    with pytest.raises(RegistrationError, match="has a parameter plan_item"):
        app.agent("two", model="test", tools=[look])
    with pytest.raises(RegistrationError, match="cannot be stored"):
        app.agent("three", model="test", output=type("Strange", (), {}))
    with pytest.raises(RegistrationError, match=r"context_tokens 1,000 or more"):
        app.agent("four", model="test", context_tokens=10)


async def test_steps_are_decisions_and_calls(shared: Server) -> None:
    script = Script(*WORK)
    app, _ = _app(script)
    async with serving(app, shared) as client:
        await _run(client, app, "goal-9")

    names = [name for _, name, status in await steps(shared, "goal-9") if status == "completed"]
    assert names == [
        "reader__model.request",
        "reader__model.request",
        "list_files",
        "reader__model.request",
        "read_file",
        "read_file",
        "reader__model.request",
    ]


async def test_words_are_passed_on_while_they_come_and_are_no_facts(shared: Server) -> None:
    async def stream(_: list[ModelMessage], __: AgentInfo) -> AsyncIterator[str | DeltaToolCalls | DeltaThinkingCalls]:
        yield {0: DeltaThinkingPart(content="CANARY-THOUGHT")}
        yield "I am "
        yield "done."
        yield {1: DeltaToolCall(name="finish", json_args='{"output": 7}', tool_call_id="c")}

    app = App("streaming")
    kind = app.agent("talker", model=FunctionModel(stream_function=stream), output=int, plans=False, stream=True)
    heard: list[str] = []
    async with serving(app, shared) as client, client.tokens("goal-10") as tokens:
        handle = await client.submit(kind.with_options(task_id="goal-10"), "go")
        async with asyncio.timeout(60):
            assert await handle.result() == 7
            while "".join(heard) != "I am done.":
                heard.append((await anext(tokens)).text)
    assert len(heard) >= 2
    assert "I am" not in str(await told(shared, "goal-10"))


async def test_a_model_without_tool_calls_decides_by_json(shared: Server) -> None:
    script = Script(
        '{"action": "make_plan", "arguments": {"items": [{"id": "read", "text": "read"}]}}',
        'Sure: {"action": "read_file", "arguments": {"path": "a.txt", "plan_item": "read"}} as you wish',
        "{broken",
        '{"action": "finish", "arguments": {"output": {"files": 2, "words": ["x"]}}}',
    )
    app, _ = _app(script, mode="json")
    async with serving(app, shared) as client:
        assert await _run(client, app, "goal-11") == Report(files=2, words=["x"])

    assert "- read_file: Read a file. arguments: {" in script.instructions[1], (
        "a schema alone is not shown to every model"
    )
    assert "words of a.txt" in script.requests[2]
    assert "you chose nothing: '{broken'" in script.requests[3]


async def test_whoever_submits_a_goal_by_name_or_over_nats_says_it_in_a_field_of_its_own(shared: Server) -> None:
    script = Script(finish(REPORT))
    app, _ = _app(script, plans=False)
    async with serving(app, shared) as client, asyncio.timeout(60):
        named = await client.submit("reader", goal="count by name", output=Report)
        assert await named.result() == Report(files=2, words=["x"])
        await send(shared, "goal-12", "submit", command_id="c-12", kind="reader", goal="count over NATS")
        await row_soon(shared, "select 1 from task where task_id = 'goal-12'")
        assert await client.result("goal-12", Report) == Report(files=2, words=["x"])
        records = [await client.get(task_id) for task_id in (named.task_id, "goal-12")]
    assert [record.goal for record in records] == ["count by name", "count over NATS"]
    assert ["count by name" in request for request in script.requests] == [True, False]
    assert "count over NATS" in script.requests[1]
