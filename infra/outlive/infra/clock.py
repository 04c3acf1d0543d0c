"""The one clock of Python code: the database's time, carried between observations by a clock that never jumps.

Defeats: a clock of the database's machine that jumps
Then: forward, leases, timers and deadlines run out early, and a "no" of a reconciler counts too early; backward, they run
    out late
Seen: tasks that move, or stand still, at the time of the jump
"""

import time
from datetime import UTC, datetime
from typing import Final

_BOOTTIME: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_DRIFT: Final = 100e-6
"""How fast an old observation loses trust, in seconds per second: a bad quartz is off by 100 ppm."""


def boottime() -> float:
    """Return seconds since the machine started, time asleep included (where the system tells; else monotonic time)."""
    return time.clock_gettime(_BOOTTIME)


class Clock:
    """The database's time without asking the database: ``database time = boottime() + offset``.

    Before the first observation the offset is the wall clock's; no decision may rest on that. Each observation is
    off by at most half its round trip, so the one with the smallest error wins, and errors grow as they age. One that
    contradicts what is known wins as well: the database's own clock was set, or another server has taken over.
    """

    __slots__ = ("_error", "_observed_at", "_offset")

    def __init__(self) -> None:
        """Begin with the wall clock."""
        self._offset = time.time() - boottime()
        self._error = float("inf")
        self._observed_at = 0.0

    def now(self) -> datetime:
        """Return the database's time, aware, in UTC, to the microsecond."""
        return datetime.fromtimestamp(time.clock_gettime(_BOOTTIME) + self._offset, UTC)

    def boottime(self) -> float:
        """The module's `boottime`; a test's clock replaces both."""
        return boottime()

    def observe(self, database_time: datetime, sent: float, received: float) -> None:
        """Take a reading of the database's clock in, if it is better than what is known.

        Args:
            database_time: what ``outlive.clock()`` said.
            sent: `boottime` right before the question.
            received: `boottime` right after the answer.
        """
        error = (received - sent) / 2
        offset = database_time.timestamp() - (sent + received) / 2
        known = self._error + (received - self._observed_at) * _DRIFT
        if error <= known or abs(offset - self._offset) > error + known:
            self._offset = offset
            self._error = error
            self._observed_at = received

    @property
    def error(self) -> float:
        """By how many seconds `now` may be off; infinite before the first observation."""
        return self._error + (boottime() - self._observed_at) * _DRIFT
