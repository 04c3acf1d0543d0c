"""Real servers for tests: NATS with the streams declared, Postgres with the schema.

::

    async with server() as own:                # a pair of its own, to kill and restart, in a third of a second
        async with Worker(todo.app, own.settings):
            await own.pair.postgres.restart()

    async with fresh(own) as other:            # the same pair, another database and prefix: some 50 ms

Where they come from, in this order: ``OUTLIVE_NATS_URL`` and ``OUTLIVE_POSTGRES_DSN`` (the role must be allowed to
create databases; each `server()` is a `fresh` one there), containers with ``OUTLIVE_TEST_BACKEND=containers``
(``OUTLIVE_NATS_IMAGE``, ``OUTLIVE_POSTGRES_IMAGE`` name other images), else the embedded pair.
"""

import asyncio
import os
import secrets
import shutil
import tempfile
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import urlsplit

import anyio
import msgspec
from anyio.from_thread import start_blocking_portal

from outlive.infra import database, migrate, sql, streams
from outlive.infra.bus import Bus
from outlive.infra.embedded import Pair
from outlive.infra.settings import Settings
from outlive.protocol.subjects import Subjects

Backend: TypeAlias = Literal["urls", "containers", "embedded"]
"""Where the servers come from."""

_SQL: Final = sql.load("testing", "outlive.actors")
_POSTGRES_IMAGE: Final = "postgres:18"
_NATS_IMAGE: Final = "nats:2.12"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Servers that are ready: schema migrated, streams declared."""

    settings: Settings
    """Addresses, tenant and prefix, for `Worker` and `Client`."""
    pair: Pair | None = None
    """With the embedded backend: its ``postgres`` and ``nats`` can be killed, stopped and started again."""

    @property
    def nats_url(self) -> str:
        """Where NATS is."""
        return self.settings.nats_url or ""

    @property
    def nats_token(self) -> str | None:
        """NATS's token, where it is not part of the URL."""
        return self.settings.nats_token

    @property
    def postgres_dsn(self) -> str:
        """Where the database is."""
        return self.settings.postgres_dsn or ""

    @property
    def subjects(self) -> Subjects:
        """The subjects under this server's prefix."""
        return Subjects(self.settings.prefix)

    @property
    def environment(self) -> Mapping[str, str]:
        """The same as ``OUTLIVE_*`` variables, for workers in other processes."""
        default = Settings(state_dir=self.settings.state_dir)
        return {
            f"OUTLIVE_{name.upper()}": str(value)
            for name, value in msgspec.structs.asdict(self.settings).items()
            if value is not None and (name == "state_dir" or value != getattr(default, name))
        }

    def with_settings(self, **changes: Any) -> "Server":
        """Return the same servers with other settings, for instance ``lease=3.0, linger=0``."""
        settings = msgspec.structs.replace(self.settings, **changes)
        return Server(settings=settings, pair=self.pair)


@asynccontextmanager
async def server(
    *, backend: Backend | None = None, state_dir: Path | None = None, **settings: Any
) -> AsyncGenerator[Server]:
    """Run servers for one test.

    Args:
        backend: None decides by the environment, see above.
        state_dir: of the embedded pair; None is a temporary folder.
        settings: fields of `Settings`, for instance ``lease=3.0``.
    """
    match backend or _backend():
        case "urls":
            async with fresh(Server(settings=Settings.load(**settings))) as own:
                yield own
        case "containers":
            async with _containers() as urls:
                yield await _ready(Server(settings=Settings(**urls, **settings)))
        case "embedded":
            with _folder(state_dir) as folder:
                pair = Pair(folder)
                await pair.start()
                try:
                    yield await _ready(_of(pair, settings))
                finally:
                    await pair.stop()


@contextmanager
def server_sync(*, backend: Backend | None = None, state_dir: Path | None = None) -> Generator[Server]:
    """Run servers for many tests, from a synchronous (session) fixture; each test takes a `fresh` part of them."""
    if (backend or _backend()) != "embedded":
        with start_blocking_portal() as portal, portal.wrap_async_context_manager(server(backend=backend)) as own:
            yield own
        return
    with _folder(state_dir) as folder:
        pair = Pair(folder)
        anyio.run(pair.start)
        try:
            yield anyio.run(_ready, _of(pair, {}))
        finally:
            anyio.run(pair.stop)


