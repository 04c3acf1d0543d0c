"""Reading a task's progress from a number on: every event once and in order, whatever happens on the way.

A plain subscription brings new events within a millisecond and may lose any of them (cut links, restarts, a publisher
that died). So it is only believed as far as numbers are consecutive. Whatever is missing is fetched by number from the
api, which knows all history; from the stream while no worker answers. Nothing is left on a server by a reader that is
killed: there is no consumer, only the subscription, and it ends with its connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, TypeAlias

import anyio
import msgspec
from nats.aio.msg import Msg

from outlive.infra.bus import Bus, BusError
from outlive.infra.questions import QuestionRefused, Questions
from outlive.protocol import api
from outlive.protocol.api import Trouble
from outlive.protocol.errors import Unreachable
from outlive.protocol.events import SEQ_HEADER, AnyEvent, Event, StatusEvent
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import TaskRecord

BACKLOG: Final = 10_000
"""Events kept for a slow reader; what comes after them is fetched when it gets there."""

_PATIENCE: Final = 2.0  # seconds for the api before the stream is asked
_TICK: Final = 0.25  # how soon a cut link is seen
_SILENCE: Final = (1.0, 15.0)  # a quiet task is asked about after so long, doubling
_AGAIN: Final = 0.25  # pause after nobody could be asked

_read_event: Final = msgspec.json.Decoder(AnyEvent).decode


class OtherEvent(Event, frozen=True, kw_only=True, tag="other"):
    """An event of a type (or with a value) that this version does not know; `fields` is the whole of it."""

    kind: str
    fields: dict[str, Any]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Events `from_seq` to `to_seq` exist no more, here or in the history; `task` is how things stand now."""

    from_seq: int
    to_seq: int
    task: TaskRecord


Item: TypeAlias = AnyEvent | OtherEvent | Gap


class _Common(msgspec.Struct):
    type: str
    seq: int
    task_id: str
    tenant: str
    at: Any
    message: str


def decode_event(body: bytes | msgspec.Raw) -> AnyEvent | OtherEvent:
    """Read a progress event, of a known type or another.

    Raises:
        msgspec.DecodeError: it is no event at all.
    """
    try:
        return _read_event(body)
    except msgspec.ValidationError:
        common = msgspec.json.decode(body, type=_Common)
        fields = msgspec.json.decode(body, type=dict[str, Any])
        return msgspec.convert(
            {**{name: fields[name] for name in _Common.__struct_fields__}, "type": "other", "kind": common.type}
            | {"fields": fields},
            OtherEvent,
        )


async def read(
    bus: Bus, subjects: Subjects, tenant: str, task_id: str, from_seq: int = 1, *, follow: bool = False
) -> AsyncGenerator[Item]:
    """Yield a task's events from number `from_seq` on, each once and in order, as they come.

    It outlives outages of NATS, Postgres and workers for as long as it is read. It ends after the final event (with
    `follow` it goes on, for tasks that a person reopens). Close it, or leave it to the loop: nothing leaks.

    Raises:
        QuestionRefused: there is no such task.
    """
    reader = _Reader(bus, subjects, tenant, task_id, from_seq)
    subscription = await bus.subscribe(subjects.progress(tenant, task_id), reader.receive)
    try:
        while True:
            if reader.in_doubt and (gap := await reader.catch_up()):
                yield gap
            for event in reader.ready():
                yield event
            if reader.ended and not follow:
                return
            if not reader.in_doubt:
                await reader.wait()
    finally:
        with anyio.CancelScope(shield=True):
            await subscription.unsubscribe()


