"""Migrations: once, in order, by many at once, never edited, never backwards."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import asyncpg
import pytest

from outlive.actors.testing import Server
from outlive.infra import migrate
from outlive.infra.migrate import Migration, MigrationRefused


@pytest.fixture
async def empty(session_server: Server) -> AsyncIterator[str]:
    """The DSN of an empty database."""
    base = session_server.postgres_dsn.rpartition("/")[0]
    connection = await asyncpg.connect(session_server.postgres_dsn)
    await connection.execute("drop database if exists migrations with (force)")
    await connection.execute("create database migrations template template0")
    yield f"{base}/migrations"
    await connection.execute("drop database migrations with (force)")
    await connection.close()


NEXT = f"{len(migrate.known()) + 1:04}_more.sql"


def with_known(monkeypatch: pytest.MonkeyPatch, *more: str) -> None:
    known = list(migrate.known())
    for number, text in enumerate(more, len(known) + 1):
        known.append(Migration(number, f"{number:04}_more.sql", text, migrate._checksum(text)))
    monkeypatch.setattr(migrate, "known", lambda: known)


async def test_each_file_runs_once(empty: str) -> None:
    names = [migration.name for migration in migrate.known()]
    assert await migrate.migrate(empty) == names
    assert await migrate.migrate(empty) == []


async def test_many_at_once_migrate_once(empty: str) -> None:
    results: list[list[str]] = []

    async def one() -> None:
        results.append(await migrate.migrate(empty))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(one)
    assert sorted(map(len, results)) == [0, 0, 0, len(migrate.known())]


async def test_a_new_file_is_pending_and_then_applied(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await migrate.migrate(empty)
    with_known(monkeypatch, "create table outlive_store.a (n int); create table outlive_store.b (n int);")
    connection = await asyncpg.connect(empty)
    assert [migration.name for migration in await migrate.pending(connection)] == [NEXT]
    assert await migrate.migrate(empty) == [NEXT]
    assert await migrate.pending(connection) == []
    await connection.close()


async def test_a_file_that_fails_changes_nothing(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_known(monkeypatch, "create table outlive_store.a (n int); select 1/0;")
    with pytest.raises(asyncpg.DivisionByZeroError):
        await migrate.migrate(empty)
    connection = await asyncpg.connect(empty)
    assert await connection.fetchval("select to_regclass('outlive_store.task')") is None
    await connection.close()


async def test_an_edited_file_is_refused(empty: str) -> None:
    await migrate.migrate(empty)
    connection = await asyncpg.connect(empty)
    await connection.execute("update outlive_store.migration set checksum = 'other'")
    await connection.close()
    with pytest.raises(MigrationRefused, match=r"0001_spine.sql is not the file that was applied at .* never edited"):
        await migrate.migrate(empty)


async def test_a_database_of_a_newer_version_is_refused(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as newer:
        with_known(newer, "select 1")
        await migrate.migrate(empty)
    with pytest.raises(MigrationRefused, match=rf"{NEXT}, which this version of Outlive does not know"):
        await migrate.migrate(empty)


def test_files_are_numbered_without_gaps() -> None:
    folder = Path(migrate.__file__).with_name("migrations")
    assert [migration.number for migration in migrate.known()] == list(range(1, len(list(folder.glob("*.sql"))) + 1))
