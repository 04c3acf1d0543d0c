"""A server process of its own per test, on standard streams or over HTTP, and what it has seen."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from outlive.actors.mcp import MCPServer
from tests.actors.scene import soon

MAIN: Final = str(Path(__file__).with_name("server_main.py"))


class Remote:
    """The server of one test.

    Args:
        folder: where it notes what happens.
        port: of HTTP; None: the worker starts it itself, on standard streams.
    """

    def __init__(self, folder: Path, port: int | None = None) -> None:
        self.folder = folder
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def declare(self, name: str = "files", **options: Any) -> MCPServer:
        if self.port is not None:
            return MCPServer(name, url=f"http://127.0.0.1:{self.port}/mcp", **options)
        return MCPServer(name, command=[sys.executable, MAIN, str(self.folder)], **options)

    @property
    def effects(self) -> list[list[str]]:
        """(tool, key, argument) of each effect."""
        return [line.split() for line in self._lines("effects")]

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self._lines("pids")]

    def become(self, version: str) -> None:
        """Offer other tools from the next start on."""
        (self.folder / "version").write_text(version)

    async def seen(self, count: int) -> None:
        """Wait until so many effects have happened."""

        async def enough() -> bool:
            return len(self.effects) >= count

        await soon(enough)

    async def start(self) -> None:
        """Start it where the worker does not."""
        if self.port is None:
            return
        known = len(self.pids)
        self._process = subprocess.Popen(  # noqa: ASYNC220  # at once
            [sys.executable, MAIN, str(self.folder), str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        async def serving() -> bool:
            if len(self.pids) == known:
                return False
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return True
            return False

        await soon(serving)

    async def kill(self) -> None:
        """SIGKILL to the process that serves."""
        pid = self.pids[-1]
        os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def _lines(self, file: str) -> list[str]:
        path = self.folder / file
        return path.read_text().splitlines() if path.exists() else []


@asynccontextmanager
async def remote(folder: Path, transport: str) -> AsyncGenerator[Remote]:
    """A server that is there, by ``stdio`` or ``http``."""
    port = None
    if transport == "http":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
    made = Remote(folder, port)
    try:
        await made.start()
        yield made
    finally:
        made.close()
