"""What is wrong with an installation, and what to do about each: the checks behind ``outlive doctor``.

The doctor only looks. It needs no worker, changes nothing, and goes on where a check fails.
"""

import re
from collections.abc import Awaitable, Iterable
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any, Final

import asyncpg
import msgspec
from anyio import to_thread

from outlive.infra import bus, database, embedded, migrate, sql, streams
from outlive.infra.bus import Bus
from outlive.infra.clock import Clock
from outlive.infra.settings import Settings
from outlive.protocol.subjects import Subjects

_SQL: Final = sql.load("doctor")
_SECRET: Final = re.compile(r"//[^@/]*@")
_ERRORS: Final = (*database.TRANSIENT, asyncpg.PostgresError, bus.BusError, ValueError)
_OLDEST_NATS: Final = (2, 10)
_SKEW: Final = 1.0
_LATE: Final = 30.0
"""Seconds after which work that waits for a worker, a clerk or a relay is no longer merely on its way."""
_LAG: Final = 1000
_HEADERS: Final = 16 * 1024
_WORKER: Final = "see whether a worker runs and what its log says; start one with: outlive worker APP"


class Finding(msgspec.Struct, frozen=True):
    """One thing that was looked at. `fix` says what to do, and is empty where nothing has to be done."""

    name: str
    ok: bool
    message: str
    fix: str = ""


def _finding(name: str, ok: bool, message: str, fix: str) -> Finding:
    return Finding(name, ok, message, "" if ok else fix)


async def diagnose(settings: Settings) -> list[Finding]:
    """Look at Postgres, the schema, NATS, the streams, the workers and what waits; good findings are told too.

    Args:
        settings: with both URLs, see `outlive.infra.embedded.locate`.
    """
    findings: list[Finding] = []
    async with AsyncExitStack() as stack:
        connection = await _postgres(settings, stack, findings)
        link = await _nats(settings, stack, findings)
        if connection:
            ready = await _collect(findings, "schema", _schema(connection))
            await _collect(findings, "postgres", _server(connection))
            await _collect(findings, "pooler", _pooler(connection, settings))
            if ready:
                await _collect(findings, "workers", _workers(connection, settings))
                await _collect(findings, "waiting", _waiting(connection))
        if link:
            await _collect(findings, "jetstream", _jetstream(link, settings))
            await _collect(findings, "streams", _streams(link, settings))
        if connection and link:
            await _collect(findings, "ingest", _ingest(connection, link, settings))
    return findings


async def _collect(findings: list[Finding], name: str, check: Awaitable[Iterable[Finding]]) -> bool:
    """Add what a check found; tell whether all of it is well."""
    try:
        found = list(await check)
    except _ERRORS as error:
        found = [_broken(name, "could not be checked", error, "mend what the message names, then look again")]
    findings += found
    return all(finding.ok for finding in found)


def _broken(name: str, what: str, error: Exception, fix: str) -> Finding:
    return Finding(name, ok=False, message=f"{what}: {_SECRET.sub('//', str(error) or type(error).__name__)}", fix=fix)


async def _postgres(settings: Settings, stack: AsyncExitStack, findings: list[Finding]) -> asyncpg.Connection | None:
    try:
        connection = await database.connect(settings.postgres_dsn or "", application_name="outlive doctor")
    except _ERRORS as error:
        fix = "see whether the server runs and OUTLIVE_POSTGRES_DSN is right"
        if "startup parameter" in str(error):
            fix = "a pooler refuses our settings: give Outlive Postgres itself, or let it pass startup parameters on"
        findings.append(_broken("postgres", "cannot be used", error, fix))
        return None
    stack.push_async_callback(connection.close, timeout=10)
    return connection


async def _nats(settings: Settings, stack: AsyncExitStack, findings: list[Finding]) -> Bus | None:
    try:
        return await stack.enter_async_context(Bus.of(settings, name="outlive doctor"))
    except _ERRORS as error:
        findings.append(_broken("nats", "cannot be used", error, "see whether it runs and OUTLIVE_NATS_URL is right"))
        return None


