"""Reading a stream in order, from a sequence on, without acknowledgements and without loss.

A consumer that acknowledges was measured to reorder commands across crashes. One that does not forgets what it sent:
after a cut link it goes on behind the messages that were on the way. So a `Feed` trusts a message only if its consumer
sequence is the previous one + 1, and ends with `Interrupted` at any doubt; its reader then opens another one behind the
last message that it made durable. nats-py's own ``fetch`` hides exactly these faults.
"""

import asyncio
import base64
import contextlib
import uuid
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, NamedTuple, Self

import msgspec
import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from outlive.infra.bus import NO_MESSAGE, Bus, BusError, JetStreamError
from outlive.protocol import codec

BATCH: Final = 500
"""Most messages of one batch, and of one pull."""

BATCH_BYTES: Final = 4 << 20
"""Bytes of bodies after which a batch is full, and no further pull is sent until it was taken."""

HEARTBEAT: Final = 1.0
"""Seconds between signs of life of an idle pull; without one for 2.5 times as long the feed is interrupted."""

_EXPIRES: Final = 30.0
_FORGOTTEN: Final = 10.0  # seconds after which the server drops a consumer that nobody pulls from
_TICK: Final = 0.1  # seconds between looks at the connection while waiting
_API_TIMEOUT: Final = 2.0
_NANO: Final = 1_000_000_000
_ENDED: Final = frozenset({"Message Size Exceeds MaxBytes", "Batch Completed"})  # a pull is used up, nothing is wrong


class Interrupted(Exception):
    """The feed cannot prove any more that it misses nothing: open another one behind what is durable.

    Causes: a gap, a cut connection, a missed heartbeat, or the server ended the consumer (restart, new leader, stream
    deleted).
    """


class Message(NamedTuple):
    """One message of the stream."""

    seq: int
    """Its sequence in the stream."""
    at: str
    """When the stream stored it: nanoseconds since 1970, as text."""
    subject: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def digest(self) -> bytes:
        """Names subject and body."""
        return codec.digest(self.subject.encode(errors="surrogateescape"), self.body)


class Extent(NamedTuple):
    """Which stream it is, and what it holds."""

    created: str
    """Time of creation: another one is another stream."""
    first: int
    last: int
    """Sequence of the last message ever stored; 0 = none."""


class Source:
    """A stream's own api, as far as a reader with a cursor needs it.

    Every method raises `outlive.infra.bus.BusError` when NATS does not do it.
    """

    def __init__(self, bus: Bus, stream: str) -> None:
        """Name the stream."""
        self.bus = bus
        self.stream = stream

    async def extent(self) -> Extent:
        """Ask which stream it is and how far it reaches."""
        info = await self.bus.api(f"STREAM.INFO.{self.stream}", timeout=_API_TIMEOUT)
        state = info["state"]
        return Extent(info["created"], state["first_seq"], state["last_seq"])

    async def message(self, seq: int) -> Message | None:
        """Read the message at a sequence (without headers); None when the stream does not have it (any more)."""
        return await self._get({"seq": seq})

    async def first_since(self, when: datetime) -> int | None:
        """Return the sequence of the first message stored at or after a time; None when there is none."""
        found = await self._get({"start_time": when.astimezone(UTC).isoformat(), "next_by_subj": ">"})
        return found.seq if found else None

    async def purge_below(self, seq: int) -> None:
        """Remove all messages with smaller sequences."""
        await self.bus.api(f"STREAM.PURGE.{self.stream}", {"seq": seq}, timeout=_API_TIMEOUT)

    async def _get(self, which: Mapping[str, object]) -> Message | None:
        try:
            answer = await self.bus.api(f"STREAM.MSG.GET.{self.stream}", which, timeout=_API_TIMEOUT)
        except JetStreamError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        found = answer["message"]
        body = base64.b64decode(found.get("data", ""))
        return Message(found["seq"], _nanoseconds(found["time"]), found["subject"], {}, body)