@asynccontextmanager
async def fresh(server: Server) -> AsyncGenerator[Server]:
    """Give a test a database and a NATS prefix of its own on running servers; both are removed at the end.

    The database is copied from a migrated template, made at the first call.
    """
    name = f"outlive_test_{secrets.token_hex(6)}"
    await _copy_template(server.postgres_dsn, name)
    dsn = urlsplit(server.postgres_dsn)._replace(path=f"/{name}").geturl()
    own = server.with_settings(postgres_dsn=dsn, prefix=f"t{name[-12:]}")
    try:
        await _declare(own)
        yield own
    finally:
        with anyio.CancelScope(shield=True):
            await _remove(server, own, name)


def _backend() -> Backend:
    if os.environ.get("OUTLIVE_NATS_URL") and os.environ.get("OUTLIVE_POSTGRES_DSN"):
        return "urls"
    return "containers" if os.environ.get("OUTLIVE_TEST_BACKEND") == "containers" else "embedded"


def _of(pair: Pair, settings: Mapping[str, Any]) -> Server:
    urls: dict[str, Any] = {"nats_url": pair.nats_url, "postgres_dsn": pair.postgres_dsn, "state_dir": pair.state_dir}
    return Server(settings=Settings(**urls, **settings), pair=pair)


async def _ready(server: Server) -> Server:
    async with asyncio.TaskGroup() as both:
        both.create_task(migrate.migrate(server.postgres_dsn))
        both.create_task(_declare(server))
    return server


async def _declare(server: Server) -> None:
    async with _bus(server) as bus:
        await streams.ensure(bus, server.subjects, server.settings)


def _bus(server: Server) -> Bus:
    options = {"token": server.nats_token} if server.nats_token else {}
    return Bus(server.nats_url, name="outlive testing", **options)


@contextmanager
def _folder(given: Path | None) -> Generator[Path]:
    folder = given or Path(tempfile.mkdtemp(prefix="outlive-test-"))
    try:
        yield folder
    finally:
        if given is None:
            shutil.rmtree(folder, ignore_errors=True)


async def _copy_template(dsn: str, name: str) -> None:
    template = f"outlive_template_{migrate.known()[-1].checksum.hex()[:12]}"
    connection: Any = await database.connect(dsn, application_name="outlive testing")
    try:
        await connection.execute(_SQL["lock"], template)  # held until the connection closes
        if not await connection.fetchval(_SQL["exists"], template):
            await _make_template(connection, dsn, template)
        await connection.execute(await connection.fetchval(_SQL["copy"], name, template))
    finally:
        await connection.close(timeout=10)


async def _make_template(connection: Any, dsn: str, template: str) -> None:
    # Under another name until it is whole: a test that was killed in between leaves nothing that looks ready.
    raw = f"{template}_{secrets.token_hex(4)}"
    await connection.execute(await connection.fetchval(_SQL["create"], raw))
    await migrate.migrate(urlsplit(dsn)._replace(path=f"/{raw}").geturl())
    await connection.execute(await connection.fetchval(_SQL["rename"], raw, template))


async def _remove(server: Server, own: Server, name: str) -> None:
    connection: Any = await database.connect(server.postgres_dsn, application_name="outlive testing")
    try:
        await connection.execute(await connection.fetchval(_SQL["drop"], name))
    finally:
        await connection.close(timeout=10)
    async with _bus(own) as bus:
        for stream in (own.subjects.commands_stream, own.subjects.progress_stream):
            await bus.api(f"STREAM.DELETE.{stream}")


@asynccontextmanager
async def _containers() -> AsyncGenerator[dict[str, Any]]:
    from testcontainers.community.postgres import PostgresContainer  # noqa: PLC0415
    from testcontainers.core.container import DockerContainer  # noqa: PLC0415  # an extra that few tests need
    from testcontainers.core.wait_strategies import LogMessageWaitStrategy  # noqa: PLC0415

    postgres = PostgresContainer(os.environ.get("OUTLIVE_POSTGRES_IMAGE", _POSTGRES_IMAGE), driver=None)
    nats = DockerContainer(os.environ.get("OUTLIVE_NATS_IMAGE", _NATS_IMAGE)).with_command("-js")
    nats.with_exposed_ports(4222).waiting_for(LogMessageWaitStrategy("Server is ready"))
    try:
        await asyncio.to_thread(postgres.start)
        await asyncio.to_thread(nats.start)
        yield {
            "nats_url": f"nats://{nats.get_container_host_ip()}:{nats.get_exposed_port(4222)}",
            "postgres_dsn": postgres.get_connection_url(),
        }
    finally:
        await asyncio.to_thread(nats.stop)
        await asyncio.to_thread(postgres.stop)
