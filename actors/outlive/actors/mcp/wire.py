"""What is known of the messages of one connection: which calls were handed over, and what kept one from its answer.

The SDK tells a caller that its connection is gone, not whether the call had left. That makes the difference between an
effect that may be sent again and one that may have happened, so it is watched here, where messages pass.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self, cast

import anyio
import httpx2
import msgspec
from mcp.client import Transport
from mcp.shared.message import SessionMessage

from outlive.protocol.errors import NotSent

KEY: Final = "outlive/idempotency-key"
"""Where a call's ``_meta`` has our key: the same on every attempt and after every crash."""

_SESSION: Final = "mcp-session-id"
_REFUSALS: Final = frozenset({401, 403, 404, 408, 429})
_LOST: Final = -32000


class Wire:
    """One connection as seen from outside.

    Attributes:
        closed: set when the server has ended it, or no longer knows it.
        sent: keys of calls that were handed to the transport: from then on the server may have them.
        faults: by key: what the transport met instead of an answer.
        last: what it met last, whatever the message was.
    """

    def __init__(self) -> None:
        self.closed: Final = asyncio.Event()
        self.sent: Final = set[str]()
        self.faults: Final = dict[str, BaseException]()
        self.last: BaseException | None = None

    def fault(self, key: str | None, error: BaseException) -> None:
        """Remember what a message met."""
        self.last = error
        if key is not None:
            self.faults[key] = error

    def forget(self, key: str) -> None:
        """A call is over."""
        self.sent.discard(key)
        self.faults.pop(key, None)


class _Stream:
    """A stream of the SDK whose messages pass under the eyes of a wire."""

    def __init__(self, inner: Any, wire: Wire) -> None:
        self._inner = inner
        self._wire = wire

    async def aclose(self) -> None:
        """Close it."""
        await self._inner.aclose()

    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return cast("bool | None", await self._inner.__aexit__(kind, error, trace))


class Reader(_Stream):
    """The stream of what the server says; its end closes the wire."""

    @property
    def last_context(self) -> Any:
        """As the SDK's own streams have it."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        """Give the next message."""
        try:
            return cast("SessionMessage | Exception", await self._inner.receive())
        except BaseException:
            self._wire.closed.set()
            raise

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return cast("SessionMessage | Exception", await self._inner.__anext__())
        except BaseException:
            self._wire.closed.set()
            raise


class Writer(_Stream):
    """The stream of what we say; it knows which calls were taken from it."""

    async def send(self, item: SessionMessage, /) -> None:
        """Hand a message over."""
        key = _key({"params": getattr(item.message, "params", None)})
        if key is not None:
            self._wire.sent.add(key)
        try:
            await self._inner.send(item)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):  # nobody has taken it
            if key is not None:
                self._wire.sent.discard(key)
            raise


class HttpClient(httpx2.AsyncClient):
    """The HTTP client of a connection: one request that fails takes no other one with it, and is known by its key."""

    def __init__(self, wire: Wire, headers: Mapping[str, str] | None) -> None:
        super().__init__(headers=dict(headers or {}), timeout=httpx2.Timeout(30.0, read=None))
        self._wire = wire

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send; what was met instead of an answer is noted and told as a JSON-RPC error."""
        message = _message(request)
        key = _key(message)
        try:
            response = await super().send(request, **options)
        except httpx2.RequestError as error:
            self._wire.fault(key, error)
            if request.method != "POST":
                raise
            return _instead(request, message.get("id"), error)
        if response.status_code == 404 and _SESSION in request.headers:
            self._wire.fault(key, NotSent("the server does not know our session any more"))
            self._wire.closed.set()
        elif response.status_code in _REFUSALS or response.status_code >= 500:
            self._wire.fault(
                key, httpx2.HTTPStatusError(f"HTTP {response.status_code}", request=request, response=response)
            )
        return response


def watched(transport: Transport, wire: Wire) -> Transport:
    """Return a transport whose messages pass under the eyes of a wire."""
    return cast("Transport", _Watched(transport, wire))


class _Watched:
    def __init__(self, transport: Transport, wire: Wire) -> None:
        self._transport = transport
        self._wire = wire

    async def __aenter__(self) -> tuple[Reader, Writer]:
        read, write = await self._transport.__aenter__()
        return Reader(read, self._wire), Writer(write, self._wire)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._transport.__aexit__(kind, error, trace)


def _message(request: httpx2.Request) -> dict[str, Any]:
    try:
        message: Any = msgspec.json.decode(request.content) if request.method == "POST" else {}
    except (msgspec.DecodeError, httpx2.RequestNotRead):
        return {}
    return cast("dict[str, Any]", message) if isinstance(message, dict) else {}


def _key(message: Mapping[str, Any]) -> str | None:
    """Return our key of a message, if it is a call of ours."""
    params: Any = message.get("params")
    meta: Any = params.get("_meta") if isinstance(params, dict) else None
    key: Any = meta.get(KEY) if isinstance(meta, dict) else None
    return key if isinstance(key, str) else None


def _instead(request: httpx2.Request, number: Any, error: BaseException) -> httpx2.Response:
    """Answer a request that met an error; a notification is just not delivered."""
    if number is None:
        return httpx2.Response(202, request=request)
    told = {"code": _LOST, "message": str(error) or type(error).__name__}
    return httpx2.Response(200, json={"jsonrpc": "2.0", "id": number, "error": told}, request=request)
