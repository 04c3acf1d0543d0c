"""What tests of tasks need: real servers, a fake remote service, virtual time, failpoints.

- `server`, `server_sync`, `fresh`: NATS and Postgres, started or found, migrated, thrown away.
- `fake_service`: a remote with an effect count that no crash touches; loses answers, hangs, throttles, acts late.
- `virtual_time`: an hour's sleep passes when the test says so.
- `failpoints`: kill, delay or fail a worker at a named point (``OUTLIVE_FAILPOINTS`` for workers in other processes).
"""

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
from outlive.actors.testing.server import Backend, Server, fresh, server, server_sync
from outlive.infra import failpoints

__all__ = [
    "URL_VARIABLE",
    "Action",
    "Backend",
    "Counts",
    "Effect",
    "FakeClient",
    "FakeService",
    "Server",
    "VirtualTime",
    "failpoints",
    "fake_service",
    "fresh",
    "server",
    "server_sync",
    "virtual_time",
]
