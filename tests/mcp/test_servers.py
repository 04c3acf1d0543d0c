"""MCP servers: what their tools become, how they are called, what is recorded of them, and when they are gone."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import structlog
from mcp import types

from outlive.actors import App, RetryPolicy, StepFailed, Task, TaskFailed
from outlive.actors.dynamic import DynamicOptions
from outlive.actors.mcp import MCPServer, link
from outlive.actors.mcp.toolset import ToolInfo, differences, options_of, qualified, result_of
from outlive.actors.signature import RegistrationError
from outlive.actors.testing import Server
from outlive.protocol import ids
from outlive.protocol.commands import Approve, Resume
from tests.actors.scene import ledger, row_soon, serving, status_soon, steps
from tests.mcp.scene import Remote

QUICK = RetryPolicy(max_attempts=2, base=0.01)


# --- declared


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'give either command=["program", ...] or url="https://..."'),
        ({"command": ["x"], "url": "http://x"}, 'give either command=["program", ...] or url="https://..."'),
        ({"name": "a b", "command": ["x"]}, "name 'a b' is not allowed"),
        ({"name": "a__b", "command": ["x"]}, "__ stands between a server's name and a tool's"),
    ],
)
def test_what_is_no_server_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RegistrationError) as refused:
        MCPServer(options.pop("name", "files"), **options)
    assert words in str(refused.value)


def test_a_server_shows_no_secrets() -> None:
    server = MCPServer("crm", url="http://x", headers={"Authorization": "Bearer s3cret"})
    assert repr(server) == "MCPServer('crm')"


@pytest.mark.parametrize(
    ("hints", "trusted", "given", "met"),
    [
        ({}, False, {}, {"requires_approval": True}),
        ({"read_only": True}, False, {}, {"requires_approval": True}),
        ({"idempotent": True, "destructive": False}, False, {}, {"requires_approval": True}),
        ({"destructive": True}, False, {"requires_approval": False}, {"requires_approval": False}),
        ({}, False, {"read_only": True}, {"read_only": True}),
        ({}, True, {}, {"requires_approval": True}),
        ({"destructive": True}, True, {}, {"requires_approval": True}),
        ({"destructive": False}, True, {}, {"requires_approval": False}),
        ({"read_only": True, "destructive": True}, True, {}, {"read_only": True}),
        ({"idempotent": True, "destructive": False}, True, {}, {"requires_approval": False, "idempotent": True}),
        ({"read_only": True}, True, {"requires_approval": True}, {"requires_approval": True}),
        ({"read_only": True}, True, {"timeout": 5.0}, {"read_only": True, "timeout": 5.0}),
    ],
)
def test_hints_of_a_stranger_loosen_nothing(
    hints: dict[str, Any], trusted: bool, given: DynamicOptions, met: dict[str, Any]
) -> None:
    assert options_of(ToolInfo(name="x", **hints), given, trusted=trusted) == met


@pytest.mark.parametrize("tool", ["read", "a.b/c", "x" * 128, "größe", "a b"])
def test_names_are_valid_for_models_and_for_us(tool: str) -> None:
    assert ids.check("name", qualified("files", tool)).startswith("files__")
    assert qualified("files", tool) != qualified("files", tool + "'")


def test_what_differs_is_named() -> None:
    before = ToolInfo(name="x", description="a", input={"properties": {"path": {}, "mode": {}}}, read_only=True)
    now = ToolInfo(name="x", description="b", input={"properties": {"path": {}, "force": {}}})
    assert differences(before, before) == ""
    assert differences(before, None) == "the server has it no more"
    assert differences(before, now) == (
        "its input schema ('mode' is gone, 'force' is new), its description, its hint read_only: True before, None now"
    )


def test_results_are_what_json_has_and_bounded() -> None:
    def answer(*content: types.ContentBlock, **more: Any) -> types.CallToolResult:
        return types.CallToolResult(content=list(content), **more)

    plain, info = types.TextContent(text="hello"), ToolInfo(name="x")
    wrapped = ToolInfo(name="x", output={"properties": {"result": {}}})
    assert result_of(answer(plain, plain), info, 100) == "hello\nhello"
    assert result_of(answer(plain, structured_content={"a": 1}), info, 100) == {"a": 1}
    assert result_of(answer(plain, structured_content={"result": [1]}), wrapped, 100) == [1]
    assert result_of(answer(plain, structured_content={"result": [1]}), info, 100) == {"result": [1]}
    assert (
        result_of(answer(types.TextContent(text="x" * 11)), info, 10) == "x" * 10 + " ... (cut: 11 characters in all)"
    )
    assert result_of(answer(plain, structured_content={"a": "x" * 100}), info, 10).startswith('{"a":"xxxx ... (cut')
    image = types.ImageContent(data="AAAA", mime_type="image/png")
    assert result_of(answer(image), info, 100) == "[image/png, 4 characters, not kept]"


# --- called


def one_task(server: MCPServer, *calls: tuple[str, dict[str, Any]]) -> App:
    app = App("x")

    @app.task
    async def story(task: Task) -> list[Any]:
        tools = await server.tools(task)
        return [await task.call(tools[name], **arguments) for name, arguments in calls]

    return app


async def test_tools_are_steps_and_the_server_is_connected_once(shared: Server, mcp: Remote) -> None:
    server = mcp.declare(trusted=True)
    app = one_task(server, ("read", {"path": "a"}), ("add", {"a": 1, "b": 2}), ("send", {"to": "ann"}))
    async with serving(app, shared) as client:
        first = await client.submit("story", {}, output=list[Any])
        assert await first.result(timeout=20) == ["a as of 1", 3, "sent to ann"]
        second = await client.submit("story", {}, output=list[Any])
        assert await second.result(timeout=20) == ["a as of 1", 3, "sent to ann"]
        assert len(mcp.pids) == 1
        done = [(step, name) for step, name, status in await steps(shared, first.task_id) if status == "completed"]
        assert done == [("1", "files"), ("2", "files__read"), ("3", "files__add"), ("4", "files__send")]
        assert await ledger(shared, first.task_id) == [("4", "succeeded", 1)]
        assert mcp.effects == [["send", f"default/{handle.task_id}:4:1", "ann"] for handle in (first, second)]
    if mcp.port is None:
        assert not psutil.pid_exists(mcp.pids[0])


async def test_a_result_has_the_type_that_is_asked_for(shared: Server, stdio: Remote) -> None:
    server, app = stdio.declare(trusted=True), App("x")

    class Sum(msgspec.Struct):
        total: int

    @app.task
    async def typed(task: Task) -> int:
        tools = await server.tools(task)
        total: int = await task.call(tools.typed("add", int), a=1, b=2)
        with pytest.raises(StepFailed, match="NotStorable"):
            await task.call(tools.typed("add", Sum), a=1, b=2)
        with pytest.raises(TypeError, match=r"files__add\(\*, a, b\): missing a required argument: 'b'"):
            await task.call(tools["add"], a=1)
        with pytest.raises(TypeError, match="'a' must be integer, not \"x\""):
            await task.call(tools["add"], a="x", b=2)
        with pytest.raises(KeyError, match=r"files has no tool 'sub'\. It has: add, crash"):
            tools["sub"]
        return total

    async with serving(app, shared) as client:
        assert await (await client.submit(typed)).result(timeout=20) == 3


async def test_a_tool_of_a_stranger_waits_for_a_yes(shared: Server, stdio: Remote) -> None:
    app = one_task(stdio.declare(include=["read"]), ("read", {"path": "a"}))
    async with serving(app, shared) as client:
        handle = await client.submit("story", {}, output=list[Any])
        await status_soon(shared, handle.task_id, "paused")
        (reason,) = (await client.get(handle.task_id)).reasons
        assert (reason.reason, reason.message) == ("approval", 'files__read("a") waits for your yes')
        await client.command(handle.task_id, Approve(operation_id="2"))
        assert await handle.result(timeout=20) == ["a as of 1"]


async def test_what_the_app_says_of_a_tool_counts_most(shared: Server, stdio: Remote) -> None:
    server = stdio.declare(tools={"wipe": {"requires_approval": False, "title": "wipe {to}"}}, include=["wipe"])
    async with serving(one_task(server, ("wipe", {"to": "it"})), shared) as client:
        assert await (await client.submit("story", {}, output=list[Any])).result(timeout=20) == ["wiped it"]


async def test_an_option_for_a_tool_that_is_not_there_is_refused(shared: Server, stdio: Remote) -> None:
    app = one_task(stdio.declare(tools={"sned": {"idempotent": True}}))
    async with serving(app, shared) as client:
        with pytest.raises(TaskFailed, match=r"MCP server 'files' has no tool 'sned'\. It has: add, crash"):
            await (await client.submit("story", {}, output=list[Any])).result(timeout=20)


async def test_what_the_server_calls_an_error_fails_the_step_and_leaves_open_what_happened(
    shared: Server, mcp: Remote
) -> None:
    app = one_task(mcp.declare(trusted=True), ("fail", {}))
    async with serving(app, shared) as client:
        handle = await client.submit("story", {}, output=list[Any])
        with pytest.raises(TaskFailed, match="CallFailed: Error executing tool fail"):
            await handle.result(timeout=20)
        assert await ledger(shared, handle.task_id) == [("2", "unknown", 1)]


@pytest.mark.parametrize("transport", [pytest.param("command", marks=pytest.mark.slow), "url"])
async def test_a_server_that_is_not_there_was_not_called(
    shared: Server, transport: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    where: dict[str, Any] = (
        {"command": [sys.executable, "-c", "pass"]} if transport == "command" else {"url": "http://127.0.0.1:9/mcp"}
    )
    server, app = MCPServer("files", **where), App("x")

    @app.task
    async def story(task: Task) -> str:
        try:
            await server.tools(task)
        except StepFailed as failed:
            return f"{failed.failure.type} {failed.failure.error_class}"
        return "there"

    async with serving(app, shared) as client:
        assert await (await client.submit(story)).result(timeout=60) == "NotSent not_sent"


async def test_what_a_server_says_on_its_standard_error_goes_to_the_log(shared: Server, stdio: Remote) -> None:
    with structlog.testing.capture_logs() as logs:
        async with serving(one_task(stdio.declare(trusted=True), ("read", {"path": "a"})), shared) as client:
            await (await client.submit("story", {}, output=list[Any])).result(timeout=20)
    said = [entry["line"] for entry in logs if entry["event"] == "said"]
    assert "a word to the log" in said


# --- changed


@pytest.mark.parametrize("changed", ["pause", "allow"])
async def test_a_changed_tool_is_noticed_before_anything_is_called(
    shared: Server, mcp: Remote, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "FRESH", 0.0)  # over HTTP nobody tells that another server is there
    server, app = mcp.declare(trusted=True, include=["read", "send"], changed=changed), App("x")
    go = app.signal("go", str)

    @app.task
    async def story(task: Task) -> str:
        tools = await server.tools(task)
        await task.call(tools["read"], path="a")
        await task.wait_for(go)
        return str(await task.call(tools["read"], path="b"))

    async with serving(app, shared) as client:
        handle = await client.submit(story)
        await row_soon(shared, "select 1 from fact where name = 'files__read' and status = 'completed'")
        mcp.become("2")
        await mcp.kill()
        await mcp.start()
        await client.signal(handle.task_id, go, "on")
        if changed == "allow":
            assert await handle.result(timeout=20) == "b as of 2"
            return
        await status_soon(shared, handle.task_id, "paused")
        (reason,) = (await client.get(handle.task_id)).reasons
        assert reason.reason == "version_mismatch"
        assert "is not what it was when this task began: its description. Nothing was called." in reason.message
        mcp.become("1")
        await mcp.kill()
        await mcp.start()
        await client.command(handle.task_id, Resume())
        assert await handle.result(timeout=20) == "b as of 1"