class Feed:
    """One ephemeral consumer, from its making to its first doubt: ``async with Feed(source, start) as feed``.

    There is always a pull outstanding while there is room for messages, so they come as fast as if they were pushed.

    Args:
        source: the stream.
        start: the first wanted stream sequence.

    Raises:
        outlive.infra.bus.BusError: on entering, when the consumer cannot be made.
    """

    def __init__(self, source: Source, start: int) -> None:
        """See the class."""
        self._bus, self._stream, self._start = source.bus, source.stream, start
        self._name = f"outlive-{uuid.uuid4().hex}"
        self._waiting: deque[Message] = deque()
        self._bytes = 0  # of the waiting bodies
        self._open = 0  # messages that outstanding pulls may still bring
        self._expected = 1  # the next consumer sequence
        self._doubt = ""
        self._news = asyncio.Event()
        self._heard = 0.0
        self._generation = -1
        self._client: Client
        self._inbox = ""
        self._subscription: Subscription | None = None

    async def __aenter__(self) -> Self:
        """Make the consumer and send the first pull."""
        await self._bus.wait_connected(_API_TIMEOUT)
        self._generation, self._client = self._bus.generation, self._bus.nc
        config = {
            "name": self._name,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": self._start,
            "ack_policy": "none",
            "inactive_threshold": int(_FORGOTTEN * _NANO),
            "mem_storage": True,
            "num_replicas": 1,
        }
        try:
            await self._bus.api(
                f"CONSUMER.CREATE.{self._stream}.{self._name}",
                {"stream_name": self._stream, "config": config},
                timeout=_API_TIMEOUT,
            )
            self._inbox = self._client.new_inbox()
            self._subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
            await self._pull()
        except nats.errors.Error as error:
            raise Interrupted(f"the connection ended: {error}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Delete the consumer, as far as that is possible now; the server forgets it soon anyway."""
        with contextlib.suppress(nats.errors.Error, BusError, OSError):
            if self._subscription is not None:
                await self._subscription.unsubscribe()
            await self._bus.publish(f"$JS.API.CONSUMER.DELETE.{self._stream}.{self._name}", b"")

    async def batch(self, wait: float) -> list[Message]:
        """Return all that has come, at most `BATCH` messages; wait for the first one.

        Returns:
            Messages in the order of the stream without a gap; none when `wait` seconds passed without any.

        Raises:
            Interrupted: see there. Messages that came before the doubt are returned first.
        """
        until = asyncio.get_running_loop().time() + wait
        while not self._waiting:
            self._check()
            left = until - asyncio.get_running_loop().time()
            if left <= 0:
                return []
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, _TICK)):
                    await self._news.wait()
        batch = self._take()
        await self._pull()
        return batch

    def _take(self) -> list[Message]:
        batch: list[Message] = []
        size = 0
        while self._waiting and len(batch) < BATCH and size < BATCH_BYTES:
            message = self._waiting.popleft()
            batch.append(message)
            size += len(message.body)
        self._bytes -= size
        return batch

    def _check(self) -> None:
        if self._bus.generation != self._generation:
            self._doubt = self._doubt or "the connection was cut"
        elif asyncio.get_running_loop().time() > self._heard + 2.5 * HEARTBEAT:
            self._doubt = self._doubt or "no heartbeat came"
        if self._doubt:
            raise Interrupted(self._doubt)

    async def _pull(self) -> None:
        """Ask for more while there is room for it."""
        if self._doubt or self._open + len(self._waiting) > BATCH or self._bytes > BATCH_BYTES:
            return
        if self._open == 0:
            self._heard = asyncio.get_running_loop().time()
        self._open += BATCH
        request = {
            "batch": BATCH,
            # A single message larger than this would never come.
            "max_bytes": max(BATCH_BYTES, 2 * self._client.max_payload),
            "expires": int(_EXPIRES * _NANO),
            "idle_heartbeat": int(HEARTBEAT * _NANO),
        }
        try:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
            await self._client.publish(subject, msgspec.json.encode(request), reply=self._inbox)
        except (nats.errors.Error, OSError) as error:
            self._suspect(f"the connection ended: {error}")

    async def _on_message(self, raw: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        if raw.reply.startswith("$JS.ACK."):
            self._accept(raw)
        else:
            self._on_status(raw.headers or {})
        await self._pull()

    def _accept(self, raw: Msg) -> None:
        """Keep a message if it is the next one."""
        if self._doubt:
            return
        consumer_seq, message = _read(raw)
        if consumer_seq != self._expected:
            self._suspect(f"message {consumer_seq} of the consumer came instead of {self._expected}")
            return
        self._expected += 1
        self._open = max(0, self._open - 1)
        self._bytes += len(message.body)
        self._waiting.append(message)
        self._news.set()

    def _on_status(self, headers: Mapping[str, str]) -> None:
        status, why = headers.get("Status", ""), headers.get("Description", "")
        if status == "100":
            sent = int(headers.get("Nats-Last-Consumer", self._expected - 1))
            if sent >= self._expected:
                self._suspect(
                    f"messages up to {sent} of the consumer were sent, those from {self._expected} on are missing"
                )
        elif status == "408" or (status == "409" and why in _ENDED):
            self._open = max(0, self._open - int(headers.get("Nats-Pending-Messages", BATCH)))
        else:
            self._suspect(f"the server ended the consumer: {status} {why}".strip())

    def _suspect(self, why: str) -> None:
        self._doubt = self._doubt or why
        self._news.set()


def _read(raw: Msg) -> tuple[int, Message]:
    """Split the reply subject: ``$JS.ACK.[domain.account.]stream.consumer.delivered.stream_seq.consumer_seq.time.pending``."""
    tokens = raw.reply.split(".")
    at = 5 if len(tokens) == 9 else 7
    message = Message(int(tokens[at]), tokens[at + 2], raw.subject, raw.headers or {}, raw.data)
    return int(tokens[at + 1]), message


def _nanoseconds(text: str) -> str:
    """Convert ``2026-01-02T03:04:05.123456789Z`` (trailing zeros left out) to nanoseconds since 1970."""
    seconds, _, fraction = text.removesuffix("Z").partition(".")
    whole = int(datetime.fromisoformat(seconds).replace(tzinfo=UTC).timestamp())
    return str(whole * _NANO + int(fraction.ljust(9, "0")[:9] or 0))