class _Reader:
    def __init__(self, bus: Bus, subjects: Subjects, tenant: str, task_id: str, from_seq: int) -> None:
        self._bus = bus
        self._subjects = subjects
        self._tenant = tenant
        self._task_id = task_id
        self._subject = subjects.progress(tenant, task_id)
        self._questions = Questions(bus, subjects, tenant)
        self._next = max(from_seq, 1)
        self._known: dict[int, AnyEvent | OtherEvent] = {}  # numbers from _next on, in any order
        self._more = asyncio.Event()
        self._generation = -1  # of the connection over which nothing was missed
        self._doubt = True
        self._silence = _SILENCE[0]
        self._last = 0  # the greatest number that is known to exist
        self.ended = False

    async def receive(self, message: Msg) -> None:
        """Take a live message in; what is no numbered event of this task (a keepalive, a forgery) moves nothing."""
        try:
            event = decode_event(message.data)
        except msgspec.DecodeError:
            return
        if (message.headers or {}).get(SEQ_HEADER) == str(event.seq):
            self._take(event)

    def _take(self, event: AnyEvent | OtherEvent) -> None:
        if event.seq < self._next or (event.tenant, event.task_id) != (self._tenant, self._task_id):
            return
        if len(self._known) >= BACKLOG and event.seq != self._next:
            self._doubt = True
            return
        self._known[event.seq] = event
        self._more.set()

    @property
    def in_doubt(self) -> bool:
        """Whether something may be missing."""
        return self._doubt or self._generation != self._bus.generation or bool(self._known and self._is_behind())

    def _is_behind(self) -> bool:
        return self._next not in self._known

    def ready(self) -> list[AnyEvent | OtherEvent]:
        """Hand out the events that follow the last one without a gap."""
        events: list[AnyEvent | OtherEvent] = []
        while (event := self._known.pop(self._next, None)) is not None:
            self._next += 1
            events.append(event)
        if events:
            self._silence = _SILENCE[0]
            last = events[-1]
            self.ended = isinstance(last, StatusEvent) and last.final and last.seq >= self._last
        return events

    async def wait(self) -> None:
        """Return when there may be something new."""
        self._more.clear()
        if self._known:
            return
        with anyio.move_on_after(self._silence) as quiet:
            while not self._more.is_set() and self._generation == self._bus.generation:
                with anyio.move_on_after(_TICK):
                    await self._more.wait()
        if quiet.cancelled_caught:
            self._silence = min(self._silence * 2, _SILENCE[1])
            self._doubt = True

    async def catch_up(self) -> Gap | None:
        """Fetch what follows the last event, once; stays in doubt when there is more, or nobody to ask."""
        self._doubt = False  # what comes while we ask may raise it again
        generation = self._bus.generation
        suspects = set(self._known)
        try:
            page = await self._ask()
            gap = await self._gap(page)
            events = [decode_event(raw) for raw in page.events]
            if page.large is not None:
                events.append(decode_event(await self._questions.whole(self._task_id, "event", page.large)))
        except (Unreachable, QuestionRefused) as error:
            self._doubt = True
            await self._search_stream(error)
            return None
        # A number seen before we asked, and not known to the store, was made up by somebody.
        for seq in suspects:
            if seq > page.last_seq:
                self._known.pop(seq, None)
        if gap:
            self._next = gap.to_seq + 1
        for event in events:
            self._take(event)
        self._last = max(self._last, page.last_seq)
        self._doubt |= page.next is not None
        self._generation = generation
        self.ended = page.final and self._next > page.last_seq
        return gap

    async def _ask(self) -> api.EventPage:
        question = api.Events(task_id=self._task_id, from_seq=self._next)
        return await self._questions.ask("events", question, api.EventPage, timeout=_PATIENCE)

    async def _gap(self, page: api.EventPage) -> Gap | None:
        first = decode_event(page.events[0]).seq if page.events else page.large or page.last_seq + 1
        if first <= self._next:
            return None
        question = api.Get(task_id=self._task_id, with_input=False, with_result=False)
        task = await self._questions.ask("get", question, TaskRecord)
        return Gap(from_seq=self._next, to_seq=first - 1, task=task)

    async def _search_stream(self, error: Unreachable | QuestionRefused) -> None:
        """Without the api: take what the stream has from the wanted number on."""
        with contextlib.suppress(BusError):
            if not self._bus.connected:
                await self._bus.wait_connected()
                return
            sequence = await self._locate()
            while sequence and len(self._known) < BACKLOG and (message := await self._message(seq=sequence)):
                await self.receive(message)
                sequence = _stream_sequence(message) + 1
        if not self._known and isinstance(error, QuestionRefused) and error.problem.error is Trouble.UNKNOWN_TASK:
            raise error
        if self._is_behind():
            await asyncio.sleep(_AGAIN)

    async def _locate(self) -> int | None:
        """Return a stream sequence at which the wanted number, or the first one behind it, is next; None: not there."""
        last = await self._message(seq=None)
        if last is None or _number(last) < self._next:
            return None
        low, high = 1, _stream_sequence(last)
        while low < high:  # numbers grow with sequences
            middle = (low + high) // 2
            found = await self._message(seq=middle)
            if found is not None and _number(found) < self._next:
                low = _stream_sequence(found) + 1
            else:
                high = middle
        return low

    async def _message(self, *, seq: int | None) -> Msg | None:
        """Get the task's first message from a stream sequence on; None: its last one."""
        question = {"last_by_subj": self._subject} if seq is None else {"seq": seq, "next_by_subj": self._subject}
        message = await self._bus.request(
            f"$JS.API.DIRECT.GET.{self._subjects.progress_stream}", msgspec.json.encode(question), timeout=_PATIENCE
        )
        return message if message.headers and "Nats-Sequence" in message.headers else None


def _number(message: Msg) -> int:
    number = (message.headers or {}).get(SEQ_HEADER, "")
    return int(number) if number.isdecimal() else 0


def _stream_sequence(message: Msg) -> int:
    return int((message.headers or {})["Nats-Sequence"])


@contextlib.asynccontextmanager
async def listen(bus: Bus, subject: str) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Hear what is published on a subject from now on, over every reconnect; nothing is stored, gaps are possible."""
    queue: asyncio.Queue[bytes] = asyncio.Queue()

    async def came(message: Msg) -> None:
        queue.put_nowait(message.data)

    async def bodies() -> AsyncIterator[bytes]:
        while True:
            yield await queue.get()

    subscription = await bus.subscribe(subject, came)
    try:
        yield bodies()
    finally:
        await subscription.unsubscribe()