async def _row(connection: asyncpg.Connection, name: str, *arguments: object) -> Any:
    return await connection.fetchrow(_SQL[name], *arguments)


# -- Postgres


async def _server(connection: asyncpg.Connection) -> list[Finding]:
    row = await _row(connection, "server")
    off = [name for name in ("fsync", "synchronous_commit", "full_page_writes") if row[name] == "off"]
    old = row["version"] < migrate.MINIMUM_SERVER
    return [
        _finding("postgres", not old, f"Postgres {row['name']}", "use Postgres 15 or newer"),
        _finding(
            "durability", not off,
            f"a commit is on the disk when it is reported: {'no, off: ' + ', '.join(off) if off else 'yes'}",
            "set them to on, or a power cut may undo steps whose effects have happened",
        ),
        _finding("primary", not row["standby"], "a standby" if row["standby"] else "takes writes", "use the primary"),
        await _clock(connection),
    ]  # fmt: skip


async def _clock(connection: asyncpg.Connection) -> Finding:
    here, clock = Clock(), Clock()
    for _ in range(3):  # the shortest of three round trips tells best
        sent = clock.boottime()
        (now,) = await _row(connection, "clock")
        clock.observe(now, sent, clock.boottime())
    ahead = (here.now() - clock.now()).total_seconds()
    return _finding(
        "clock", abs(ahead) <= _SKEW + clock.error,
        f"this machine's clock is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the database's",
        "nothing is decided by it, but logs will not fit together: let both machines use NTP",
    )  # fmt: skip


async def _pooler(connection: asyncpg.Connection, settings: Settings) -> list[Finding]:
    """See whether our session keeps its backend while another one is busy: a transaction pooler moves it."""
    ours = await connection.fetchval(_SQL["backend"])
    other = await database.connect(settings.postgres_dsn or "", application_name="outlive doctor")
    try:
        async with other.transaction():
            theirs = await other.fetchval(_SQL["backend"])
            moved = await connection.fetchval(_SQL["backend"]) != ours or theirs == ours
    finally:
        await other.close(timeout=10)
    between = connection.get_server_pid() != ours
    told = "a pooler stands between, and moves sessions" if moved else "a pooler, by session" if between else "none"
    return [_finding(
        "pooler", not moved, told,
        "Outlive needs sessions (locks, settings, prepared statements): connect to Postgres itself, or set the "
        "pooler's mode for it to session",
    )]  # fmt: skip


async def _schema(connection: asyncpg.Connection) -> list[Finding]:
    try:
        missing = await migrate.pending(connection)
    except migrate.MigrationRefused as error:
        return [Finding("schema", ok=False, message=str(error), fix="see the message")]
    names = ", ".join(migration.name for migration in missing)
    return [_finding("schema", not missing, f"to be applied: {names}" if names else "up to date", "outlive migrate")]


# -- workers, and what waits for one


async def _workers(connection: asyncpg.Connection, settings: Settings) -> list[Finding]:
    row = await _row(connection, "workers")
    orphans = await connection.fetchval(_SQL["orphans"], settings.lease)
    gone: list[str] = row["gone"]
    return [
        _finding("workers", row["alive"] > 0, f"{row['alive']} alive", "start one with: outlive worker APP"),
        _finding(
            "expired workers", not gone or row["alive"] > 0,
            f"died and not yet cleared away: {', '.join(gone)}" if gone else "none",
            "a living worker clears them away: outlive worker APP",
        ),
        _finding(
            "worker health", not row["ill"], "; ".join(row["ill"]) or f"{row['hung']} threads outlived their timeouts",
            "see its log; a worker that cannot go on ends by itself, and is started again by outlive up or your service manager",
        ),
        _finding("orphans", not orphans, f"{orphans} tasks are owned by a worker that is gone", _WORKER),
    ]  # fmt: skip


