"""A workbench for tests of the ingester: send commands, run ingesters, look into the store."""

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from nats.aio.msg import Msg

from outlive.actors.testing import Server
from outlive.infra import database
from outlive.infra.bus import Ack, Bus
from outlive.infra.ingester import Ingester, Wake
from outlive.protocol.subjects import Subjects

TENANT = "default"


async def eventually(check: Callable[[], Awaitable[bool]], within: float = 15.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within):
        while not await check():  # noqa: ASYNC110  # a fact of another process has no event
            await asyncio.sleep(0.01)


@dataclass
class Bench:
    """Connections of a test, and what was heard."""

    server: Server
    bus: Bus
    connection: asyncpg.Connection
    answers: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    wakes: list[Wake] = field(default_factory=list[Wake])

    @property
    def subjects(self) -> Subjects:
        return self.server.subjects

    @property
    def stream(self) -> str:
        return self.subjects.commands_stream

    async def send(
        self,
        task_id: str,
        body: Mapping[str, Any] | bytes,
        *,
        verb: str = "",
        tenant: str = TENANT,
        headers: Mapping[str, str] | None = None,
    ) -> Ack:
        """Publish a command; the verb is the body's type unless given."""
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        verb = verb or (str(body["type"]) if not isinstance(body, bytes) else "signal")
        return await self.bus.publish_tracked(self.subjects.command(tenant, task_id, verb), payload, headers)

    async def send_all(self, task_id: str, bodies: Sequence[Mapping[str, Any]]) -> None:
        """Publish many, in order."""
        for start in range(0, len(bodies), 200):
            await asyncio.gather(*[self.send(task_id, body) for body in bodies[start : start + 200]])

    async def fetch(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(query, *arguments)]

    async def until(self, query: str, *arguments: Any, equals: Any = True) -> None:
        """Wait until a query's first value is `equals`."""

        async def check() -> bool:
            return bool(await self.connection.fetchval(query, *arguments) == equals)

        await eventually(check)

    async def settled(self) -> None:
        """Wait until everything in the stream is taken in."""
        last = (await self.bus.api(f"STREAM.INFO.{self.stream}"))["state"]["last_seq"]
        await self.until("select seq from cursor", equals=last)
        await self.bus.nc.flush()

    async def heard(self, command_id: str) -> dict[str, Any]:
        """Wait for the answer to a command."""
        found: list[dict[str, Any]] = []

        async def check() -> bool:
            found[:] = [answer for answer in self.answers if answer["command_id"] == command_id]
            return bool(found)

        await eventually(check)
        return found[-1]

    @contextlib.asynccontextmanager
    async def ingester(
        self, *, bus: Bus | None = None, dsn: str = "", me: uuid.UUID | None = None
    ) -> AsyncGenerator[Ingester]:
        """Run an ingester."""
        one = Ingester(
            dsn or self.server.postgres_dsn, bus or self.bus, self.subjects, me or uuid.uuid4(), self.server.settings,
            self.wakes.append,
        )  # fmt: skip
        running = asyncio.create_task(one.run())
        try:
            yield one
        finally:
            while not running.done():  # asyncio.wait_for may swallow a cancellation (before Python 3.12)
                running.cancel()
                await asyncio.wait([running], timeout=0.2)


@contextlib.asynccontextmanager
async def bench(server: Server) -> AsyncGenerator[Bench]:
    """Connect to a server whose store knows the kind ``k``."""
    connection = await database.connect(server.postgres_dsn, application_name="test")
    await connection.execute("insert into kind (name, code_version, input_schema) values ('k', '1', '{}')")
    async with Bus(server.nats_url) as bus:
        own = Bench(server, bus, connection)

        async def hear(message: Msg) -> None:
            own.answers.append(json.loads(message.data))

        await bus.subscribe(server.subjects.answer("*", "*"), hear)
        yield own
    await connection.close()
