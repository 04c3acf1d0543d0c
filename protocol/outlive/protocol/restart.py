"""Restart intensity, as OTP's supervisors have it: so many restarts within a period, then it is given up."""

from collections.abc import Sequence

import msgspec


class Intensity(msgspec.Struct, frozen=True):
    """The limit of a supervisor.

    Attributes:
        restarts: how many restarts are allowed within the period; 0 = none.
        period: seconds, measured on a monotonic clock.
    """

    restarts: int = 3
    period: float = 60.0

    def allowed(self, history: Sequence[float], now: float) -> tuple[bool, list[float]]:
        """Decide about one more restart.

        Args:
            history: the times of former restarts, as returned the last time.
            now: the monotonic time of this one, in seconds.

        Returns:
            Whether it may be restarted, and the history to keep (this restart included).
        """
        recent = [*(at for at in history if now - at < self.period), now]
        return len(recent) <= self.restarts, recent
