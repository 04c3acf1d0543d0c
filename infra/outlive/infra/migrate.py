"""The store's schema: numbered files ``migrations/0001_NAME.sql``, applied once, in order, and never edited."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Final, NamedTuple

import asyncpg

from outlive.infra import database, sql

MINIMUM_SERVER: Final = 150000
"""Oldest Postgres that is supported, as ``server_version_num`` tells it."""

_LOCK: Final = 0x6F75746C697665  # "outlive": two processes never migrate at the same time
_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")
_TIMEOUT: Final = "600s"


class MigrationRefused(RuntimeError):
    """The database's schema and this version of Outlive do not fit; the message says why and what to do.

    Causes: a migration file that was edited after it ran; a database migrated by a newer Outlive; a server that is
    too old.
    """


class Migration(NamedTuple):
    """One step of the schema: its number, file name, text, and the digest that proves it unchanged."""

    number: int
    name: str
    text: str
    checksum: bytes


@cache
def known() -> Sequence[Migration]:
    """Return the migrations that this version brings, in order."""
    files = resources.files("outlive.infra").joinpath("migrations").iterdir()
    named = sorted((match[1], file) for file in files if (match := _FILE.fullmatch(file.name)))
    texts = [(int(number), file.name, file.read_text(encoding="utf-8")) for number, file in named]
    return tuple(Migration(number, name, text, _checksum(text)) for number, name, text in texts)


def _checksum(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


async def migrate(dsn: str) -> list[str]:
    """Bring a database to this version's schema, in one transaction; return the names of the files that ran.

    Safe to call from many processes at once.

    Raises:
        MigrationRefused: see there.
        OSError, asyncpg.PostgresError: the server cannot be reached, or a file failed (nothing was changed).
    """
    connection = await database.connect(
        dsn, application_name="outlive migrate", statement_timeout=_TIMEOUT, lock_timeout=_TIMEOUT
    )
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", _LOCK)
            return [await _apply(connection, migration) for migration in await pending(connection)]
    finally:
        await connection.close(timeout=10)


async def pending(connection: asyncpg.Connection) -> Sequence[Migration]:
    """Return the known migrations that the database has not seen, in order.

    Raises:
        MigrationRefused: see there.
    """
    _check_server(connection)
    applied = await _applied(connection)
    _check_history(applied)
    return [migration for migration in known() if migration.number not in applied]


def _check_server(connection: asyncpg.Connection) -> None:
    version = connection.get_server_version()
    if version.major * 10000 < MINIMUM_SERVER:
        raise MigrationRefused(
            f"Postgres {version.major}.{version.minor} is too old: Outlive needs {MINIMUM_SERVER // 10000} or newer"
        )


async def _applied(connection: asyncpg.Connection) -> Mapping[int, asyncpg.Record]:
    if await connection.fetchval(sql.load("migrate")["exists"]) is None:
        return {}
    return {row["number"]: row for row in await connection.fetch(sql.load("migrate")["applied"])}


def _check_history(applied: Mapping[int, asyncpg.Record]) -> None:
    ours = {migration.number: migration for migration in known()}
    for number, row in applied.items():
        if number not in ours:
            raise MigrationRefused(
                f"the database has the migration {row['name']}, which this version of Outlive does not know: "
                "it was migrated by a newer one. Install that version here."
            )
        if row["checksum"] != ours[number].checksum:
            raise MigrationRefused(
                f"{ours[number].name} is not the file that was applied at {row['applied_at']:%Y-%m-%d %H:%M} UTC: "
                "a migration is never edited. Restore it and put the change into a new file."
            )


async def _apply(connection: asyncpg.Connection, migration: Migration) -> str:
    # Without arguments asyncpg sends the text as it is, so a file may hold many statements.
    await connection.execute(sql.load("migrate")["prepare"])
    await connection.execute(migration.text)
    await connection.execute(sql.load("migrate")["record"], migration.number, migration.name, migration.checksum)
    return migration.name
