"""A worker in this process, a client beside it, and what the tables say afterwards."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from outlive.actors import App, Client
from outlive.actors.testing import Server
from outlive.actors.worker import Worker


class Died(Exception):
    """The worker ends here."""


@asynccontextmanager
async def serving(app: App, server: Server, **settings: Any) -> AsyncGenerator[Client]:
    """Serve an app; at the end the worker drains and hands its tasks back."""
    own = server.with_settings(**settings)
    async with Worker(app, own.settings), Client(own.settings, by="tester") as client:
        yield client


@asynccontextmanager
async def dying(app: App, server: Server, **settings: Any) -> AsyncGenerator[Client]:
    """Serve an app; at the end the worker is gone from one moment to the next: nothing is drained or handed back."""
    own = server.with_settings(**settings)
    async with Client(own.settings, by="tester") as client:
        with suppress(Died):
            async with Worker(app, own.settings):
                yield client
                raise Died


async def rows(server: Server, query: str, *arguments: Any) -> list[asyncpg.Record]:
    """Rows of one query; names without a schema are those of the store."""
    connection: Any = await asyncpg.connect(server.postgres_dsn, server_settings={"search_path": "outlive_store"})
    try:
        found: list[asyncpg.Record] = await connection.fetch(query, *arguments)
        return found
    finally:
        await connection.close()


async def soon(condition: Callable[[], Awaitable[Any]], within: float = 30.0) -> Any:
    """Ask until it is true; gives it."""
    async with asyncio.timeout(within):
        while not (value := await condition()):  # noqa: ASYNC110  # a table tells no event
            await asyncio.sleep(0.01)
    return value


async def row_soon(server: Server, query: str, *arguments: Any, within: float = 30.0) -> asyncpg.Record:
    """Wait for a row."""
    found: asyncpg.Record = (await soon(lambda: rows(server, query, *arguments), within))[0]
    return found


async def status_soon(server: Server, task_id: str, status: str, within: float = 30.0) -> None:
    """Wait until nobody holds the task and it is as expected."""
    query = "select 1 from task where task_id = $1 and status = $2 and owner is null"
    try:
        await row_soon(server, query, task_id, status, within=within)
    except TimeoutError:
        task = await rows(server, "select status, owner, waiting_for, cancelling from task where task_id = $1", task_id)
        raise AssertionError(f"{task_id} is not {status}: {task}, {await told(server, task_id)}") from None


async def events(server: Server, task_id: str) -> list[dict[str, Any]]:
    """All events of a task; they are numbered from 1 without a gap."""
    found = await rows(server, "select seq, event from fact where task_id = $1 order by seq", task_id)
    assert [row["seq"] for row in found] == list(range(1, len(found) + 1)), [row["seq"] for row in found]
    return [json.loads(row["event"]) for row in found]


async def told(server: Server, task_id: str) -> list[str]:
    """The sentences of a task's events."""
    return [event["message"] for event in await events(server, task_id)]


async def steps(server: Server, task_id: str) -> list[tuple[str, str, str]]:
    """(step id, name, status) of all facts about steps, in order."""
    query = "select step_id, name, status from fact where task_id = $1 and type = 'step' order by seq"
    return [(row["step_id"], row["name"], row["status"]) for row in await rows(server, query, task_id)]


async def ledger(server: Server, task_id: str) -> list[tuple[str, str, int]]:
    """(step id, status, attempt) of all operations."""
    query = "select step_id, status, attempt from operation where task_id = $1 order by step_id"
    return [(row["step_id"], row["status"], row["attempt"]) for row in await rows(server, query, task_id)]


async def attempts(server: Server, task_id: str) -> list[tuple[str, int, str]]:
    """(step id, attempt, error class) of attempts that ended badly."""
    query = "select step_id, attempt, error_class from attempt where task_id = $1 order by step_id, attempt"
    return [(row["step_id"], row["attempt"], row["error_class"]) for row in await rows(server, query, task_id)]
