"""The relay: publishes each task's events after their commit, in order, each exactly once in the stream.

A task has one event in flight; tasks go side by side. A publish names the stream sequence of the task's event before
it (``Nats-Expected-Last-Subject-Sequence``), so a stream takes event n only directly behind event n - 1, whoever sends
it and how often. The usual way is all callbacks: `Relay.committed` sends the first event, its ack sends the next. All
else is the slow way, a few coroutines: after a refusal, a lost ack or a cut link the stream's leader is asked for the
last event that it has, and that decides; what is not in memory is read from the table.

A claim's mark (`Claim.published`) is written by the journal with the task's next record. When the task has been left,
the relay writes it itself; until it covers the last event the task's ``sweep_at`` is set, and any worker's sweep
publishes what is missing. So a left task may be dropped at the first trouble.

A stream that lost its tail, or was made anew, is noticed by the next event of each task: the mark is set back to what
the stream has, and the rest comes from the table. Tasks that have ended publish no more: what such a stream lacks of
them stays in the table alone, where readers find it (the api's ``events``).
"""

import asyncio
import base64
import logging
import random
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import anyio

from outlive.infra import failpoints, sql
from outlive.infra.bus import NO_MESSAGE, NO_STREAM, Ack, Bus, BusError, JetStreamError, WrongLastSequence
from outlive.infra.database import TRANSIENT
from outlive.infra.records import Claim, Key
from outlive.protocol.events import SEQ_HEADER
from outlive.protocol.subjects import Subjects

_log = logging.getLogger(__name__)

WINDOW: Final = 2000
"""Events in flight at once, of all tasks."""

HELD: Final = 256
"""Events of one task kept in memory; what comes behind them is read from the table when its turn comes."""

HELD_BYTES: Final = 256 * 1024
"""The same in bytes."""

_MENDERS: Final = 8
_MARK_PAUSE: Final = 0.1  # gathers the marks of many tasks into one statement; the sweep waits 1 s
_SWEEP_PAUSE: Final = 1.0
_SWEEP_BATCH: Final = 200
_RETRY: Final = 0.1
_RETRY_CAP: Final = 5.0

_SEQ: Final = re.compile(rb"\r\n%b: (\d+)\r\n" % SEQ_HEADER.encode())
_QUERIES: Final = sql.load("relay")


class Pool(Protocol):
    """What is needed of the database's pool."""

    async def fetch(self, query: str, /, *arguments: object) -> Sequence[Any]:
        """Run a statement and return its rows."""
        ...


class Position(NamedTuple):
    """The last event that the stream has of a task (0: none), and its stream sequence."""

    number: int
    at: int


class _Flow:
    """What is to be published of one claim. Waiting: `queue`, then the table up to `wanted`."""

    __slots__ = (
        "acked",
        "busy",
        "claim",
        "closed",
        "done",
        "doubt",
        "head",
        "held",
        "left",
        "next",
        "queue",
        "retries",
        "since",
        "subject",
        "wanted",
    )

    def __init__(self, claim: Claim, subject: bytes, now: float) -> None:
        self.claim = claim
        self.subject = subject
        self.head = self.heading("")
        self.done: Callable[[Ack | BusError], None]
        self.queue: deque[tuple[int, bytes]] = deque()
        self.held = 0  # bytes in the queue
        self.next = claim.published + 1  # the number that follows the queue's last
        self.wanted = claim.published  # last number that is committed
        self.busy = False  # somebody will come back to it: an ack, a timer, a mender
        self.doubt = False  # the stream must be asked before anything else is sent
        self.acked = False  # only with failpoints: an ack came and nothing was done about it yet
        self.left = False
        self.closed = False
        self.retries = 0
        self.since = now  # when it last got on

    def heading(self, suffix: str) -> bytes:
        """The headers, with places for number, number and expected sequence."""
        return (
            f"NATS/1.0\r\nNats-Msg-Id: {self.claim.tenant}/{self.claim.task_id}:%d{suffix}\r\n"
            f"{SEQ_HEADER}: %d\r\nNats-Expected-Last-Subject-Sequence: %d\r\n\r\n"
        ).encode()

    @property
    def pending(self) -> int:
        return self.wanted - self.claim.published

    def add(self, events: Sequence[tuple[int, bytes]]) -> None:
        for seq, event in events:
            if seq == self.next and len(self.queue) < HELD and self.held < HELD_BYTES:
                self.queue.append((seq, event))
                self.held += len(event)
                self.next = seq + 1
        self.wanted = max(self.wanted, events[-1][0])

    def advance(self, position: Position, now: float) -> None:
        if position.number > self.claim.published:
            self.retries = 0
            self.since = now
        self.claim.published, self.claim.published_at = position
        while self.queue and self.queue[0][0] <= position.number:
            self.held -= len(self.queue.popleft()[1])
        self.next = max(self.next, position.number + 1)

    def rewind(self, position: Position) -> None:
        self.claim.published, self.claim.published_at = position
        self.queue.clear()
        self.held = 0
        self.next = position.number + 1


