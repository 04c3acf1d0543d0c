"""What every test runs under: real servers, one event loop, nothing that blocks it, no settings from outside."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest
from blockbuster import blockbuster_ctx

from outlive.actors.testing import FakeService, Server, fake_service, fresh, server, server_sync
from outlive.infra import failpoints

BACKEND_VARIABLES: Final = frozenset(
    {
        "OUTLIVE_NATS_URL",
        "OUTLIVE_NATS_TOKEN",
        "OUTLIVE_POSTGRES_DSN",
        "OUTLIVE_TEST_BACKEND",
        "OUTLIVE_NATS_IMAGE",
        "OUTLIVE_POSTGRES_IMAGE",
        "OUTLIVE_POSTGRES_BIN",
        "OUTLIVE_NATS_BIN",
    }
)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """All asynchronous tests run on plain asyncio."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
def _no_settings_from_outside() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith("OUTLIVE_") and name not in BACKEND_VARIABLES:
                patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_blocks_the_loop() -> Iterator[None]:
    """Blocking calls made by the product on an event loop fail; tests themselves may read a file."""
    with blockbuster_ctx(
        ["outlive.actors", "outlive.infra", "outlive.protocol"],
        excluded_modules=[
            "outlive.actors.testing",
            "outlive.actors.chaoskit",
            "outlive.actors.chaos.soak",
        ],  # test kits: their loops serve nobody else
    ) as check:
        for function in check.functions.values():
            function.can_block_in("outlive/infra/sql.py", {"load"})  # package data, read once, as imports are
            function.can_block_in("outlive/infra/migrate.py", {"known"})
            function.can_block_in(
                "outlive/actors/kind.py", {"_code_version"}
            )  # kinds are declared by imports, except in tests
            function.can_block_in("outlive/actors/agents/foreign.py", {"code_version"})  # the same
            function.can_block_in("outlive/infra/settings.py", {"default_state_dir"})  # one look at the current folder
            function.can_block_in("outlive/infra/embedded/server.py", {"kill"})  # a killed child is gone in a moment
            function.can_block_in("asyncpg/connect_utils.py", {"_parse_connect_dsn_and_args"})  # looks for certificates
            function.can_block_in("structlog/dev.py", {"__call__"})  # shows the source in a traceback
        yield


@pytest.fixture(autouse=True)
def _no_failpoint_stays_armed() -> Iterator[None]:
    yield
    failpoints.disarm()


@pytest.fixture(scope="session")
def session_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One pair of servers for the whole session; tests ask for `shared`."""
    with server_sync(state_dir=tmp_path_factory.mktemp("pair")) as pair:
        yield pair


@pytest.fixture
async def shared(session_server: Server) -> AsyncIterator[Server]:
    """A database and a prefix of its own on the session's servers: fast, for tests that leave the servers alone."""
    async with fresh(session_server) as own:
        yield own


@pytest.fixture(name="server")
async def own_server(tmp_path: Path) -> AsyncIterator[Server]:
    """A pair of servers of its own, to kill and restart."""
    async with server(state_dir=tmp_path / "pair") as own:
        yield own


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    """A fake remote service."""
    async with fake_service() as running:
        yield running
