"""One soak from its servers to its verdict."""

import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import anyio
import msgspec
from anyio import to_thread

from outlive.actors.chaos import freezing
from outlive.actors.chaos.control import Control, NotBroken
from outlive.actors.chaos.schedule import Run, Told, at_random
from outlive.actors.chaos.soak.audit import Audit, Violation
from outlive.actors.chaos.soak.crew import Crew
from outlive.actors.chaos.soak.load import Load
from outlive.actors.testing.fake_service import URL_VARIABLE, FakeService, fake_service
from outlive.actors.testing.server import Server, fresh
from outlive.infra import database, sql
from outlive.infra.client import Client
from outlive.protocol.task import Status

APP: Final = "outlive.actors.chaos.soak.app:app"
SETTINGS: Final[Mapping[str, str]] = {
    "OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5", "OUTLIVE_LINGER": "2", "OUTLIVE_GRACE": "5",
}  # fmt: skip
"""Of its workers: a short lease, so that faults of seconds outlast it."""
DRAIN: Final = 180.0
"""Seconds after the last fault within which every task must have ended."""
_MINUTE: Final = 60.0
_LOOK: Final = 1.0


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a soak does: `tasks` submitted over `seconds`, a fault each `every` seconds on average."""

    seconds: float
    tasks: int
    workers: int = 2
    seed: int = 0
    every: float = 4.0
    environment: Mapping[str, str] = {}


class Figures(msgspec.Struct, kw_only=True):
    """What happened in a soak."""

    seconds: float
    submitted: int
    tasks: dict[str, int]
    steps: int
    effects: int
    commands: int
    events: int
    faults: dict[str, int]
    missed: dict[str, int]
    worker_deaths: int
    helped: dict[str, int]
    refused: dict[str, int]
    tasks_a_second: float


class Soaked(msgspec.Struct, kw_only=True):
    """The verdict: no violation is a pass."""

    plan: Plan
    figures: Figures
    violations: Sequence[Violation]
    faults: Sequence[Told] = ()


async def soak(server: Server, plan: Plan, say: Callable[[str], None]) -> Soaked:
    """Run a soak on these servers, in a database and under a prefix of its own."""
    async with (
        fresh(server) as own,
        fake_service() as service,
        Client(own.settings, by="a person", timeout=60) as client,
    ):
        return await Soak(own, service, client, plan, say).run()


class Soak:
    """A soak on servers that nobody else uses."""

    def __init__(
        self, server: Server, service: FakeService, client: Client, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self._server = server
        self._service = service
        self._client = client
        self._plan = plan
        self._say = say
        environment = {**server.environment, **SETTINGS, URL_VARIABLE: service.url, **plan.environment}
        self._crew = Crew(APP, plan.workers, environment)
        self._load = Load(client, service, plan.tasks, plan.tasks / plan.seconds / 0.95, plan.seed)
        self._told: list[Told] = []
        self._sql = sql.load("soak", "outlive.actors")
        self._began = time.monotonic()

    async def run(self) -> Soaked:
        """Load and break, mend, wait for the ends, judge."""
        ended = 0.0
        async with anyio.create_task_group() as group:
            await group.start(self._crew.run)
            self._began = time.monotonic()
            group.start_soon(self._load.help)
            group.start_soon(self._report)
            async with anyio.create_task_group() as both:
                both.start_soon(self._load.submit_all)
                both.start_soon(self._break)
            self._say(f"{self._took:.0f} s: all is submitted, nothing is broken any more; waiting for the ends")
            await self._until_ended()
            ended = self._took
            group.cancel_scope.cancel()
        self._say("every worker has ended; judging")
        return await self._judge(ended)

    @property
    def _took(self) -> float:
        return time.monotonic() - self._began

    async def _break(self) -> None:
        entries = [*at_random(self._plan.seed, self._plan.seconds, self._plan.every)]
        async with Control(self._server.settings) as control:
            await Run(control, self._actors, self._plan.seed, self._tell).play(entries)
            await to_thread.run_sync(freezing.thaw, self._server.settings)
            for _ in range(2):  # one that was frozen hears it the second time
                with suppress(NotBroken):
                    await control.calm()
                await anyio.sleep(_LOOK)

    async def _actors(self) -> Sequence[tuple[str, str]]:
        running = await self._client.list(status=[Status.RUNNING], limit=50)
        return [(task.task_id, task.owner) for task in running.tasks if task.owner]

    def _tell(self, told: Told) -> None:
        self._told.append(told)
        if not told.ok:
            self._say(f"{told.at:.0f} s: {told.entry.fault} did nothing: {told.message}")

    async def _report(self) -> None:
        while True:
            await anyio.sleep(_MINUTE)
            counts = await self._counts()
            done = Counter(told.entry.fault for told in self._told if told.ok)
            self._say(
                f"{self._took:.0f} s: {len(self._load.submitted)} submitted, {dict(counts)}, {done.total()} faults, "
                f"{self._crew.deaths} workers died, refused {dict(self._load.failures.most_common(3))}"
            )

    async def _counts(self) -> Counter[str]:
        async with self._connected() as connection:
            return Counter({row["status"]: row["n"] for row in await connection.fetch(self._sql["counts"])})

    async def _until_ended(self) -> None:
        with anyio.move_on_after(DRAIN):
            while True:
                async with self._connected() as connection:
                    if not await connection.fetchval(self._sql["open"]):
                        return
                await anyio.sleep(_LOOK)

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[Any]:
        connection = await database.connect(self._server.postgres_dsn, application_name="outlive soak")
        try:
            yield connection
        finally:
            await connection.close(timeout=10)

    async def _judge(self, took: float) -> Soaked:
        async with self._connected() as connection:
            audit = Audit(self._server, self._service, connection, self._load.submitted)
            violations = await audit.run()
            totals = dict(await connection.fetchrow(self._sql["totals"]))
            tasks = {f"{row['kind']} {row['status']}": row["n"] for row in await connection.fetch(self._sql["ends"])}
        count = sum(tasks.values())
        done = Counter(str(told.entry.fault) for told in self._told if told.ok)
        missed = Counter(str(told.entry.fault) for told in self._told if not told.ok)
        figures = Figures(
            seconds=round(took, 1), submitted=len(self._load.submitted), tasks=tasks, faults=dict(done), missed=dict(missed),
            worker_deaths=self._crew.deaths, helped=dict(self._load.helped), refused=dict(self._load.failures),
            tasks_a_second=round(count / took, 1), effects=audit.effects, **totals,
        )  # fmt: skip
        return Soaked(plan=self._plan, figures=figures, violations=violations, faults=self._told)
