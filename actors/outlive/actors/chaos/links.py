"""Links that can be cut and slowed: TCP through a proxy on loopback, in a thread of the worker that uses them.

The proxy lives and dies with its worker, so that nothing of it can be left behind; a frozen worker freezes it too.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from outlive.actors.chaos.commands import CommandFaults, Frames
from outlive.infra.settings import Settings

_PIECE: Final = 1 << 16
_OPENS: Final = 10.0  # seconds
_NATS: Final = 4222
_POSTGRES: Final = 5432


class Unproxied(ValueError):
    """A server cannot be reached through a proxy; the message says why."""


class Link:
    """One server, reached through a proxy; made and used inside the thread of `Links`, its switches set from anywhere."""

    def __init__(self, host: str, port: int, commands: CommandFaults | None = None) -> None:
        """Lead to this server; with `commands`, what it sends is read as NATS and may be hit by them."""
        self._upstream = host, port
        self._commands = commands
        self._pairs: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._quick = asyncio.Event()
        self.is_cut = False
        self.latency = 0.0
        self.port = 0

    async def open(self) -> None:
        """Listen."""
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=_PIECE)
        self.port = server.sockets[0].getsockname()[1]
        self._server = server

    async def close(self) -> None:
        """Listen no more, reset what is connected, and wait until that is gone."""
        self._server.close()
        self.cut(True)
        await asyncio.gather(*self._serving, return_exceptions=True)

    def cut(self, on: bool) -> None:
        """Reset all connections, and every new one, until it is set off."""
        self.is_cut = on
        if on:
            for writer in self._pairs:
                writer.transport.abort()

    def slow(self, seconds: float) -> None:
        """Hold each piece for so long; 0 lets go on what is held."""
        self.latency = seconds
        self._quick.set()
        self._quick = asyncio.Event()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        await self._serve(reader, writer)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self.is_cut:
                raise ConnectionRefusedError
            other_reader, other_writer = await asyncio.open_connection(*self._upstream, limit=_PIECE)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, other_writer}
        self._pairs |= both
        if self.is_cut:  # meanwhile
            self.cut(True)
        try:
            frames = Frames(self._commands, writer) if self._commands else None
            up = asyncio.create_task(self._pump(reader, other_writer, other_writer.write))
            down = asyncio.create_task(self._pump(other_reader, writer, frames.feed if frames else writer.write))
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            up.cancel()
            down.cancel()
            await asyncio.wait({up, down})
        finally:
            self._pairs -= both
            for each in both:
                each.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, write: Callable[[bytes], object]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_PIECE):
                if self.latency:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._quick.wait(), self.latency)
                write(data)
                await writer.drain()


class Links:
    """A worker's links to its servers. `through` gives the settings that lead over them.

    Raises:
        Unproxied: a server is named in a way that no proxy can stand in for.
    """

    def __init__(self, settings: Settings) -> None:
        """Start the proxies; they end with the process."""
        self.commands: Final = CommandFaults(settings.prefix)
        nats, postgres = urlsplit(settings.nats_url or ""), urlsplit(settings.postgres_dsn or "")
        if nats.scheme != "nats" or "," in nats.netloc or not nats.hostname:
            raise Unproxied("NATS is not named by one nats:// URL (TLS and several servers go past the proxy)")
        if not postgres.hostname or "sslmode=" in postgres.query or "," in postgres.netloc:
            raise Unproxied(
                "Postgres is not named by host and port without sslmode (TLS and sockets go past the proxy)"
            )
        self.nats: Final = Link(nats.hostname, nats.port or _NATS, self.commands)
        self.postgres: Final = Link(postgres.hostname, postgres.port or _POSTGRES)
        self._loop = asyncio.new_event_loop()
        opened = threading.Event()
        threading.Thread(target=self._run, args=(opened,), name="chaos links", daemon=True).start()
        if not opened.wait(_OPENS):
            raise Unproxied("no proxy could be started on loopback")
        self.through: Final = msgspec.structs.replace(
            settings,
            nats_url=_led_over(settings.nats_url or "", self.nats.port),
            postgres_dsn=_led_over(settings.postgres_dsn or "", self.postgres.port),
        )

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Run a switch of a link in their thread."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def _run(self, opened: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.nats.open())
        self._loop.run_until_complete(self.postgres.open())
        opened.set()
        self._loop.run_forever()


def _led_over(url: str, port: int) -> str:
    parts = urlsplit(url)
    user = parts.netloc.rpartition("@")[0]
    return parts._replace(netloc=f"{user}@127.0.0.1:{port}" if user else f"127.0.0.1:{port}").geturl()
