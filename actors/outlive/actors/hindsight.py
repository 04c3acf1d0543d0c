"""What is known too late: an effect succeeded after somebody had said that it had not happened, here or elsewhere."""

import asyncio

import structlog

from outlive.infra.announcer import Announcer
from outlive.infra.claims import Attempt, Claims
from outlive.infra.clock import Clock

_log = structlog.get_logger("outlive.hindsight")


class Hindsight:
    """Looks what became of attempts that succeeded unheard; where they were judged otherwise, marks them and tells people."""

    def __init__(self, claims: Claims, announcer: Announcer, clock: Clock) -> None:
        """Look with `claims`: whoever owns the task by now."""
        self._claims, self._announcer, self._clock = claims, announcer, clock
        self._attempts: asyncio.Queue[Attempt] = asyncio.Queue()

    def succeeded(self, attempt: Attempt) -> None:
        """An attempt has succeeded, and it is not known whether that could be recorded."""
        self._attempts.put_nowait(attempt)

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            attempt = await self._attempts.get()
            if (noted := await self._claims.turned_out(attempt)) is None:
                continue
            kind, status, message = noted
            _log.warning("turned out", task=attempt.task_id, step=attempt.step_id, message=message)
            key = (attempt.tenant, attempt.task_id)
            self._announcer.attention(key, kind, status, message, self._clock.now(), [])
