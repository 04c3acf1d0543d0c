"""A small MCP server, as a process: ``python server_main.py FOLDER [PORT]``; on standard streams, or over HTTP at the port.

In the folder: `effects` gets a line per effect (``tool key argument``), `pids` a line per process, `version` says what it
offers.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

folder = Path(sys.argv[1])
version = (folder / "version").read_text() if (folder / "version").exists() else "1"
server = MCPServer("test", version=version)


def note(file: str, line: str) -> None:
    with (folder / file).open("a") as lines:
        lines.write(line + "\n")


def effect(tool: str, context: Context[Any, Any], argument: str) -> None:
    meta: Any = context.request_context.meta or {}
    note("effects", f"{tool} {meta.get('outlive/idempotency-key')} {argument}")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), description=f"Read a file (as of {version}).")
def read(path: str, tail: int = 0) -> str:
    return f"{path} as of {version}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    return a + b


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
def send(context: Context[Any, Any], to: str) -> str:
    effect("send", context, to)
    return f"sent to {to}"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=False))
def put(context: Context[Any, Any], to: str) -> str:
    effect("put", context, to)
    return f"put to {to}"


@server.tool()
def wipe(context: Context[Any, Any], to: str) -> str:
    effect("wipe", context, to)
    return f"wiped {to}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
async def hang(context: Context[Any, Any], to: str) -> str:
    """Have its effect; the first time answer never."""
    first = not (folder / "effects").exists()
    effect("hang", context, to)
    if first:
        await asyncio.sleep(600)
    return f"hung on {to}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False, idempotent_hint=True))
def crash(context: Context[Any, Any], to: str) -> str:
    """Have its effect; the first time end the process instead of an answer."""
    first = not (folder / "effects").exists()
    effect("crash", context, to)
    if first:
        os._exit(3)
    return f"crashed for {to}"


@server.tool(annotations=ToolAnnotations(destructive_hint=False))
def fail(context: Context[Any, Any]) -> str:
    effect("fail", context, "")
    raise ValueError("it cannot be done")


if version == "2":

    @server.tool()
    def added() -> str:
        return "new"


note("pids", str(os.getpid()))
print("a word to the log", file=sys.stderr, flush=True)
if len(sys.argv) > 2:
    server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]), stateless_http="stateless" in sys.argv)
else:
    server.run("stdio")
