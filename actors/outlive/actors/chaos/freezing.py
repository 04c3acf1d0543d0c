"""Freezing a process, with a guard outside that lets it go on whatever happens to who asked for it."""

import os
import signal
import subprocess
import sys

_GUARD = "import os, sys, time; time.sleep(float(sys.argv[2])); os.kill(int(sys.argv[1]), 18)"


def freeze_self(seconds: float) -> None:
    """Stop this process for so many seconds; a process of its own lets it go on, even when nobody else is left."""
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD.replace("18", str(int(signal.SIGCONT))), str(os.getpid()), str(seconds)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.kill(os.getpid(), signal.SIGSTOP)
    guard.kill()  # somebody let us go on earlier, or it is at its end
    guard.wait()