async def _waiting(connection: asyncpg.Connection) -> list[Finding]:
    due = await connection.fetch(_SQL["due"], _LATE)
    kinds = "; ".join(f"{row['tasks']} of {row['kind']}{_since(row['since'])}" for row in due)
    return [
        _finding("due", not due, kinds or "nothing waits for a worker", "start a worker whose app has these kinds"),
        await _late(connection, "mail", "tasks wait for the clerk", _WORKER),
        await _late(connection, "undecided", "commands have no answer", _WORKER),
        await _late(connection, "unpublished", "ended or waiting tasks have events that may not be in NATS", _WORKER),
        await _late(connection, "dead_letters", "messages could not be read", "look at them: outlive dead-letters"),
    ]


async def _late(connection: asyncpg.Connection, name: str, what: str, fix: str) -> Finding:
    count, since = await _row(connection, name, _LATE)
    return _finding(name.replace("_", " "), not count, f"{count} {what}{_since(since) if count else ''}", fix)


def _since(moment: datetime) -> str:
    return f" since {moment:%Y-%m-%d %H:%M:%S} UTC"


# -- NATS


async def _jetstream(link: Bus, settings: Settings) -> list[Finding]:
    version = link.nc.connected_server_version
    number = f"{version.major}.{version.minor}.{version.patch}"
    old = (version.major, version.minor) < _OLDEST_NATS
    room = settings.input_limit + _HEADERS
    return [
        _finding("nats", not old, f"nats-server {number}", "use nats-server 2.10 or newer"),
        _finding(
            "max_payload", link.nc.max_payload >= room, f"{link.nc.max_payload} bytes",
            f"a task's input may have {settings.input_limit} bytes: raise max_payload to {room}, "
            "or lower OUTLIVE_INPUT_LIMIT",
        ),
        await _enabled(link),
        await _sync(settings),
    ]  # fmt: skip


async def _enabled(link: Bus) -> Finding:
    fix = "enable it in the server's configuration: jetstream { store_dir: ... }, for this account too"
    try:
        await link.api("INFO")
    except bus.BusError as error:
        return _broken("jetstream", "not enabled", error, fix)
    return Finding("jetstream", ok=True, message="enabled")


async def _sync(settings: Settings) -> Finding:
    """A server does not tell its clients; of the embedded one we know."""
    live = await to_thread.run_sync(embedded.find_live, settings.state_dir)
    if live is None or live.nats_url != settings.nats_url:
        told = "not visible to a client; with jetstream { sync_interval: always } a power cut loses no command"
    elif live.sync_always:
        told = "always: an acknowledged command survives a power cut"
    else:
        told = "two minutes: a power cut may lose acknowledged commands; a client that keeps its command id can resend"
    return Finding("sync interval", ok=True, message=told)


async def _streams(link: Bus, settings: Settings) -> list[Finding]:
    differences = await streams.drift(link, Subjects(settings.prefix), settings)
    if not differences:
        return [Finding("streams", ok=True, message="as they must be")]
    return [_drift(difference) for difference in differences]


def _drift(difference: Any) -> Finding:
    fix = "the next worker that starts mends it: outlive worker APP"
    if not difference.safe:
        fix = f"back it up and delete it (nats stream rm {difference.stream}), or set OUTLIVE_PREFIX to another word"
    return Finding("streams", ok=False, message=str(difference), fix=fix)


async def _ingest(connection: asyncpg.Connection, link: Bus, settings: Settings) -> list[Finding]:
    stream = Subjects(settings.prefix).commands_stream
    cursor = await _row(connection, "cursor", stream)
    if cursor is None:
        return [Finding("ingest", ok=True, message="no worker has read the command stream yet")]
    state = (await link.api(f"STREAM.INFO.{stream}"))["state"]
    lag = max(0, state["last_seq"] - cursor["seq"])
    held = "" if cursor["held"] else ", and no worker reads on"
    return [_finding("ingest", lag <= (_LAG if cursor["held"] else 0), f"{lag} commands to be read{held}", _WORKER)]
