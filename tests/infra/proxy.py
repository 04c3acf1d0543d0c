"""A TCP proxy that can cut, swallow and refuse: the network between a client and its server, under a test's control."""

import asyncio
import contextlib
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """``async with Proxy(url) as proxy``: connect to `proxy.url` instead of `url`."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._links: set[asyncio.StreamWriter] = set()
        self.answers_left: int | None = None
        """How many more answers of the server are passed on before all are dropped; None = every one."""
        self.refuse = False
        """Close new connections at once."""
        self.passed = 0
        """Bytes from the server to clients."""

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()

    @property
    def url(self) -> str:
        host, port = self._server.sockets[0].getsockname()[:2]
        login = self._parts.netloc.rpartition("@")[0]
        return self._parts._replace(netloc=f"{login}@{host}:{port}" if login else f"{host}:{port}").geturl()

    def cut(self) -> None:
        """Break every connection; what is on the way is lost."""
        for writer in list(self._links):
            writer.transport.abort()
        self._links.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse:
            writer.transport.abort()
            return
        remote_reader, remote = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        self._links |= {writer, remote}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, remote, answers=False))
                both.create_task(self._forward(remote_reader, writer, answers=True))
        finally:
            self._links -= {writer, remote}
            writer.transport.abort()
            remote.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, answers: bool) -> None:
        with contextlib.suppress(OSError):
            while chunk := await source.read(65536):
                if answers and not self._counted():
                    continue
                self.passed += len(chunk) if answers else 0
                target.write(chunk)
                await target.drain()
        target.transport.abort()

    def _counted(self) -> bool:
        if self.answers_left is None:
            return True
        self.answers_left = max(-1, self.answers_left - 1)
        return self.answers_left >= 0
