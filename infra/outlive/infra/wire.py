"""What goes over NATS's wire and what comes back: subjects and headers that are safe to send, acks, errors.

NATS answers what it cannot take with ``-ERR`` and the end of the connection, so it is refused here first.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from nats.aio.client import Client

WRONG_LAST_SEQUENCE: Final = 10071
NO_STREAM: Final = 10059
NO_MESSAGE: Final = 10037

_SUBJECT: Final = re.compile(r"[A-Za-z0-9_$-]{1,64}(\.[A-Za-z0-9_$-]{1,64}){0,15}", re.ASCII)
_HEADER: Final = re.compile(r"[!-9;-~]+: [^\r\n]*")  # a name is visible ASCII without a colon


class BusError(Exception):
    """Anything that NATS did not do; the subclass says what is known about it."""


class Disconnected(BusError):
    """Not sent: there is no connection at the moment. Wait for one with `Bus.wait_connected` and send again."""


class TooLarge(BusError):
    """Not sent: headers and payload exceed the server's ``max_payload`` (sending it would cost the connection)."""


class InvalidSubject(BusError, ValueError):
    """Not sent: a subject or header that NATS cannot carry, or that would end the connection."""


class NoResponders(BusError):
    """Not stored and not answered: no stream (or no service) listens on the subject. Is JetStream up, the stream there?"""


class RequestTimeout(BusError):
    """No answer in time: the request may have been handled."""


class PublishTimeout(BusError):
    """Unknown: no ack came in time, or the link was cut before it. The message may be in the stream."""


class JetStreamError(BusError):
    """Refused by JetStream.

    Attributes:
        code: the class of the error, as in HTTP (404: there is no such stream or message).
        err_code: JetStream's own number.
    """

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} (JetStream {err_code})")
        self.code = code
        self.err_code = err_code


class WrongLastSequence(JetStreamError):
    """Not stored: the subject's last message is not the expected one (10071). Somebody, or an earlier try, wrote it."""


class ApiError(msgspec.Struct, frozen=True):
    """The ``error`` of an answer of JetStream."""

    code: int = 0
    err_code: int = 0
    description: str = "refused"

    def exception(self) -> JetStreamError:
        """Return it as an exception."""
        kind = WrongLastSequence if self.err_code == WRONG_LAST_SEQUENCE else JetStreamError
        return kind(self.code, self.err_code, self.description)


class Ack(msgspec.Struct, frozen=True, gc=False):
    """A stream has the message, at `seq`. `duplicate`: an earlier one with its id, which may be another body."""

    stream: str
    seq: int
    duplicate: bool = False


class _Reply(Ack, frozen=True, gc=False):
    error: ApiError | None = None  # a refusal carries stream and seq 0 as well
    stream: str = ""
    seq: int = 0


_read_reply: Final = msgspec.json.Decoder(_Reply).decode


def outcome(data: bytes, headers: bytes | None) -> Ack | BusError:
    """Read what JetStream answers to a publish."""
    if headers and headers.startswith(b"NATS/1.0 503"):
        return NoResponders("no stream listens on the subject: nothing was stored. Is JetStream up, the stream there?")
    try:
        reply = _read_reply(data)
    except msgspec.DecodeError:
        return PublishTimeout(f"the message may be stored, its ack cannot be read: {data[:80]!r}")
    return reply if reply.error is None else reply.error.exception()


def checked(subject: str) -> bytes:
    """Return a subject as bytes; raises `InvalidSubject` for wildcards and whatever would break the protocol."""
    if not _SUBJECT.fullmatch(subject):
        raise InvalidSubject(
            f"subject {subject[:80]!r} is not allowed: tokens of A-Z a-z 0-9 _ - $ (1 to 64 each) joined by dots"
        )
    return subject.encode()


def header_block(headers: Mapping[str, str]) -> bytes:
    """Encode headers as they go on the wire; raises `InvalidSubject` for a line that would break the protocol."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    for line in lines:
        if not _HEADER.fullmatch(line):
            raise InvalidSubject(f"header {line[:80]!r} is not allowed: no space or colon in its name, no line break")
    return "\r\n".join(("NATS/1.0", *lines, "\r\n")).encode()


class WireClient(Client):
    """nats-py's client, with one subscription whose messages go straight to a callback."""

    acks: int = -1  # its id
    on_ack: Callable[[bytes, bytes, bytes | None], None]

    async def written(self) -> None:
        """Return when all that nats-py holds back has gone to the socket, or when there is none.

        No public way waits for this alone, and the one that there is keeps a cancellation to itself: whoever had given
        up would go on.
        """
        queue, flusher = self._flush_queue, self._flusher_task
        if not self.is_connected or queue is None or flusher is None or flusher.done():
            return
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await queue.put(gone)
        await asyncio.wait([gone, flusher], return_when=asyncio.FIRST_COMPLETED)

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if sid == self.acks:
            self.on_ack(subject, data, headers)
        else:
            await super()._process_msg(sid, subject, reply, data, headers)
