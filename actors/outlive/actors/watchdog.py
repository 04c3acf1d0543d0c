"""The watchdog: ends a process whose event loop stands still, with the stacks of all its threads on stderr."""

import faulthandler
import math
import os
import threading
import time
from typing import Final

STDERR: Final = 2
_LOOKS: Final = 20  # within the limit


class Watchdog:
    """Wants to be fed; else it ends the process with exit code 1.

    A process that was stopped as a whole (SIGSTOP, a machine asleep) gets the time that was left to it when it goes on:
    the thread notices that it overslept.
    """

    def __init__(self) -> None:
        """Begin asleep: the first `feed` wakes it."""
        self._limit = 0.0
        self._left = math.inf
        self._thread: threading.Thread | None = None

    def feed(self, limit: float, hard_limit: float) -> None:
        """Count anew.

        Args:
            limit: seconds after which a thread ends the process.
            hard_limit: seconds after which a timer of the C library does, if even that thread cannot run because
                something keeps the interpreter's lock. It counts the time in which the process was stopped.
        """
        self._limit = self._left = limit
        faulthandler.dump_traceback_later(hard_limit, exit=True)
        if self._thread is None:
            self._thread = threading.Thread(target=self._watch, name="outlive-watchdog", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Sleep until fed again."""
        self._left = math.inf
        faulthandler.cancel_dump_traceback_later()

    def _watch(self) -> None:
        while True:
            pause = self._limit / _LOOKS
            begun = time.monotonic()
            time.sleep(pause)
            self._left -= min(time.monotonic() - begun, 2 * pause)
            if self._left <= 0:
                self._end()

    def _end(self) -> None:
        # Nobody may read stderr any more; that may be the very reason why the loop stands still.
        threading.Timer(1.0, os._exit, (1,)).start()
        os.write(STDERR, f"Outlive's watchdog was not fed for {self._limit:g} s. All threads:\n".encode())
        # With the interpreter's lock in hand the stacks stand still while they are read.
        faulthandler.dump_traceback(STDERR, all_threads=True)
        os._exit(1)
