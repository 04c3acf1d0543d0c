"""Fixtures for tests of tasks; pytest finds this module by itself (entry point ``pytest11``).

It imports nothing of Outlive before a fixture is asked for, and is no part of the package `outlive.actors` for that reason::

    async def test_a_kill_changes_nothing(outlive_server, outlive_worker):
        async with outlive_worker("todo:app") as worker, Client(outlive_server.settings) as client:
            handle = await client.submit(collect, folder="src", to="you@example.com")
            await worker.restart()                              # SIGKILL, and another process
            await handle.result()
            await assert_progress_gapless(handle)               # of outlive.actors.testing

    def test_no_moment_is_wrong(outlive_explore):
        report = outlive_explore("todo:app", "collect", {"folder": "src", "to": "you@example.com"})
        assert report.ok, report.text

With ``outlive_app = "todo:app"`` among pytest's settings (or ``--outlive-app``), each ``histories/*.jsonl`` below a folder
with tests (from ``outlive export TASK``) is a test: today's code must follow it.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from outlive.actors.chaoskit.explorer import Report
    from outlive.actors.testing import Server, TestWorker


def pytest_addoption(parser: pytest.Parser) -> None:
    """Where the app is whose histories are tests."""
    help_ = "the app (module:name) that must follow histories/*.jsonl"
    parser.addini("outlive_app", help_, default="")
    parser.getgroup("outlive").addoption("--outlive-app", metavar="APP", default="", help=help_)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> "History | None":
    """Take a kept history for a test."""
    app = parent.config.getoption("--outlive-app") or parent.config.getini("outlive_app")
    if not app or file_path.suffix != ".jsonl" or file_path.parent.name != "histories":
        return None
    return History.from_parent(parent, path=file_path)


class History(pytest.File):
    """A file that ``outlive export`` wrote."""

    def collect(self) -> "Iterable[Replay]":
        """One test."""
        yield Replay.from_parent(self, name="replay")


class Replay(pytest.Item):
    """Today's code follows it."""

    def runtest(self) -> None:
        """Replay it. Raises `outlive.actors.replay.Different`."""
        import anyio  # noqa: PLC0415  # nothing is imported before it is used

        from outlive.actors.console import apps  # noqa: PLC0415  # the same
        from outlive.actors.testing import replay  # noqa: PLC0415  # the same

        app = self.config.getoption("--outlive-app") or self.config.getini("outlive_app")
        anyio.run(replay, apps.load(app), self.path)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Say where the code goes another way; a bug of the code keeps its traceback."""
        from outlive.actors.replay import Different, Unreadable  # noqa: PLC0415  # the same

        if isinstance(excinfo.value, Different | Unreadable):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Name the file."""
        return self.path, None, f"history {self.path.name}"


@pytest.fixture(scope="session")
def outlive_servers(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Server]":
    """One pair of servers for the whole session; tests ask for `outlive_server`."""
    from outlive.actors.testing import server_sync  # noqa: PLC0415  # nothing is imported before it is used

    with server_sync(state_dir=tmp_path_factory.mktemp("outlive")) as servers:
        yield servers


@pytest.fixture
def outlive_server(outlive_servers: "Server") -> "Iterator[Server]":
    """Servers with a database and a prefix of the test's own: its `settings` are for `Worker` and `Client`."""
    from anyio.from_thread import start_blocking_portal  # noqa: PLC0415  # the same

    from outlive.actors.testing import fresh  # noqa: PLC0415  # the same

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fresh(outlive_servers)) as own:
        yield own


@pytest.fixture
def outlive_worker(outlive_server: "Server") -> "Callable[..., TestWorker]":
    """Make workers in processes of their own, see the module and `TestWorker`."""
    from outlive.actors.testing import TestWorker  # noqa: PLC0415  # the same

    return partial(TestWorker, outlive_server)


@pytest.fixture
def outlive_explore(outlive_servers: "Server") -> "Callable[..., Report]":
    """Explore a task, see `outlive.actors.chaoskit.explorer.explore`; asynchronous tests await that one."""
    from anyio.from_thread import start_blocking_portal  # noqa: PLC0415  # the same

    from outlive.actors.testing import explore  # noqa: PLC0415  # the same

    def exploring(app: Any, kind: Any, *arguments: Any, **options: Any) -> "Report":
        with start_blocking_portal() as portal:
            return portal.call(partial(explore, app, kind, *arguments, on=outlive_servers, **options))

    return exploring
