"""Says what was decided: answers to commands, one small message when a person must act or a task ends, work handed back.

None is stored by NATS: an answer can be asked for (``api.command``), a task's state too. So a message that cannot
be sent at the moment is dropped, never waited for.
"""

import asyncio
import collections
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from outlive.infra.buckets import Pause
from outlive.infra.bus import Bus, BusError
from outlive.infra.records import Claim, Key
from outlive.protocol import codec
from outlive.protocol.answers import Answer, Code
from outlive.protocol.events import Attention, Tokens
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import Reason, Status

BACKLOG: Final = 10_000


class Announcer:
    """Publishes on the answer and attention subjects, in the order given."""

    def __init__(self, bus: Bus, subjects: Subjects) -> None:
        """Announce over this connection."""
        self._bus = bus
        self._subjects = subjects
        self._queue: collections.deque[tuple[str, bytes]] = collections.deque(maxlen=BACKLOG)
        self._work = asyncio.Event()

    def answer(self, tenant: str, task_id: str, command_id: str, code: Code, message: str, at: datetime) -> None:
        """Send the answer to a command."""
        ok = code in {Code.APPLIED, Code.DUPLICATE}
        answer = Answer(command_id=command_id, task_id=task_id, ok=ok, code=code, message=message, at=at)
        self._put(self._subjects.answer(tenant, task_id), codec.encode(answer))

    def attention(self, key: Key, kind: str, status: Status, message: str, at: datetime, reasons: list[Reason]) -> None:
        """Tell whoever watches that a person must act, or that the task has ended."""
        tenant, task_id = key
        body = Attention(
            task_id=task_id, tenant=tenant, kind=kind, status=status, message=message, at=at, reasons=reasons
        )
        self._put(self._subjects.attention(tenant, task_id), codec.encode(body))

    def tokens(self, claim: Claim, step_id: str, attempt: int, n: int, text: str) -> None:
        """Pass on what a model has just written."""
        body = Tokens(task_id=claim.task_id, tenant=claim.tenant, step_id=step_id, attempt=attempt, n=n, text=text)
        self._put(self._subjects.tokens(claim.tenant, claim.task_id), codec.encode(body))

    def due(self) -> None:
        """Tell all workers that a task was handed back."""
        self._put(self._subjects.wake("all"), codec.encode({"due": True}))

    def pauses(self, pauses: Sequence[Pause]) -> None:
        """Tell all workers whom to leave alone."""
        self._put(self._subjects.wake("pauses"), codec.encode(list(pauses)))

    def _put(self, subject: str, payload: bytes) -> None:
        self._queue.append((subject, payload))
        self._work.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                subject, payload = self._queue.popleft()
                try:
                    await self._bus.publish(subject, payload)
                except BusError:
                    await asyncio.sleep(0)
