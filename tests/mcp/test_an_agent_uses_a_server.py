"""An agent's tools may be those of an MCP server: listed once, called as durable steps, asked about like any other."""

import asyncio
import re
from pathlib import Path

from outlive.actors import App
from outlive.actors.testing import Server
from tests.actors.scene import dying, row_soon, serving, status_soon, steps
from tests.agents.script import Script, finish
from tests.mcp.scene import Remote

WAITING = "select step_id from operation where task_id = 'mcp-agent' and status = 'awaiting_approval'"


async def test_an_agent_uses_the_tools_of_a_server(shared: Server, tmp_path: Path) -> None:
    remote = Remote(tmp_path)
    script = Script(
        [("files__read", {"path": "a.txt"}), ("files__wipe", {"to": "everything"})],
        finish("read and wiped"),
    )
    app = App("mcp-agents")
    kind = app.agent("clerk", model=script.model, tools=[remote.declare(trusted=True)], plans=False)
    async with dying(app, shared) as client:
        await client.submit(kind.with_options(task_id="mcp-agent"), "go")
        await status_soon(shared, "mcp-agent", "paused")
        assert not remote.effects, "a destructive tool waits for a yes"
    async with serving(app, shared) as client:
        await client.approve("mcp-agent", (await row_soon(shared, WAITING))["step_id"])
        async with asyncio.timeout(60):
            assert await client.handle("mcp-agent", str).result() == "read and wiped"

    assert [(tool, argument) for tool, _, argument in remote.effects] == [("wipe", "everything")]
    assert len(script.requests) == 2, "the model was asked once about each decision"
    assert "Read a file (as of 1)" not in script.requests[0]
    assert {"files__read", "files__wipe", "finish"} <= set(script.offered[0])
    assert re.search('tool="files__read"[^>]*>\na.txt as of 1\n', script.requests[1])
    listed = [name for _, name, status in await steps(shared, "mcp-agent") if status == "completed"]
    assert listed[0].startswith("files"), listed
