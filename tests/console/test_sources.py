"""Seeing source files change."""

import os
from pathlib import Path

import anyio

from outlive.actors.console import sources


def test_only_sources_of_the_project_count(tmp_path: Path) -> None:
    for name in ("a.py", "pkg/b.py", ".hidden/c.py", "__pycache__/d.py", "site-packages/e.py", "f.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert {path.relative_to(tmp_path).as_posix() for path in sources.times(tmp_path)} == {"a.py", "pkg/b.py"}


async def test_a_change_is_told_once(tmp_path: Path) -> None:
    app = tmp_path / "app.py"
    app.touch()
    told: list[Path] = []
    changed = anyio.Event()

    def tell(path: Path) -> None:
        told.append(path)
        changed.set()

    async with anyio.create_task_group() as group:
        group.start_soon(sources.watch, app, tell)
        await anyio.sleep(0.2)
        os.utime(app, ns=(1, 1))
        with anyio.fail_after(5):
            await changed.wait()
        await anyio.sleep(0.6)
        group.cancel_scope.cancel()
    assert told == [app]
