"""What tests of tasks need: real servers, a fake remote service, virtual time, failpoints.

- `server`, `server_sync`, `fresh`: NATS and Postgres, started or found, migrated, thrown away.
- `fake_service`: a remote with an effect count that no crash touches; loses answers, hangs, throttles, acts late.
- `FakeWorld`: the same in the test's own process. Both keep what was done with its cause.
- `virtual_time`: an hour's sleep passes when the test says so.
- `failpoints`: kill, delay or fail a worker at a named point (``OUTLIVE_FAILPOINTS`` for workers in other processes).
- `TestWorker`: a worker in a process of its own, to be killed, frozen and started again.
- `assert_effects_once`, `assert_progress_gapless`: what must hold afterwards.
- `replay`: runs an exported task through today's code, without calling anything.
- `assert_as_declared`: no tool did to the world what its declaration rules out.
- `explore`: runs a task once per point at which its worker may die, and compares.

pytest has fixtures for these by itself, see `outlive.pytest_plugin`.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from outlive.actors.context import Cause
from outlive.actors.replay import Different, Replayed, Unreadable, replay
from outlive.actors.testing.clock import VirtualTime, virtual_time
from outlive.actors.testing.fake_service import (
    URL_VARIABLE,
    Action,
    Counts,
    Effect,
    FakeClient,
    FakeService,
    fake_service,
)
from outlive.actors.testing.proofs import assert_effects_once, assert_progress_gapless
from outlive.actors.testing.server import Backend, Server, fresh, server, server_sync
from outlive.actors.testing.world import FakeWorld, assert_as_declared
from outlive.infra import failpoints

if TYPE_CHECKING:
    from outlive.actors.chaoskit.explorer import explore
    from outlive.actors.testing.worker import TestWorker

__all__ = [
    "URL_VARIABLE",
    "Action",
    "Backend",
    "Cause",
    "Counts",
    "Different",
    "Effect",
    "FakeClient",
    "FakeService",
    "FakeWorld",
    "Replayed",
    "Server",
    "TestWorker",
    "Unreadable",
    "VirtualTime",
    "assert_as_declared",
    "assert_effects_once",
    "assert_progress_gapless",
    "explore",
    "failpoints",
    "fake_service",
    "fresh",
    "replay",
    "server",
    "server_sync",
    "virtual_time",
]

_LATER: Final = {"TestWorker": "outlive.actors.testing.worker", "explore": "outlive.actors.chaoskit.explorer"}
"""What uses this package itself."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
