"""A wall clock that is wrong: what Python code of this process reads from ``time.time``."""

import time
from typing import Final

_TRUE: Final = time.time, time.time_ns


def skew(seconds: float) -> None:
    """Let the clock be off by so many seconds; 0 sets it right."""
    if not seconds:
        time.time, time.time_ns = _TRUE
        return
    time.time = lambda: _TRUE[0]() + seconds
    time.time_ns = lambda: _TRUE[1]() + int(seconds * 1e9)
