"""An MCP server that is killed in the middle of a call: unknown, then asked about; never silently repeated."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from outlive.actors import App, Operation, Outcome, Task
from outlive.actors.testing import Server
from outlive.infra.client import Client
from outlive.protocol.commands import Resolve
from tests.actors.scene import attempts, ledger, serving, status_soon
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, until
from tests.mcp.scene import Remote, remote


@pytest.fixture(params=["stdio", "http"])
async def mcp(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Remote]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    async with remote(tmp_path, request.param) as running:
        yield running


def one_call(mcp: Remote, tool: str, **options: Any) -> App:
    server, app = mcp.declare(**options), App("x")

    @app.task
    async def story(task: Task) -> list[str]:
        tools = await server.tools(task)
        effect = await task.call(tools.typed(tool, str), to="ann")
        return [effect, await task.call(tools.typed("read", str), path="b")]

    return app


async def test_killed_in_the_middle_of_a_call_a_person_decides(shared: Server, mcp: Remote) -> None:
    async with serving(one_call(mcp, "hang", trusted=True), shared) as client:
        handle = await client.submit("story", {}, output=list[str])
        await mcp.seen(1)
        await mcp.kill()
        await mcp.start()
        await status_soon(shared, handle.task_id, "paused")
        (reason,) = (await client.get(handle.task_id)).reasons
        assert reason.reason == "outcome_unknown"
        assert await ledger(shared, handle.task_id) == [("2", "unknown", 1)]
        assert len(mcp.effects) == 1
        await client.command(handle.task_id, Resolve(operation_id="2", verdict="happened", result="seen", reason="log"))
        assert await handle.result(timeout=30) == ["seen", "b as of 1"]
        assert len(mcp.effects) == 1


async def test_killed_in_the_middle_of_a_call_a_reconciler_is_asked(shared: Server, mcp: Remote) -> None:
    def find(op: Operation, to: str) -> Outcome[str]:
        done = [effect for effect in mcp.effects if effect[1] == op.key]
        return Outcome.happened(f"found {to}", matches=len(done)) if done else Outcome.did_not_happen()

    app = one_call(mcp, "hang", trusted=True, tools={"hang": {"reconcile": find, "settle": 0.0}})
    async with serving(app, shared) as client:
        handle = await client.submit("story", {}, output=list[str])
        await mcp.seen(1)
        await mcp.kill()
        await mcp.start()
        assert await handle.result(timeout=30) == ["found ann", "b as of 1"]
        assert len(mcp.effects) == 1


async def test_a_server_that_ends_itself_is_called_again_under_the_same_key_where_that_is_safe(
    shared: Server, tmp_path: Path
) -> None:
    async with remote(tmp_path, "stdio") as mcp, serving(one_call(mcp, "crash", trusted=True), shared) as client:
        handle = await client.submit("story", {}, output=list[str])
        assert await handle.result(timeout=30) == ["crashed for ann", "b as of 1"]
        assert [tool for tool, _, _ in mcp.effects] == ["crash", "crash"]
        assert len({key for _, key, _ in mcp.effects}) == 1
        assert len(mcp.pids) == 2
        assert await attempts(shared, handle.task_id) == [("2", 1, "timeout")]


async def test_a_call_without_an_answer_in_time_is_unknown(shared: Server, mcp: Remote) -> None:
    app = one_call(mcp, "hang", trusted=True, tools={"hang": {"timeout": 3.0}})
    async with serving(app, shared) as client:
        handle = await client.submit("story", {}, output=list[str])
        await status_soon(shared, handle.task_id, "paused")
        assert (await client.get(handle.task_id)).reasons[0].reason == "outcome_unknown"
        assert len(mcp.effects) == 1


@pytest.mark.parametrize(("tool", "times"), [("send", 1), pytest.param("put", 2, marks=pytest.mark.slow)])
async def test_a_worker_killed_in_the_middle_of_a_call_repeats_only_what_may_be_repeated(
    shared: Server, tmp_path: Path, tool: str, times: int
) -> None:
    environment = {"MCP_FOLDER": str(tmp_path), "OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}
    seen = Remote(tmp_path)
    async with (
        WorkerProcess(
            shared, "tests.chaos.mcp_app:app", failpoints="effect.after=kill", environment=environment
        ) as worker,
        Client(shared.settings, by="ann") as client,
    ):
        handle = await client.submit("calls", {"tool": tool}, task_id="t", output=list[str])
        await worker.exited()
        assert len(seen.effects) == 1
        await worker.restart()
        if tool == "send":
            await until(shared, "select count(*) = 1 from outlive.task where status = 'paused'")
            await client.command(
                "t", Resolve(operation_id="3", verdict="happened", result="sent to ann", reason="seen")
            )
        assert await handle.result(timeout=30) == [
            "a as of 1",
            f"{tool if tool == 'put' else 'sent'} to ann",
            "b as of 1",
        ]
        assert len(seen.effects) == times
        assert len({key for _, key, _ in seen.effects}) == 1
        await assert_progress_gapless(shared, ["t"])
