"""A worker for tests, in a process of its own: to be killed, frozen, started again."""

from collections.abc import Mapping
from typing import Any

from outlive.actors.app import App
from outlive.actors.chaoskit.processes import WorkerProcess
from outlive.actors.chaoskit.specs import spec_of
from outlive.actors.testing.server import Server


class TestWorker(WorkerProcess):
    """A worker of an app on a test's servers; `async with` starts it, waits until it serves, and kills it.

    Args:
        server: where it works.
        app: the app, or ``module:name``; its process imports it.
        environment: more variables, for instance ``{"OUTLIVE_LEASE": "2"}``.
        options: as of `WorkerProcess`: ``failpoints``, ``cwd``.
    """

    __test__ = False  # pytest takes it for a class of tests

    def __init__(
        self, server: Server, app: App | str, *, environment: Mapping[str, str] | None = None, **options: Any
    ) -> None:
        super().__init__(spec_of(app), {**server.environment, **(environment or {})}, **options)
