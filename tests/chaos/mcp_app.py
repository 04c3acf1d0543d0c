"""A task that calls an MCP server of its own, in worker processes; the server's folder is in ``MCP_FOLDER``."""

import os
import sys
from pathlib import Path

from outlive.actors import App, Task
from outlive.actors.mcp import MCPServer

app = App("mcp")
MAIN = str(Path(__file__).parents[1] / "mcp" / "server_main.py")
server = MCPServer("files", command=[sys.executable, MAIN, os.environ.get("MCP_FOLDER", ".")], trusted=True)


@app.task
async def calls(task: Task, tool: str) -> list[str]:
    """Read, have one effect by the tool, read again."""
    tools = await server.tools(task)
    first = await task.call(tools.typed("read", str), path="a")
    effect = await task.call(tools.typed(tool, str), to="ann")
    return [first, effect, await task.call(tools.typed("read", str), path="b")]
