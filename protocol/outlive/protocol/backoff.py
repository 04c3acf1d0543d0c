"""How long to wait before the next attempt."""

import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from random import Random
from typing import Final

_SECONDS: Final = re.compile(r"\d{1,9}(\.\d+)?", re.ASCII)


def delay(attempt: int, *, base: float = 0.5, cap: float = 60.0, random: Random) -> float:
    """Return seconds to wait after the attempt with this number failed: full jitter, 0 to ``base * 2^(attempt-1)``.

    Full jitter (Brooker, "Exponential Backoff and Jitter") spreads many waiting callers best. An attempt is counted
    from 1; no wait is longer than `cap`.
    """
    return random.uniform(0.0, min(cap, math.ldexp(base, min(attempt - 1, 64))))


def retry_after(header: str | None, now: datetime) -> float | None:
    """Return the seconds that an HTTP ``Retry-After`` asks for (RFC 9110, 10.2.3), or None when it cannot be read.

    Args:
        header: whole seconds or an HTTP date; fractions are taken as well, since services send them.
        now: the time from which a date counts (aware).
    """
    text = (header or "").strip()
    if _SECONDS.fullmatch(text):
        return float(text)
    try:
        until = parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo else until.replace(tzinfo=UTC)
    return max(0.0, (until - now).total_seconds())
