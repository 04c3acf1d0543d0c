"""One fault's own corner: a database and a prefix, a shop outside, worker processes, and a person's client.

What happens in one scene disturbs no other one, so that faults can be played side by side.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from nats.js.api import AckPolicy, ConsumerConfig

from outlive.actors.chaoskit.processes import WorkerProcess
from outlive.actors.testing.fake_service import URL_VARIABLE, FakeService, fake_service
from outlive.actors.testing.server import Server, fresh
from outlive.infra import database, sql
from outlive.infra.bus import Bus
from outlive.infra.client import Client
from outlive.protocol.errors import OutliveError
from outlive.protocol.events import SEQ_HEADER

SHOP: Final = "outlive.actors.chaoskit.shop:app"
PERSON: Final = "a person"
WITHIN: Final = 60.0
"""Seconds within which what is waited for must come."""

_PACE: Final = 0.02


class Stuck(OutliveError):
    """What had to come did not come; the message says what, and how the task stands."""


class Scene:
    """Where one fault is played; made by `scene`, or over servers and a shop that run already.

    Attributes:
        server: a database and a prefix that nobody else uses.
        service: the shop outside.
        client: of a person.
        workers: those that were started here, for their logs.
    """

    def __init__(self, server: Server, service: FakeService, bus: Bus, connection: Any, stack: AsyncExitStack) -> None:
        """Play here; use `at`."""
        self.server = server
        self.service = service
        self.client = Client(server.settings, bus=bus, by=PERSON)
        self.tenant: Final = server.settings.tenant
        self.workers: list[WorkerProcess] = []
        self._stack = stack
        self._stream = bus.nc.jetstream()
        self._connection = connection
        self._sql = sql.load("exam", "outlive.actors")

    @classmethod
    @asynccontextmanager
    async def at(cls, server: Server, service: FakeService) -> "AsyncGenerator[Scene]":
        """Play on these, until the end of the block."""
        async with AsyncExitStack() as stack:
            connection = await database.connect(server.postgres_dsn, application_name="outlive exam")
            stack.push_async_callback(connection.close, timeout=10)
            bus = await stack.enter_async_context(Bus.of(server.settings, name="outlive exam"))
            yield cls(server, service, bus, connection, stack)

    async def worker(self, app: str = SHOP, *, failpoints: str = "", **environment: str) -> WorkerProcess:
        """Start a worker and wait until it serves; it ends with the scene. Raises `WorkerEnded`."""
        own = {**self.server.environment, "OUTLIVE_POLL": "0.3", URL_VARIABLE: self.service.url, **environment}
        made = WorkerProcess(app, own, failpoints=failpoints)
        self.workers.append(made)
        return await self._stack.enter_async_context(made)

    async def rows(self, statement: str, *arguments: Any) -> list[dict[str, Any]]:
        """Read what ``queries/exam.sql`` names, as it is stored."""
        return [dict(row) for row in await self._connection.fetch(self._sql[statement], *arguments)]

    async def task(self, task_id: str) -> dict[str, Any]:
        """Read a task's row; empty where there is none."""
        found = await self.rows("task", self.tenant, task_id)
        return found[0] if found else {}

    async def effects(self, task_id: str) -> list[int]:
        """Return the numbers of what the shop did under keys of a task, oldest first."""
        mine = f"{self.tenant}/{task_id}:"
        return [one.id for one in await self.service.effects() if (one.key or "").startswith(mine)]

    async def until(self, what: str, condition: Callable[[], Awaitable[Any]], within: float = WITHIN) -> Any:
        """Ask again and again until the answer is true, and return it. Raises `Stuck`."""
        end = time.monotonic() + within
        while not (found := await condition()):
            if time.monotonic() > end:
                raise Stuck(f"waited {within:g} s, and it did not come: {what}")
            await asyncio.sleep(_PACE)
        return found

    async def until_paused(self, task_id: str, reason: str) -> None:
        """Wait until nobody holds the task and it waits for a person for this reason. Raises `Stuck`."""

        async def waits() -> bool:
            task = await self.task(task_id)
            return task.get("status") == "paused" and task["owner"] is None and reason in (task["reasons"] or "")

        await self.until(f"task {task_id} paused, {reason}", waits)

    async def until_ended(self, *tasks: str) -> None:
        """Wait until tasks have ended and all of their events are out. Raises `Stuck`."""

        async def ended() -> bool:
            found = [await self.task(task_id) for task_id in tasks]
            return all(task.get("ended") and task["published"] == task["last_seq"] for task in found)

        await self.until(f"the end of {', '.join(tasks)}", ended)

    async def until_done_outside(self, task_id: str, count: int) -> None:
        """Wait until the shop has done so many effects of a task. Raises `Stuck`."""

        async def there() -> bool:
            return len(await self.effects(task_id)) >= count

        await self.until(f"effect {count} of task {task_id}", there)

    async def until_offered(self, kind: str) -> None:
        """Wait until a worker has registered a kind. Raises `Stuck`."""

        async def offered() -> bool:
            return kind in {one.name for one in await self.client.kinds()}

        await self.until(f"kind {kind}", offered)

    async def deliver(self, task_id: str, verb: str, fields: Mapping[str, Any]) -> int:
        """Put a message into the command stream, as any program may; return its sequence there."""
        subject = self.server.subjects.command(self.tenant, task_id, verb)
        body = msgspec.json.encode({"type": verb, "by": PERSON, **fields})
        ack = await self._stream.publish(subject, body, timeout=10)
        return int(ack.seq)

    async def published(self, task_id: str) -> list[tuple[int, bytes]]:
        """Read what the progress stream holds of a task, as it stands there: number by its header, and event."""
        subjects = self.server.subjects
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30.0)
        subject = subjects.progress(self.tenant, task_id)
        reading = await self._stream.pull_subscribe(subject, stream=subjects.progress_stream, config=config)
        told: list[tuple[int, bytes]] = []
        for _ in range((await reading.consumer_info()).num_pending or 0):
            (message,) = await reading.fetch(1, timeout=10)
            told.append((int((message.headers or {}).get(SEQ_HEADER, 0)), message.data))
        await reading.unsubscribe()
        return told

    async def until_read(self, sequence: int) -> None:
        """Wait until the command stream was read to a sequence. Raises `Stuck`."""

        async def read() -> bool:
            rows = await self.rows("read", self.server.subjects.commands_stream)
            return bool(rows) and rows[0]["seq"] >= sequence

        await self.until(f"message {sequence} of the command stream", read)


@asynccontextmanager
async def scene(server: Server) -> AsyncGenerator[Scene]:
    """Make a scene on running servers; nothing of it is left at its end."""
    async with fresh(server) as own, fake_service() as service, Scene.at(own, service) as made:
        yield made
