"""The plugin in a pytest of its own, as a user has it: fixtures, proofs, the explorer; and nothing when it is not used."""

import os
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest

from outlive.actors import App
from outlive.actors.chaoskit.specs import spec_of
from outlive.actors.testing import assert_effects_once, assert_progress_gapless
from outlive.protocol.events import StatusEvent
from outlive.protocol.task import Status
from tests.chaos import explored_app

_TESTS = """
import pytest
from outlive.actors import Client
from outlive.actors.testing import assert_effects_once, assert_progress_gapless
from tests.chaos.explored_app import app, count, right

pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_a_kill(outlive_server, outlive_worker):
    async with outlive_worker(app) as worker, Client(outlive_server.settings) as client:
        handle = await client.submit(right.with_options(task_id="t1"))
        await worker.restart()
        assert (await handle.status()) != "failed"
        await client.cancel("t1")
        await assert_progress_gapless(handle)
        await assert_effects_once(count("default"))

def test_no_moment(outlive_explore):
    report = outlive_explore(app, right, points=3, count=count)
    assert report.ok, report.text
    assert len(report.tried) == 3
"""


def _pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    known = metadata.entry_points(group="pytest11", name="outlive")
    plugin = () if known else ("-p", "outlive.pytest_plugin")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    root = str(Path(__file__).parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)]),
        "EXPLORED_WORLD": str(folder),
    }
    return subprocess.run(
        [*command, *plugin, *options],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


@pytest.mark.slow
def test_its_fixtures_kill_and_explore(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(_TESTS)
    done = _pytest(tmp_path, "-q", "test_user.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


_NOTHING = """
import sys

def test_nothing():
    assert "outlive.pytest_plugin" in sys.modules
    heavy = ("outlive.actors", "outlive.infra", "outlive.protocol", "anyio", "asyncpg", "msgspec", "nats")
    assert [name for name in sys.modules if name.startswith(heavy)] == []
"""


def test_it_costs_nothing_when_it_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(_NOTHING)
    done = _pytest(tmp_path, "-q", "-p", "no:anyio", "test_other.py")
    assert done.returncode == 0, done.stdout


async def test_effects_that_happened_twice_are_named() -> None:
    await assert_effects_once({"mail": 1, "post": 1, "none": 0}, 2)
    with pytest.raises(AssertionError, match=r"\('mail', 2\)"):
        await assert_effects_once({"mail": 2})
    with pytest.raises(AssertionError, match="1 effects happened, not 2"):
        await assert_effects_once({"mail": 1}, 2)


async def test_a_gap_in_progress_is_named() -> None:
    def event(seq: int, *, final: bool = False) -> StatusEvent:
        return StatusEvent(
            seq=seq,
            task_id="t",
            tenant="default",
            at=datetime(2026, 1, 1, tzinfo=UTC),
            message="",
            status=Status.RUNNING,
            final=final,
        )

    assert len(await assert_progress_gapless([event(1), event(2, final=True)])) == 2
    for wrong in ([event(1), event(3)], [event(2)], [event(1), event(1)], [event(1, final=True), event(2)]):
        with pytest.raises(AssertionError, match=r"the numbers are|final ones"):
            await assert_progress_gapless(wrong)


def test_an_app_is_found_by_other_processes_or_refused() -> None:
    assert spec_of(explored_app.app) == "tests.chaos.explored_app:app"
    assert spec_of("todo:app") == "todo:app"
    with pytest.raises(LookupError, match="stands in no module"):
        spec_of(App("nowhere"))
