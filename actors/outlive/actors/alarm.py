"""The end of a wait at a moment of the database's clock."""

import asyncio
from datetime import datetime

from outlive.infra.clock import Clock


class Alarm:
    """Ends a wait (False) when the clock has reached a moment, and not before.

    What was known of the database's time when the wait began may have been a little off, and be corrected meanwhile: so
    the clock is read again when the time is up.
    """

    def __init__(self, clock: Clock, moment: datetime, event: "asyncio.Future[bool]") -> None:
        """Set it."""
        self._clock = clock
        self._moment = moment
        self._event = event
        self._set()

    def cancel(self) -> None:
        """Let it not ring any more."""
        self._timer.cancel()

    def _set(self) -> None:
        left = (self._moment - self._clock.now()).total_seconds()
        self._timer = asyncio.get_running_loop().call_later(max(0.0, left), self._ring)

    def _ring(self) -> None:
        if self._event.done():
            return
        if self._clock.now() < self._moment:
            self._set()
        else:
            self._event.set_result(False)
