"""`outlive bench`: durable steps per second and latencies, beside this machine's own limit, in one run.

One worker process with 50 slots runs 200 tasks of 10 steps; every step is a durable fact and one progress event that
the stream has acknowledged. The limit is what 50 coroutines commit in single rows over a pool of 20 asyncpg
connections, measured right before and right after on the same server. Use the ratios: absolute figures move with the
machine.
"""

import asyncio
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
import asyncpg
import msgspec

from outlive.actors.app import App
from outlive.actors.task import Task
from outlive.infra import database, sql
from outlive.infra.bus import Bus
from outlive.infra.settings import Settings
from outlive.protocol import codec, ids
from outlive.protocol.subjects import Subjects

TASKS: Final = 200
STEPS: Final = 10
SLOTS: Final = 50
POOL: Final = 20
LIMIT_SECONDS: Final = 2.0

app: Final = App("bench")


@app.tool(read_only=True)
async def look(n: int) -> int:
    """Do nothing, durably; the result is when (monotonic, nanoseconds), so that other processes can compare."""
    await asyncio.sleep(0)
    return time.monotonic_ns() + 0 * n


@app.tool(idempotent=True)
async def touch(n: int) -> int:
    """Stand for an effect: its intent is durable before it runs."""
    await asyncio.sleep(0)
    return n


@app.task
async def bench_before_next(task: Task, steps: int) -> int:
    """Each result is durable before the next step begins."""
    first = 0
    for n in range(steps):
        at = await task.call(look.with_options(durable="before_next"), n)
        first = first or at
    return first


@app.task
async def bench_default(task: Task, steps: int) -> int:
    """Read-only results are handed in and not waited for."""
    for n in range(steps):
        await task.call(look, n)
    return steps


@app.task
async def bench_effect(task: Task, steps: int) -> int:
    """Each step is an operation with an intent and an outcome."""
    for n in range(steps):
        await task.call(touch, n)
    return steps


class Figures(msgspec.Struct, kw_only=True):
    """What one run measured: rates per second, times in milliseconds."""

    steps_per_s: float
    commits_per_s: float
    before_next_ratio: float
    effect_steps_per_s: float
    effect_ratio: float
    default_steps_per_s: float
    default_ratio: float
    step_p50_ms: float
    step_p99_ms: float
    submit_to_first_step_ms: float
    tasks: int = TASKS
    steps: int = STEPS


