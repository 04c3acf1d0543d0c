"""Commands typed beside a worker of this process."""

from collections.abc import AsyncIterator

import pytest

from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from outlive.infra.client import Client


@pytest.fixture
async def client(
    request: pytest.FixtureRequest, shared: Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Client]:
    """A worker with the module's `app`, a client, and what commands must know to find them."""
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    async with Worker(request.module.app, shared.settings), Client(shared.settings, by="ann", timeout=10) as own:
        yield own