class Relay:
    """Publishes events of claims; one per worker.

    Args:
        bus: the connection.
        pool: where facts are read and marks are written.
        subjects: the installation's names.
        ensure: makes the streams anew when they are found missing (`outlive.infra.streams.ensure`).
    """

    def __init__(
        self, bus: Bus, pool: Pool, subjects: Subjects, *, ensure: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._bus = bus
        self._pool = pool
        self._subjects = subjects
        self._ensure = ensure
        self._time = asyncio.get_running_loop().time
        self._flows: dict[Key, _Flow] = {}
        self._flying = 0
        self._ready: deque[_Flow] = deque()  # the window is full
        self._broken: asyncio.Queue[_Flow] = asyncio.Queue()  # for the slow way
        self._marks: dict[Key, tuple[str, str, int, int, int]] = {}
        self._marking = asyncio.Event()

    # -- what the journal and the actors tell

    def committed(self, claim: Claim, events: Sequence[tuple[int, bytes]]) -> None:
        """Publish events that are durable now: (number, body), in order; of a take-over first those not yet published.

        Cheap, never waits. Events that were not handed in (numbers left out) are read from the table.
        """
        if not events:
            return
        flow = self._flows.get(claim.key)
        if flow is None or flow.claim is not claim:
            flow = self._open(claim)
        flow.add(events)
        if not flow.busy:
            flow.since = self._time()
            self._go_on(flow)

    def left(self, claim: Claim) -> None:
        """The claim is given up, durably: write its mark once all is published (or leave the rest to the sweep)."""
        flow = self._flows.get(claim.key)
        if flow is None or flow.claim is not claim:
            flow = self._open(claim)
        flow.left = True
        if not flow.busy:
            self._go_on(flow)
        elif not self._bus.connected:
            self._close(flow)

    def forget(self, claim: Claim) -> None:
        """The claim is fenced: publish no more for it. The new owner publishes what is missing."""
        flow = self._flows.get(claim.key)
        if flow is not None and flow.claim is claim:
            self._close(flow)

    # -- health

    @property
    def lag(self) -> int:
        """Events that are committed and not known to be in the stream."""
        return sum(flow.pending for flow in self._flows.values())

    @property
    def oldest(self) -> float:
        """Seconds for which the task that waits longest has waited for its next event to be in the stream."""
        now = self._time()
        return max((now - flow.since for flow in self._flows.values() if flow.pending), default=0.0)

    async def drain(self, timeout: float) -> bool:  # noqa: ASYNC109  # reason: the end of the wait is no error
        """Wait until all is published and marked, at most `timeout` seconds; tells whether it is."""
        end = self._time() + timeout
        while (self.lag or self._marks) and self._time() < end:  # noqa: ASYNC110  # the hot path tells nobody
            await asyncio.sleep(0.01)
        return not (self.lag or self._marks)

    # -- the usual way

    def _open(self, claim: Claim) -> _Flow:
        if former := self._flows.get(claim.key):
            self._close(former)
        subject = self._subjects.progress(claim.tenant, claim.task_id).encode()
        flow = self._flows[claim.key] = _Flow(claim, subject, self._time())
        flow.done = partial(self._answered, flow)
        return flow

    def _close(self, flow: _Flow) -> None:
        flow.closed = True
        del flow.done  # leads back to the flow: without it memory is freed at once
        del self._flows[flow.claim.key]

    def _go_on(self, flow: _Flow) -> None:
        """Publish what is next, or be idle."""
        if flow.doubt or flow.acked or (flow.pending and (failpoints.armed or not flow.queue)):
            self._break(flow)
        elif flow.queue:
            self._send(flow)
        else:
            self._rest(flow)

    def _send(self, flow: _Flow) -> None:
        flow.busy = True
        if self._flying >= WINDOW:
            self._ready.append(flow)
            return
        claim = flow.claim
        seq, event = flow.queue[0]
        try:
            self._bus.send(flow.subject, flow.head % (seq, seq, claim.published_at), event, flow.done)
        except BusError as error:
            self._trouble(flow, error)
        else:
            self._flying += 1

    def _answered(self, flow: _Flow, result: Ack | BusError) -> None:
        self._flying -= 1
        self._send_ready()
        if flow.closed:
            return
        if isinstance(result, Ack) and not result.duplicate:
            flow.advance(Position(flow.queue[0][0], result.seq), self._time())
            flow.acked = failpoints.armed
            self._go_on(flow)
        else:
            flow.doubt = True
            self._refused(flow, result)

    def _refused(self, flow: _Flow, why: Ack | BusError) -> None:
        if isinstance(why, WrongLastSequence) and flow.retries < 3:
            flow.retries += 1
            self._break(flow)
            return
        if isinstance(why, Ack):
            # The id is known to the stream, yet the event may be gone (a purge): if so it needs another id.
            flow.head = flow.heading(f":{flow.claim.epoch}.{flow.claim.published_at}")
        self._trouble(flow, why)

    def _send_ready(self) -> None:
        while self._ready:
            flow = self._ready.popleft()
            if not flow.closed:
                self._send(flow)
                return

    def _rest(self, flow: _Flow) -> None:
        flow.busy = False
        if flow.left:
            self._close(flow)
            claim = flow.claim
            self._marks[claim.key] = (*claim.key, claim.epoch, claim.published, claim.published_at)
            self._marking.set()

    # -- the slow way

    def _break(self, flow: _Flow) -> None:
        flow.busy = True
        self._broken.put_nowait(flow)

    def _trouble(self, flow: _Flow, why: object) -> None:
        """Try again later; a task that was left is the sweep's."""
        if flow.closed:
            return
        if flow.left:
            self._close(flow)
            return
        flow.busy = True
        flow.retries += 1
        if flow.retries == 5:
            _log.warning("event %d of task %s is not published yet: %s", flow.claim.published + 1, flow.claim.key, why)
        delay = min(_RETRY * 2**flow.retries, _RETRY_CAP) * random.uniform(0.5, 1)
        asyncio.get_running_loop().call_later(delay, self._broken.put_nowait, flow)

    async def run(self) -> None:
        """Serve until cancelled: the slow way, marks, the sweep."""
        async with anyio.create_task_group() as services:
            for _ in range(_MENDERS):
                services.start_soon(self._mend_all)
            services.start_soon(self._write_marks)
            services.start_soon(self._sweep)

    async def _mend_all(self) -> None:
        while True:
            flow = await self._broken.get()
            try:
                await self._mend(flow)
            except Exception as error:  # noqa: BLE001  # reason: a task's events must go on whatever it was
                self._trouble(flow, error)
            except BaseException:
                self._broken.put_nowait(flow)
                raise

    async def _mend(self, flow: _Flow) -> None:
        """Ask the stream if in doubt, read what is not in memory, and return to the usual way."""
        if flow.acked:
            await failpoints.hit("publish.after", f"event {flow.claim.published}")
            flow.acked = False
        await self._bus.wait_connected()
        if flow.doubt and not flow.closed:
            await self._ask(flow)
        if flow.pending and not flow.queue and not flow.closed:
            await self._read(flow)
        if failpoints.armed and flow.queue and not flow.closed:
            await failpoints.hit("publish.before", f"event {flow.queue[0][0]}")
        if flow.closed:
            return
        if flow.queue:
            self._send(flow)
        else:
            self._go_on(flow)

    async def _ask(self, flow: _Flow) -> None:
        claim = flow.claim
        position = await self._position(claim, flow.subject.decode())
        if flow.closed:
            return
        if position.number < claim.published:
            _log.warning(
                "the stream ends at event %d of task %s, %d were published: it lost its tail or was made anew; "
                "the rest is published again", position.number, claim.key, claim.published,
            )  # fmt: skip
            await self._pool.fetch(_QUERIES["rewind"], *claim.key, claim.epoch, *position)
            flow.rewind(position)
        else:
            # More than we wanted: another owner went on, and this claim is about to learn that it is fenced.
            flow.advance(position._replace(number=min(position.number, flow.wanted)), self._time())
        flow.doubt = False

    async def _position(self, claim: Claim, subject: str) -> Position:
        """Where the stream's leader says that the task's events end (never a replica: it may lag)."""
        stream = self._subjects.progress_stream
        try:
            answer = await self._bus.api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
        except JetStreamError as error:
            if error.err_code == NO_STREAM and self._ensure is not None:
                await self._ensure()
            if error.err_code != NO_MESSAGE:
                raise
            return _without_message(claim, (await self._bus.api(f"STREAM.INFO.{stream}"))["state"])
        return _of_message(claim, answer["message"])

    async def _read(self, flow: _Flow) -> None:
        after = flow.next - 1
        rows = await self._pool.fetch(_QUERIES["facts"], *flow.claim.key, after, flow.wanted, HELD)
        if not rows or rows[0]["seq"] != after + 1:
            raise LookupError(f"event {after + 1} of task {flow.claim.key} is not in the table fact")
        flow.add([(row["seq"], row["event"]) for row in rows])

    # -- tasks that were left

    async def _write_marks(self) -> None:
        while True:
            await self._marking.wait()
            await asyncio.sleep(_MARK_PAUSE)
            self._marking.clear()
            marks = list(self._marks.values())
            try:
                await self._pool.fetch(_QUERIES["mark"], *map(list, zip(*marks, strict=True)))
            except TRANSIENT as error:
                _log.warning("%d marks of published events were not written, the sweep will: %s", len(marks), error)
            for mark in marks:
                if self._marks.get(mark[:2]) is mark:
                    del self._marks[mark[:2]]

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_PAUSE * random.uniform(0.8, 1.2))
            if self._bus.connected and self._broken.qsize() < _SWEEP_BATCH:
                await self._sweep_once()

    async def _sweep_once(self) -> None:
        try:
            rows = await self._pool.fetch(_QUERIES["due"], _SWEEP_BATCH)
        except TRANSIENT as error:
            _log.warning("the sweep could not look for unpublished events: %s", error)
            return
        for row in rows:
            claim = Claim(**row)
            flow = self._flows.get(claim.key)
            if flow is None or not flow.left:  # left long ago, and whoever should have told us has ended
                flow = self._open(claim)
                flow.wanted, flow.left = claim.last_seq, True
                self._go_on(flow)


def _of_message(claim: Claim, message: Mapping[str, Any]) -> Position:
    match = _SEQ.search(base64.b64decode(message.get("hdrs", "")))
    if match is None:
        # Permissions keep strangers away. Where they do not: its place matters, the number is what we know.
        _log.error("a message without %s is on the progress subject of task %s", SEQ_HEADER, claim.key)
        return Position(claim.published, message["seq"])
    return Position(int(match[1]), message["seq"])


def _without_message(claim: Claim, state: Mapping[str, int]) -> Position:
    """No event of the task is in the stream: were they dropped by age, or lost with the stream?

    Limits drop from the front. So events are dropped if the stream goes on beyond the task's last one and begins
    behind it; then the numbers go on. Else the stream is shorter than it was.
    """
    dropped = state["first_seq"] > claim.published_at and state["last_seq"] >= claim.published_at
    return Position(claim.published if dropped else 0, 0)