class Bench:
    """One worker, one client, one database."""

    def __init__(self, settings: Settings, bus: Bus, connection: asyncpg.Connection) -> None:
        """Measure over these."""
        self._bus = bus
        self._connection = connection
        self._dsn = str(settings.postgres_dsn)
        self._tenant = settings.tenant
        self._subjects = Subjects(settings.prefix)
        self._sql = sql.load("bench", "outlive.actors")
        self._ended: dict[str, float] = {}
        self._news = asyncio.Event()

    async def watch(self) -> None:
        """Hear of ends."""
        await self._bus.subscribe(self._subjects.attention(self._tenant, "*"), self._hear)

    async def _hear(self, message: Any) -> None:
        self._ended[message.subject.rpartition(".")[2]] = time.perf_counter()
        self._news.set()

    async def run(self, kind: str, tasks: int, steps: int) -> tuple[float, list[str]]:
        """Submit tasks and wait for their ends. Returns the seconds from the first submit to the last end."""
        names = [ids.new_id() for _ in range(tasks)]
        began = time.perf_counter()
        for name in names:
            body = codec.encode({"type": "submit", "command_id": name, "kind": kind, "input": {"steps": steps}})
            await self._bus.publish(self._subjects.command(self._tenant, name, "submit"), body)
        while not all(name in self._ended for name in names):
            self._news.clear()
            await self._news.wait()
        return max(self._ended[name] for name in names) - began, names

    async def throughput(self, kind: str) -> float:
        """Durable steps per second of `TASKS` tasks of `STEPS` steps."""
        seconds, names = await self.run(kind, TASKS, STEPS)
        done = await self._connection.fetchval(self._sql["completed"], self._tenant, names)
        if done != TASKS * STEPS:
            raise RuntimeError(f"{done} steps are recorded instead of {TASKS * STEPS}")
        return TASKS * STEPS / seconds

    async def step_times(self, steps: int = 200) -> list[float]:
        """Milliseconds from one step's end to the next, of one task that runs alone."""
        _, names = await self.run("bench_before_next", 1, steps)
        rows = await self._connection.fetch(self._sql["marks"], self._tenant, names[0])
        marks = [int(codec.decode(row["body"])) for row in rows]
        return sorted((b - a) / 1e6 for a, b in itertools.pairwise(marks))

    async def first_steps(self, tries: int = 20) -> list[float]:
        """Milliseconds from a submit to the end of its first step, nothing else running."""
        times: list[float] = []
        for _ in range(tries):
            began = time.monotonic_ns()
            _, names = await self.run("bench_before_next", 1, 1)
            rows = await self._connection.fetch(self._sql["marks"], self._tenant, names[0])
            times.append((int(codec.decode(rows[0]["body"])) - began) / 1e6)
        return sorted(times)

    async def commits(self) -> float:
        """Single-row commits per second of a pool: what a system with a commit per step can reach at best here."""
        await self._connection.execute(self._sql["limit_table"])
        done = 0
        end = time.perf_counter() + LIMIT_SECONDS
        async with asyncpg.create_pool(self._dsn, min_size=POOL, max_size=POOL, server_settings=_SCHEMA) as pool:

            async def commit(number: int) -> None:
                nonlocal done
                n = 0
                while time.perf_counter() < end:
                    await pool.execute(self._sql["limit"], f"t{number}-{os.getpid()}", n, b"x" * 200)
                    n, done = n + 1, done + 1

            began = time.perf_counter()
            async with anyio.create_task_group() as group:
                for number in range(SLOTS):
                    group.start_soon(commit, number)
            seconds = time.perf_counter() - began
        await self._connection.execute(self._sql["limit_drop"])
        return done / seconds

    async def measure(self) -> Figures:
        """Everything, in one run."""
        await self.run("bench_default", SLOTS, 2)  # statements, pools and code are warm
        before = await self.commits()
        rates = {mode: await self.throughput(f"bench_{mode}") for mode in ("before_next", "effect", "default")}
        commits = (before + await self.commits()) / 2
        steps, first = await self.step_times(), await self.first_steps()
        return Figures(
            steps_per_s=round(rates["before_next"]), commits_per_s=round(commits),
            before_next_ratio=round(rates["before_next"] / commits, 2), effect_steps_per_s=round(rates["effect"]),
            effect_ratio=round(rates["effect"] / commits, 2), default_steps_per_s=round(rates["default"]),
            default_ratio=round(rates["default"] / commits, 2), step_p50_ms=round(statistics.median(steps), 2),
            step_p99_ms=round(steps[int(len(steps) * 0.99)], 2),
            submit_to_first_step_ms=round(statistics.median(first), 1),
        )  # fmt: skip


_SCHEMA: Final = {"search_path": database.SCHEMA}


@asynccontextmanager
async def worker_process(settings: Settings, target: str = "outlive.actors.bench:app") -> AsyncGenerator[int]:
    """Run one worker of an app as a process of its own; gives its pid once it serves."""
    environment = {
        **os.environ, "OUTLIVE_NATS_URL": str(settings.nats_url), "OUTLIVE_POSTGRES_DSN": str(settings.postgres_dsn),
        "OUTLIVE_PREFIX": settings.prefix, "OUTLIVE_TENANT": settings.tenant, "OUTLIVE_SLOTS": str(SLOTS),
    }  # fmt: skip
    command = [sys.executable, "-m", "outlive", "worker", target]
    process = await asyncio.create_subprocess_exec(*command, env=environment, stderr=subprocess.DEVNULL)
    try:
        await _serving(settings, process)
        yield process.pid
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


async def _serving(settings: Settings, process: asyncio.subprocess.Process) -> None:
    statement = sql.load("bench", "outlive.actors")["serving"]
    connection = await database.connect(str(settings.postgres_dsn), application_name="outlive bench")
    try:
        while not await connection.fetchval(statement, process.pid):
            if process.returncode is not None:
                raise RuntimeError(f"the worker ended with {process.returncode} before it served")
            await asyncio.sleep(0.02)
    finally:
        await connection.close()


async def bench(settings: Settings, report: Callable[[str], None], repeats: int = 1) -> list[Figures]:
    """Measure `repeats` times over migrated servers."""
    figures: list[Figures] = []
    connection = await database.connect(str(settings.postgres_dsn), application_name="outlive bench")
    try:
        async with worker_process(settings), Bus.of(settings, name="outlive bench") as bus:
            measuring = Bench(settings, bus, connection)
            await measuring.watch()
            for number in range(repeats):
                report(f"run {number + 1} of {repeats}")
                figures.append(await measuring.measure())
    finally:
        await connection.close()
    return figures


def median(figures: Sequence[Figures]) -> Figures:
    """The median of each figure over the runs."""
    names = Figures.__struct_fields__
    return Figures(**{name: statistics.median([getattr(run, name) for run in figures]) for name in names})
