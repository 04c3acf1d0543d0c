"""The connection of one worker to one server: opened when it is first needed, opened again when the server has ended it."""

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Final, cast

import anyio
import structlog
from mcp import types
from mcp.client import Client, IncomingMessage, Transport
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from outlive.actors.mcp.toolset import ToolInfo, info_of
from outlive.actors.mcp.wire import KEY, HttpClient, Wire, watched
from outlive.actors.services import Services
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import NotSent, OutcomeUnknown
from outlive.protocol.tools import Operation

CONNECT: Final = 20.0
"""Seconds within which a server must have answered for the first time."""

FRESH = 10.0
"""Seconds for which a listing is believed, unless the server tells of a change before."""

LIVED: Final = 30.0
"""Seconds after which a connection that ends is no sign of a server that cannot stay up."""

_VERSION: Final = metadata.version("outlive")
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 30.0
_LINE: Final = 500
_LINES: Final = 200
_PAGES: Final = 100
importlib.import_module("jsonschema.validators")  # the SDK would read its files on the event loop
_log = structlog.get_logger("outlive.mcp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a server is: a command that starts it, or an address."""

    name: str
    command: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


class Session:
    """A connection that stands, and what the server said of its tools."""

    def __init__(self, target: Target, client: Client, wire: Wire, stale: asyncio.Event) -> None:
        """Listed nothing yet."""
        self._target = target
        self._client = client
        self._wire = wire
        self._stale = stale
        self._infos: dict[str, ToolInfo] = {}
        self._listed_at = float("-inf")
        self._listing = asyncio.Lock()

    async def infos(self) -> Mapping[str, ToolInfo]:
        """Return the tools that the server has now, by name."""
        async with self._listing:
            now = asyncio.get_running_loop().time()
            if self._stale.is_set() or now > self._listed_at + FRESH:
                self._stale.clear()
                self._infos = await self._list()
                self._listed_at = now
            return self._infos

    async def _list(self) -> dict[str, ToolInfo]:
        found: dict[str, ToolInfo] = {}
        cursor: str | None = None
        for _ in range(_PAGES):
            try:
                page = await self._client.list_tools(cursor=cursor, cache_mode="bypass")
            except (MCPError, ValidationError) as error:
                raise NotSent(f"{self._target.name} does not list its tools: {self._wire.last or error}") from error
            for tool in page.tools:
                found.setdefault(tool.name, info_of(tool))
            cursor = page.next_cursor
            if cursor is None:
                break
        return found

    async def call(self, name: str, arguments: Mapping[str, Any], op: Operation) -> types.CallToolResult:
        """Call a tool under the key of its operation.

        Raises:
            NotSent: no call left.
            OutcomeUnknown: it left, and no answer came that could be read.
            MCPError: the server refused it.
        """

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            op.progress(message or name, done=progress, total=total)

        try:
            meta = cast("types.RequestParamsMeta", {KEY: op.key})
            return await self._client.call_tool(name, dict(arguments), progress_callback=tell, meta=meta)
        except (MCPError, RuntimeError, ValidationError) as error:
            raise self._judged(op.key, error) from error
        finally:
            self._wire.forget(op.key)

    def _judged(self, key: str, error: Exception) -> BaseException:
        """Tell what an error means from what the wire knows of the call."""
        if (fault := self._wire.faults.get(key)) is not None:
            return fault
        if key not in self._wire.sent:
            return NotSent(f"{self._target.name} was gone before the call left: {error}")
        if isinstance(error, MCPError) and error.code != types.CONNECTION_CLOSED:
            return error
        if isinstance(error, RuntimeError):  # its output does not fit the schema that it has itself declared
            return NotStorable("$", str(error))
        return OutcomeUnknown(f"{self._target.name} was gone before it answered: {error}")


class Link:
    """What a worker has of a server. Sessions follow each other; at most one stands."""

    def __init__(self, target: Target, services: Services) -> None:
        """Connect to nothing yet."""
        self._target = target
        self._services = services
        self._session: asyncio.Future[Session] | None = None
        self._failures = 0

    async def session(self, within: float) -> Session:
        """Return a session that stands; opens one where there is none.

        Args:
            within: seconds that the caller has.

        Raises:
            NotSent: the server cannot be reached; nothing was called.
        """
        if self._session is None:
            self._session = asyncio.get_running_loop().create_future()
            self._session.add_done_callback(_seen)
            self._services.start(self._serve)
        try:
            async with asyncio.timeout(within):
                return await asyncio.shield(self._session)
        except TimeoutError as error:
            raise NotSent(f"{self._target.name} has not answered within {within:g} s") from error

    async def _serve(self) -> None:
        """Hold one session, from its start to its end."""
        ready = self._session
        assert ready is not None
        loop, wire, stale = asyncio.get_running_loop(), Wire(), asyncio.Event()
        began, reason = float("inf"), "it ended"
        try:
            await asyncio.sleep(self._pause())
            async with self._client(wire, stale) as client:
                began = loop.time()
                session = Session(self._target, client, wire, stale)
                await session.infos()
                ready.set_result(session)
                _log.info("connected", server=self._target.name, tools=len(await session.infos()))
                await wire.closed.wait()
        except Exception as error:  # noqa: BLE001  # of the SDK, a process, a network: it cannot be used now
            reason = str(wire.last or _innermost(error))
        finally:
            self._session = None
            self._failures = 0 if loop.time() - began > LIVED else self._failures + 1
            if not ready.done():
                ready.set_exception(NotSent(f"{self._target.name} cannot be used: {reason}"))
            _log.info("disconnected", server=self._target.name, reason=reason[:_LINE])

    def _pause(self) -> float:
        """Seconds to wait before the next start: a server that does not stay up is not started again and again."""
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2**self._failures) if self._failures else 0.0

    @contextlib.asynccontextmanager
    async def _client(self, wire: Wire, stale: asyncio.Event) -> AsyncGenerator[Client]:
        async def hear(message: IncomingMessage) -> None:
            if isinstance(message, types.ToolListChangedNotification):
                stale.set()

        async with self._transport(wire) as transport:
            client = Client(
                watched(transport, wire), message_handler=hear, cache=None,
                client_info=types.Implementation(name="outlive", version=_VERSION),
            )  # fmt: skip
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout(CONNECT):
                    await stack.enter_async_context(client)
                yield client

    @contextlib.asynccontextmanager
    async def _transport(self, wire: Wire) -> AsyncGenerator[Transport]:
        if self._target.url:
            made = await asyncio.to_thread(HttpClient, wire, self._target.headers)  # it reads certificates
            async with made as http:
                yield streamable_http_client(self._target.url, http_client=http)
            return
        program, *arguments = self._target.command
        parameters = StdioServerParameters(
            command=program, args=arguments, env=dict(self._target.env), cwd=self._target.cwd
        )
        async with _said(self._target.name) as stderr:
            yield stdio_client(parameters, stderr)


@contextlib.asynccontextmanager
async def _said(name: str) -> AsyncGenerator[Any]:
    """Give a file whose lines go to the log: each cut, and no more than so many a minute."""
    loop = asyncio.get_running_loop()
    reading, writing = os.pipe()
    reader = asyncio.StreamReader()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0))
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_pass_on, name, reader)
            with os.fdopen(writing, "wb", 0) as file:
                yield file
            group.cancel_scope.cancel()
    finally:
        pipe.close()


async def _pass_on(name: str, reader: asyncio.StreamReader) -> None:
    loop, rest = asyncio.get_running_loop(), b""
    since, count = loop.time(), 0
    while chunk := await reader.read(4096):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[:_LINE]
        if loop.time() - since > 60:
            since, count = loop.time(), 0
        for line in lines:
            count += 1
            if count <= _LINES:
                _log.info("said", server=name, line=line[:_LINE].decode(errors="replace"))
            elif count == _LINES + 1:
                _log.warning("says too much: lines are left out for a minute", server=name)


def _seen(session: "asyncio.Future[Session]") -> None:
    """Take note of an error that nobody waits for any more."""
    if not session.cancelled():
        session.exception()


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    return error
