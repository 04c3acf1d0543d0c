"""Seeing an app's source files change: their times are compared twice a second."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import anyio
from anyio import to_thread

_LOOK: Final = 0.5
_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


async def watch(source: Path, changed: Callable[[Path], None]) -> None:
    """Call `changed` with a file that was changed, added or removed; runs until cancelled.

    Args:
        source: the app's outermost module. Its folder is watched, with the folders below.
        changed: called once for changes that come together.
    """
    before = await to_thread.run_sync(times, source.parent)
    while True:
        await anyio.sleep(_LOOK)
        now = await to_thread.run_sync(times, source.parent)
        if different := before.items() ^ now.items():
            changed(min(different)[0])
        before = now


def times(folder: Path) -> Mapping[Path, int]:
    """Return the Python files below a folder, with the time of their last change in nanoseconds."""
    found: dict[Path, int] = {}
    for where, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name not in _PASSED_OVER and not name.startswith(".")]
        for name in files:
            if name.endswith(".py"):
                path = Path(where, name)
                try:
                    found[path] = path.stat().st_mtime_ns
                except FileNotFoundError:
                    continue
    return found
