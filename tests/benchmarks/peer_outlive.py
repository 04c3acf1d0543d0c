"""Outlive as a row of the peers' harness (see README.md here): ``python peer_outlive.py worker`` or ``client``.

The harness's module ``common`` is beside this file when it runs: it says where the servers are (``PEERS_*``), and keeps
the ledger, a file outside every peer's storage, by whose lines all peers are judged. Steps are read-only and durable
before the next one begins, so a step is one durable fact and one progress event, as much as the other peers record; the
function marks its end when its last step is durable and before the task's own end is, as theirs do.
"""

import asyncio
import importlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from outlive.actors import App, Client, Task
from outlive.actors.console.interrupt import fast_loop
from outlive.actors.worker import Worker
from outlive.infra.bus import Bus
from outlive.infra.questions import QuestionRefused
from outlive.infra.settings import Settings
from outlive.protocol import codec
from outlive.protocol.events import StepEvent
from outlive.protocol.subjects import Subjects

harness: Final[Any] = importlib.import_module("common")
"""``mark(kind, task, step)``, ``body(task, step, sleep_ms)``, ``ready()``, ``client_loop(ops)``, ``dsn(name)``, ``NATS_URL``."""

SLOTS: Final = int(os.environ.get("PEERS_OUTLIVE_SLOTS", "50"))

app: Final = App("peer")
go: Final = app.signal("go", bool)


@app.tool(read_only=True)
async def step(task_id: str, number: int, sleep_ms: int, report: bool) -> int:
    """Write the ledger; with `report`, the time from which a subscriber's delay counts, too."""
    result: int = await harness.body(task_id, number, sleep_ms)
    if report:
        harness.mark("p", task_id, number)
    return result


durable_step: Final = step.with_options(durable="before_next")


@app.task
async def steps(task: Task, count: int, sleep_ms: int, wait: bool, report: bool) -> int:
    """`count` steps; with `wait`, one more after the signal ``go``."""
    name = task.task_id
    for number in range(1, count + 1):
        await task.call(durable_step, name, number, sleep_ms, report)
    if wait:
        harness.mark("r", name, count)
        await task.wait_for(go)
        await task.call(durable_step, name, count + 1, sleep_ms, report)
    harness.mark("d", name, count)
    return count


def settings() -> Settings:
    """Read nothing of ours from the environment: all peers are set by ``PEERS_*``."""
    return Settings(nats_url=harness.NATS_URL, postgres_dsn=harness.dsn("outlive"), slots=SLOTS)


async def worker() -> None:
    """Serve until killed."""
    async with Worker(app, settings()) as serving:
        harness.ready()
        await serving.run()


class Orders:
    """What the harness asks of a client. Commands go over plain NATS and are taken when the stream has them."""

    def __init__(self, bus: Bus, client: Client) -> None:
        """Send on this connection."""
        self._bus = bus
        self._client = client
        self._subjects = Subjects()

    async def submit(
        self, tasks: Sequence[str], steps: int, sleep_ms: int = 0, *, wait: bool = False, pub: bool = False
    ) -> None:
        """Submit tasks of so many steps."""
        body = {"count": steps, "sleep_ms": sleep_ms, "wait": wait, "report": pub}
        await self._send(tasks, "submit", {"kind": "steps", "input": body})

    async def signal(self, tasks: Sequence[str]) -> None:
        """Let waiting tasks go on."""
        await self._send(tasks, "signal", {"name": "go", "value": True})

    async def wait(self, tasks: Sequence[str]) -> None:
        """Return when these have ended."""
        for task in tasks:
            await self._client.handle(task, output=int).result()

    async def subscribe(self, task: str, steps: int) -> None:
        """Mark each step's progress event as it comes."""
        await self._taken_in(task)
        async for event in self._client.handle(task).events():
            if isinstance(event, StepEvent):
                harness.mark("q", task, event.step_id)
                if int(event.step_id) >= steps:
                    return

    async def _taken_in(self, task: str) -> None:
        while True:
            try:
                await self._client.get(task)
            except QuestionRefused:
                await asyncio.sleep(0.005)
            else:
                return

    async def _send(self, tasks: Sequence[str], verb: str, fields: dict[str, Any]) -> None:
        tenant = self._client.tenant
        for start in range(0, len(tasks), 500):
            acks = [
                self._bus.publish_tracked(
                    self._subjects.command(tenant, task, verb),
                    codec.encode({"type": verb, "command_id": f"{verb}-{task}", **fields}),
                )
                for task in tasks[start : start + 500]
            ]
            await asyncio.gather(*acks)


async def client() -> None:
    """Carry out the harness's orders, read as JSON lines."""
    async with Bus.of(settings(), name="peer client") as bus, Client(settings(), bus=bus) as asking:
        orders = Orders(bus, asking)
        await harness.client_loop(
            {each.__name__: each for each in (orders.submit, orders.signal, orders.wait, orders.subscribe)}
        )


ROLES: Final[dict[str, Callable[[], Coroutine[Any, Any, None]]]] = {"worker": worker, "client": client}

if __name__ == "__main__":
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        runner.run(ROLES[sys.argv[1]]())
