"""One NATS connection that mends itself, and publishes whose acks cost almost nothing.

nats-py does the wire; four things are ours. A server's ``-ERR`` closes its client for good: `Bus` builds another and
attaches everything again. Subjects and sizes are checked before they are sent, because what the server refuses costs
the connection. Nothing is buffered while the link is down: a publish is refused at once as not sent. And acks of
JetStream come back on one inbox with a number as the last token, read on the socket's own path: no future, no task,
no message object for each (about a quarter of what ``js.publish`` costs).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any, Final, Self, cast

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.js.client import JetStreamContext

from outlive.infra.settings import Settings
from outlive.infra.wire import (
    NO_MESSAGE,
    NO_STREAM,
    Ack,
    ApiError,
    BusError,
    Disconnected,
    InvalidSubject,
    JetStreamError,
    NoResponders,
    PublishTimeout,
    RequestTimeout,
    TooLarge,
    WireClient,
    WrongLastSequence,
    checked,
    header_block,
    outcome,
)

__all__ = [
    "NO_MESSAGE",
    "NO_STREAM",
    "Ack",
    "Bus",
    "BusError",
    "Disconnected",
    "InvalidSubject",
    "JetStreamError",
    "NoResponders",
    "PublishTimeout",
    "RequestTimeout",
    "Subscription",
    "TooLarge",
    "WrongLastSequence",
    "header_block",
]

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT: Final = 5.0
"""Seconds within which the first connection must stand; later ones are tried for ever."""

ACK_TIMEOUT: Final = 5.0
"""Seconds after which a tracked publish without an ack is reported as unknown."""

_TICK: Final = 0.25
_RETRY: Final = 0.1  # seconds between tries to reach the server again
_STUCK: Final = 20.0  # seconds without a link after which the client itself is not trusted any more


Done = Callable[[Ack | BusError], None]
"""Told the end of one publish, exactly once, from the event loop; must not raise."""

Hook = Callable[[WireClient], Awaitable[None]]


class Subscription:
    """A subscription of a `Bus`: it outlives the connection it was made on."""

    def __init__(self, bus: "Bus", subject: str, queue: str, callback: Callable[[Msg], Awaitable[None]]) -> None:
        self._bus = bus
        self._subject = subject
        self._queue = queue
        self._callback = callback
        self._current: NatsSubscription | None = None

    async def attach(self, client: WireClient) -> None:
        """Subscribe on another client."""
        self._current = await client.subscribe(self._subject, queue=self._queue, cb=self._callback)
        await client.written()  # else what `Bus` writes itself would overtake it

    async def unsubscribe(self) -> None:
        """End it; messages under way may still come."""
        self._bus.detach(self.attach)
        if self._current is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._current.unsubscribe()


class Bus:
    """A supervised connection to NATS: ``async with Bus(url) as bus``.

    Args:
        url: ``nats://`` or ``tls://``, one or several separated by commas.
        name: shown in the server's connection list.
        options: what else ``nats.connect`` takes: token, user, password, user_credentials, tls, inbox_prefix ...

    Raises:
        Disconnected: on entering, when no server was reached within `CONNECT_TIMEOUT`.
    """

    def __init__(self, url: str, *, name: str = "outlive", **options: Any) -> None:
        self._url = url
        self._where = ",".join(part.rpartition("@")[2] for part in url.split(","))  # without a token
        self._options: dict[str, Any] = {"name": name, **options}
        self._hooks: list[Hook] = []
        self._up = asyncio.Event()
        self._ended = asyncio.Event()  # the client closed and will not come back
        self._last_error = "no answer"
        self._down_since: float | None = None
        self._waiting: dict[int, tuple[float, Done]] = {}  # by token, oldest first
        self._token = 0
        self._inbox = b""
        self._prefix = 0  # length of an ack's subject before its token
        self._out: list[bytes] = []
        self._supervisor: asyncio.Task[None] | None = None
        self.generation = 0
        """Grows with every cut: whoever relies on an unbroken flow of messages compares it."""
        self.nc: WireClient = WireClient()
        """The present client. It is replaced after a fatal error, so do not keep it: see `attach`."""

    @classmethod
    def of(cls, settings: Settings, *, name: str = "outlive") -> Self:
        """Describe the connection that settings name; `nats_url` must be set (see `outlive.infra.embedded.locate`)."""
        if settings.nats_url is None:
            raise ValueError("no NATS URL: set OUTLIVE_NATS_URL, or start servers with: outlive up")
        options: dict[str, Any] = {"token": settings.nats_token, "user_credentials": settings.nats_credentials}
        return cls(settings.nats_url, name=name, **options)

    # -- life

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        try:
            await self._connect()
        except (TimeoutError, OSError, nats.errors.Error) as error:
            why = self._last_error if isinstance(error, TimeoutError) else error
            raise Disconnected(
                f"no connection to NATS at {self._where}: {why}. Is the server up, the token right?"
            ) from error
        self._supervisor = self._loop.create_task(self._supervise(), name="bus")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._supervisor is not None and not self._supervisor.done():
            self._supervisor.cancel()  # more than once: nats-py keeps some cancellations to itself
            await asyncio.wait([self._supervisor], timeout=_TICK)
        self._flush()
        await self._abandon(self.nc)
        self._cut()

    async def run(self) -> None:
        """Wait for as long as the bus lives; raises what ended its supervision, if anything ever does."""
        if self._supervisor is not None:
            await asyncio.shield(self._supervisor)

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        return self._up.is_set()

    async def wait_connected(self, timeout: float | None = None) -> None:  # noqa: ASYNC109  # None is the usual case
        """Return once connected; raises `Disconnected` after `timeout` seconds (None: waits for ever)."""
        try:
            async with asyncio.timeout(timeout):
                await self._up.wait()
        except TimeoutError:
            raise Disconnected(
                f"no connection to NATS at {self._where} within {timeout} s: {self._last_error}"
            ) from None

    async def attach(self, hook: Hook) -> None:
        """Call `hook` with the present client, and with each that replaces it (subscriptions, services)."""
        self._hooks.append(hook)
        await hook(self.nc)

    def detach(self, hook: Hook) -> None:
        """Call `hook` no more."""
        with contextlib.suppress(ValueError):
            self._hooks.remove(hook)

    async def _connect(self) -> None:
        client = WireClient()
        client.on_ack = self._on_ack
        self._ended.clear()
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await self._dial(client)
                inbox = client.new_inbox()
                client.acks = (await client.subscribe(inbox + ".*", cb=_ignore))._id  # noqa: SLF001  # see WireClient
                for hook in list(self._hooks):
                    await hook(client)
                await client.flush()
        except BaseException:
            await self._abandon(client)
            raise
        self._inbox = inbox.encode() + b"."
        self._prefix = len(self._inbox)
        self._up.set()

    async def _dial(self, client: WireClient) -> None:
        # A refused token is told at once only where reconnecting is off, hence the change of mind afterwards.
        await client.connect(
            self._url.split(","),
            allow_reconnect=False,
            max_reconnect_attempts=-1,
            reconnect_time_wait=cast("int", _RETRY),
            ping_interval=10,
            connect_timeout=2,
            error_cb=self._on_error,
            disconnected_cb=partial(self._on_down, client),
            reconnected_cb=partial(self._on_up, client),
            closed_cb=partial(self._on_closed, client),
            **self._options,
        )
        client.options["allow_reconnect"] = True
        self.nc = client

    async def _supervise(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK):
                    await self._ended.wait()
            self._expire(self._loop.time())
            if self._ended.is_set() or self._is_stuck():
                await self._rebuild()

    def _is_stuck(self) -> bool:
        if self.nc.is_connected and self.connected:
            self._down_since = None
        elif self._down_since is None:
            self._down_since = self._loop.time()
        return self._down_since is not None and self._loop.time() > self._down_since + _STUCK

    async def _rebuild(self) -> None:
        self._cut()
        await self._abandon(self.nc)
        try:
            await self._connect()
        except (TimeoutError, OSError, nats.errors.Error) as error:
            self._last_error = str(error) or self._last_error
            self._ended.set()
            await asyncio.sleep(_TICK)
        else:
            _log.warning("a new connection to NATS stands, after: %s", self._last_error)
        self._down_since = None

    @staticmethod
    async def _abandon(client: Client) -> None:
        with contextlib.suppress(TimeoutError, OSError, nats.errors.Error):
            await asyncio.wait_for(client.close(), 1.0)

    async def _on_error(self, error: Exception) -> None:
        self._last_error = str(error) or type(error).__name__
        _log.debug("NATS: %s", self._last_error)

    async def _on_down(self, client: Client) -> None:
        if client is self.nc:
            self._cut()

    async def _on_up(self, client: Client) -> None:
        if client is self.nc:
            self._up.set()

    async def _on_closed(self, client: Client) -> None:
        if client is self.nc:
            self._cut()
            self._ended.set()

    def _cut(self) -> None:
        self._up.clear()
        self.generation += 1
        self._out.clear()
        waiting, self._waiting = self._waiting, {}
        for _, done in waiting.values():
            done(PublishTimeout("the connection to NATS was cut before the ack: the message may be in the stream"))

    # -- sending

    def send(self, subject: bytes, headers: bytes, payload: bytes, done: Done) -> None:
        """Publish to JetStream; `done` is called once with the ack or the reason. The hot path: checks only the size.

        Args:
            subject: made of checked ids.
            headers: a whole block, as of `header_block`.
            payload: the body.
            done: must not raise.

        Raises:
            Disconnected, TooLarge: nothing was sent, `done` is not called.
        """
        if not self._up.is_set():
            raise Disconnected(f"no connection to NATS at {self._where}: {self._last_error}")
        size = len(headers) + len(payload)
        if size > self.nc.max_payload:
            raise self._too_large(size)
        self._token = token = self._token + 1
        self._waiting[token] = (self._loop.time() + ACK_TIMEOUT, done)
        self._write(
            b"HPUB %b %b%d %d %d\r\n%b%b\r\n" % (subject, self._inbox, token, len(headers), size, headers, payload)
        )

    def publish_tracked(
        self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None
    ) -> asyncio.Future[Ack]:
        """Publish to JetStream; the future ends with the `Ack`.

        The future raises `WrongLastSequence` or another `JetStreamError` (refused), `NoResponders` (no such stream)
        or `PublishTimeout` (unknown).

        Raises:
            Disconnected, TooLarge, InvalidSubject: at once; nothing was sent.
        """
        future: asyncio.Future[Ack] = self._loop.create_future()
        self.send(checked(subject), header_block(headers or {}), payload, partial(_conclude, future))
        return future

    async def publish(self, subject: str, payload: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Publish without an ack (core NATS): whoever listens now gets it.

        Raises:
            Disconnected, TooLarge, InvalidSubject: nothing was sent.
        """
        name, block = checked(subject), header_block(headers) if headers else b""
        if not self._up.is_set():
            raise Disconnected(f"no connection to NATS at {self._where}: {self._last_error}")
        size = len(block) + len(payload)
        if size > self.nc.max_payload:
            raise self._too_large(size)
        if block:
            self._write(b"HPUB %b %d %d\r\n%b%b\r\n" % (name, len(block), size, block, payload))
        else:
            self._write(b"PUB %b %d\r\n%b\r\n" % (name, size, payload))

    def _too_large(self, size: int) -> TooLarge:
        return TooLarge(
            f"a message of {size:,} bytes was not sent: the NATS server takes at most {self.nc.max_payload:,} "
            "(max_payload). Store it elsewhere and send a reference"
        )

    def _write(self, command: bytes) -> None:
        """One write to the socket for all that is sent within one round of the event loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(command)

    def _flush(self) -> None:
        # Not through nats-py's own buffer: what stands there at a cut is sent after it, when nobody knows of it any more.
        transport = self.nc._transport  # noqa: SLF001  # it offers no other way
        if self._out and self._up.is_set() and transport is not None:
            transport.write(b"".join(self._out))
        self._out.clear()

    # -- acks

    def _on_ack(self, subject: bytes, data: bytes, headers: bytes | None) -> None:
        waiting = self._waiting.pop(int(subject[self._prefix :]), None)
        if waiting is not None:
            waiting[1](outcome(data, headers))

    def _expire(self, now: float) -> None:
        late = PublishTimeout(f"no ack within {ACK_TIMEOUT} s: the message may be in the stream")
        while self._waiting:
            token = next(iter(self._waiting))
            if self._waiting[token][0] > now:
                return
            self._waiting.pop(token)[1](late)

    # -- receiving

    async def subscribe(
        self, subject: str, callback: Callable[[Msg], Awaitable[None]], *, queue: str = ""
    ) -> Subscription:
        """Call `callback` with each message on `subject` (wildcards allowed), over every reconnect."""
        subscription = Subscription(self, subject, queue, callback)
        try:
            await self.attach(subscription.attach)
        except BaseException:
            await subscription.unsubscribe()
            raise
        return subscription

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: float = 5.0,  # noqa: ASYNC109  # its end is an error that says what was asked
        headers: dict[str, str] | None = None,
    ) -> Msg:
        """Ask and return the answer; waits for a connection within `timeout` seconds.

        Raises:
            NoResponders: nobody serves the subject.
            RequestTimeout: no answer in time.
            Disconnected, TooLarge, InvalidSubject: nothing was sent.
        """
        checked(subject)
        if len(payload) > self.nc.max_payload:
            raise self._too_large(len(payload))
        until = self._loop.time() + timeout
        await self.wait_connected(timeout)
        left = max(until - self._loop.time(), 0.01)
        never = cast("float", None)  # its own limit is `wait_for`, which in Python 3.11 may lose a cancellation
        try:
            async with asyncio.timeout(left):
                return await self.nc.request(subject, payload, timeout=never, headers=headers)
        except nats.errors.NoRespondersError:
            raise NoResponders(f"nobody answers on {subject}") from None
        except TimeoutError:
            raise RequestTimeout(f"no answer on {subject} within {timeout} s") from None
        except nats.errors.Error as error:
            raise Disconnected(f"the request on {subject} was not sent: {error}") from error

    async def api(
        self,
        verb: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout: float = 5.0,  # noqa: ASYNC109  # as in request
    ) -> dict[str, Any]:
        """Ask JetStream's own API (``$JS.API.{verb}``, for instance ``STREAM.INFO.name``) and return its answer.

        Raises:
            JetStreamError: it refused; `err_code` says why (`NO_STREAM`, `NO_MESSAGE`).
            NoResponders: JetStream is not enabled, or not up yet.
        """
        message = await self.request(f"$JS.API.{verb}", msgspec.json.encode(body) if body else b"", timeout=timeout)
        answer: dict[str, Any] = msgspec.json.decode(message.data)
        if error := answer.get("error"):
            raise msgspec.convert(error, ApiError).exception()
        return answer

    @property
    def js(self) -> JetStreamContext:
        """nats-py's JetStream context of the present client."""
        return self.nc.jetstream()


async def _ignore(_: Msg) -> None:
    """Acks never come this way."""


def _conclude(future: asyncio.Future[Ack], result: Ack | BusError) -> None:
    if future.done():
        return
    if isinstance(result, Ack):
        future.set_result(result)
    else:
        future.set_exception(result)
