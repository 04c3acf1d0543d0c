"""The servers of ``up`` and ``run``: those that are set, else the embedded pair, started here or found running."""

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import click
import msgspec

from outlive.infra import embedded, streams
from outlive.infra.bus import Bus
from outlive.infra.migrate import migrate
from outlive.infra.settings import Settings
from outlive.protocol.subjects import Subjects

Say = Callable[[str], None]


@asynccontextmanager
async def running(settings: Settings, say: Say) -> AsyncGenerator[Settings]:
    """Yield settings with both URLs, of servers that are ready for workers.

    The embedded pair is started unless it runs already; then it is left alone, and the block ends with it.

    Raises:
        click.UsageError: one URL is set and the other is not.
        click.ClickException: the pair of another process has ended.
    """
    if bool(settings.nats_url) != bool(settings.postgres_dsn):
        raise click.UsageError(
            "set both OUTLIVE_NATS_URL and OUTLIVE_POSTGRES_DSN, or neither (then embedded servers are started)"
        )
    if settings.nats_url:
        await _prepare(settings)
        yield settings
        return
    async with _pair(settings.state_dir, say) as live:
        found = msgspec.structs.replace(settings, nats_url=live.nats_url, postgres_dsn=live.postgres_dsn)
        await _prepare(found)
        yield found


@asynccontextmanager
async def _pair(state_dir: Path, say: Say) -> AsyncGenerator[embedded.Live]:
    own = embedded.Pair(state_dir, on_progress=say)
    try:
        await own.start()
    except embedded.PairRunning:
        async with embedded.pair(state_dir, on_progress=say) as live, anyio.create_task_group() as group:
            say(f"using the servers that process {live.pid} runs in {state_dir}")
            group.start_soon(_end_with, live, state_dir)
            yield live
            group.cancel_scope.cancel()
        return
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(own.supervise)
            yield embedded.Live(nats_url=own.nats_url, postgres_dsn=own.postgres_dsn, pid=0)
            group.cancel_scope.cancel()
    finally:
        await own.stop()


async def _end_with(live: embedded.Live, state_dir: Path) -> None:
    await embedded.ended(state_dir)
    raise click.ClickException(f"the servers of process {live.pid} have ended")


async def _prepare(settings: Settings) -> None:
    await migrate(str(settings.postgres_dsn))
    async with Bus.of(settings, name="outlive up") as bus:
        await streams.ensure(bus, Subjects(settings.prefix), settings)


def variables(settings: Settings) -> dict[str, str]:
    """Return the environment by which workers find the same servers."""
    return {
        "OUTLIVE_NATS_URL": str(settings.nats_url),
        "OUTLIVE_POSTGRES_DSN": str(settings.postgres_dsn),
        "OUTLIVE_TENANT": settings.tenant,
        "OUTLIVE_STATE_DIR": str(settings.state_dir.absolute()),
    }
