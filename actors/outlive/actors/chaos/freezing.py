"""Freezing a process, with a guard outside that lets it go on whatever happens to who asked for it.

Which workers of this machine and user are frozen stands in a folder, under their installation's name, so that `thaw` can
let them go on earlier: they hear nothing themselves.
"""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from outlive.infra.settings import Settings

_GUARD: Final = """
import os, sys, time
time.sleep(float(sys.argv[2]))
try:
    os.unlink(sys.argv[3])  # whoever removes the mark wakes it
    os.kill(int(sys.argv[1]), int(sys.argv[4]))
except OSError:
    pass
"""


def freeze_self(settings: Settings, seconds: float) -> None:
    """Stop this process for so many seconds; a process of its own lets it go on, even when nobody else is left."""
    mark = _mark(settings, os.getpid())
    mark.touch()
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), str(seconds), str(mark), str(int(signal.SIGCONT))],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    os.kill(os.getpid(), signal.SIGSTOP)
    mark.unlink(missing_ok=True)
    guard.kill()  # it is at its end, or somebody let us go on earlier
    guard.wait()


def frozen(settings: Settings) -> list[int]:
    """Return the process ids of the frozen workers of an installation on this machine."""
    return sorted(int(mark.suffix[1:]) for mark in _mark(settings, 0).parent.glob(f"{_name(settings)}.*"))


def thaw(settings: Settings, pid: int | None = None) -> list[int]:
    """Let a frozen worker of this machine go on, or all of them; return those that did."""
    return [each for each in frozen(settings) if pid in (None, each) and _wake(settings, each)]


def _wake(settings: Settings, pid: int) -> bool:
    try:
        _mark(settings, pid).unlink()
        os.kill(pid, signal.SIGCONT)
    except (FileNotFoundError, ProcessLookupError):  # its time was up, or it was killed meanwhile
        return False
    return True


def _name(settings: Settings) -> str:
    """Name an installation: by its prefix and its NATS server."""
    return f"{settings.prefix}-{urlsplit(settings.nats_url or '').port}"


def _mark(settings: Settings, pid: int) -> Path:
    folder = Path(tempfile.gettempdir(), f"outlive-frozen-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder} belongs to somebody else")
    return folder / f"{_name(settings)}.{pid}"
