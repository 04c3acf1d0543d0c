"""What chaos and guarantee tests need: worker processes to kill, tasks to submit over plain NATS, and the proofs.

::

    async def test_a_kill_loses_nothing(shared: Server) -> None:
        async with fake_service() as service, WorkerProcess(shared, service=service) as worker:
            tasks = await submit_many(shared, "effects10", 20)
            await until(shared, "select count(*) > 30 from outlive.step")
            await worker.restart()  # SIGKILL, then a new process
            await wait_all_final(shared, tasks)
            await assert_progress_gapless(shared, tasks)
            await assert_effects_once(service, 200)

Nothing here uses the product's client or reader: submits are raw JetStream messages, the proofs read the stream and
the tables themselves.
"""

import asyncio
import contextlib
import json
import sys
import time
import uuid
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import asyncpg
import nats
import psutil
from nats.js.api import AckPolicy, ConsumerConfig, PubAck

from outlive.actors.chaoskit import processes
from outlive.actors.testing import URL_VARIABLE, FakeService, Server
from outlive.protocol.events import SEQ_HEADER
from tests.chaos import forked

ROOT: Final = Path(__file__).parents[2]


class WorkerProcess(processes.WorkerProcess):
    """A worker in a process of its own (`tests/chaos/worker_main.py`); `async with` starts it, waits, and kills it.

    Args:
        server: where it works.
        app: ``module:name``.
        service: the fake service that the app's tools call.
        failpoints: as in ``OUTLIVE_FAILPOINTS``, for its first process; a restarted one has none.
        environment: more variables, for instance ``{"OUTLIVE_LEASE": "2"}``.
        forks: it is a fork of a process that has imported everything; its memory is not all its own then.
    """

    def __init__(
        self,
        server: Server,
        app: str = "tests.chaos.apps:app",
        *,
        service: FakeService | None = None,
        failpoints: str = "",
        environment: Mapping[str, str] | None = None,
        forks: bool = True,
    ) -> None:
        own = {**server.environment, **({URL_VARIABLE: service.url} if service else {}), **(environment or {})}
        super().__init__(app, own, failpoints=failpoints)
        self._forks = forks
        self.server = server

    async def spawn(self, ready: int, log: Path, environment: Mapping[str, str]) -> processes.Process:
        if self._forks:
            return forked.start(self._app, ready, log, environment)
        with log.open("ab") as file:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.worker_main", self._app, str(ready), cwd=ROOT, env=environment,
                pass_fds=[ready], stdin=asyncio.subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            )  # fmt: skip

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"--- log of worker {self._app}\n{self.log[-20_000:]}")
        await self.close()


async def send(
    server: Server,
    task_id: str,
    verb: str,
    *,
    headers: Mapping[str, str] | None = None,
    **fields: Any,
) -> int:
    """Publish one command to the command stream; its stream sequence."""
    connection = await connect(server)
    try:
        subject = server.subjects.command(server.settings.tenant, task_id, verb)
        body = json.dumps({"type": verb, "by": "test", **fields}).encode()
        ack: PubAck = await connection.jetstream().publish(subject, body, headers=dict(headers or {}))
        return ack.seq
    finally:
        await connection.close()


async def submit_many(
    server: Server,
    kind: str,
    count: int,
    arguments: Mapping[str, Any] | None = None,
    *,
    name: str = "",
) -> list[str]:
    """Submit `count` tasks of one kind with the same input; their ids (``{name or kind}-0`` and so on)."""
    tasks = [f"{name or kind}-{n}" for n in range(count)]
    connection = await connect(server)
    stream = connection.jetstream()
    subjects, tenant = server.subjects, server.settings.tenant
    try:
        for batch in (tasks[start : start + 100] for start in range(0, count, 100)):
            bodies = {
                task: {
                    "type": "submit",
                    "command_id": f"s-{task}",
                    "by": "test",
                    "kind": kind,
                    "input": arguments or {},
                }
                for task in batch
            }
            publishing = (
                stream.publish(subjects.command(tenant, task, "submit"), json.dumps(body).encode(), timeout=10)
                for task, body in bodies.items()
            )
            await asyncio.gather(*publishing)
    finally:
        await connection.close()
    return tasks


async def signal_many(server: Server, tasks: Iterable[str], name: str, value: Any) -> None:
    """Send each task one signal."""
    connection = await connect(server)
    stream = connection.jetstream()
    subjects, tenant = server.subjects, server.settings.tenant
    try:
        for task in tasks:
            body = {"type": "signal", "command_id": str(uuid.uuid4()), "by": "test", "name": name, "value": value}
            await stream.publish(subjects.command(tenant, task, "signal"), json.dumps(body).encode())
    finally:
        await connection.close()


async def fetch(server: Server, query: str, *arguments: Any) -> list[asyncpg.Record]:
    """Rows of one query, on a connection of its own."""
    connection: Any = await asyncpg.connect(server.postgres_dsn, timeout=10)
    try:
        rows: list[asyncpg.Record] = await connection.fetch(query, *arguments)
        return rows
    finally:
        await connection.close()


async def until(server: Server, query: str, *arguments: Any, within: float = 30.0) -> Any:
    """Ask again and again until the first column of the first row is true; gives it.

    Raises:
        AssertionError: it did not become true `within` seconds; the last rows and all tasks are in the message.
    """
    end = time.monotonic() + within
    connection: Any = await asyncpg.connect(server.postgres_dsn, timeout=10)
    try:
        while True:
            rows = await connection.fetch(query, *arguments)
            if rows and rows[0][0]:
                return rows[0][0]
            if time.monotonic() > end:
                raise AssertionError(f"not within {within} s: {query}\nlast: {rows[:5]}\n{await _picture(connection)}")
            await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def wait_all_final(
    server: Server, tasks: Sequence[str], *, status: str | None = "succeeded", within: float = 60.0
) -> dict[str, str]:
    """Wait until every task has ended; statuses by task. With `status`, every one must have ended so."""
    query = (
        "select count(*) = $2::int from outlive.task where tenant = $3 and task_id = any($1) and ended_at is not null"
    )
    await until(server, query, list(tasks), len(tasks), server.settings.tenant, within=within)
    rows = await fetch(
        server,
        "select task_id, status from outlive.task where tenant = $2 and task_id = any($1)",
        list(tasks),
        server.settings.tenant,
    )
    ended = {row["task_id"]: row["status"] for row in rows}
    unlike = {task: was for task, was in ended.items() if status is not None and was != status}
    assert not unlike, f"{len(unlike)} of {len(tasks)} did not end {status}: {await _ends(server, list(unlike)[:5])}"
    return ended


async def _ends(server: Server, tasks: Sequence[str]) -> str:
    query = "select convert_from(event, 'UTF8') as event from outlive_store.fact where task_id = any($1) and type = 'status' order by task_id, seq desc"
    return "\n".join(row["event"] for row in await fetch(server, query, list(tasks)))


async def assert_progress_gapless(server: Server, tasks: Sequence[str], *, final: bool = True) -> None:
    """Each task's events are 1..n without gap, duplicate or disorder, the same in stream and history.

    Waits until the relay (or the sweep) has brought the stream up to the history. With `final`, the last event of
    every task is its end and nothing follows it.
    """
    tenant = server.settings.tenant
    every = "select bool_and(published = last_seq) from outlive.task where tenant = $1 and task_id = any($2)"
    await until(server, every, tenant, list(tasks), within=15)
    rows = await fetch(
        server,
        "select task_id, seq, event from outlive_store.fact where tenant = $1 and task_id = any($2) order by task_id, seq",
        tenant,
        list(tasks),
    )
    history: dict[str, list[tuple[int, bytes]]] = {task: [] for task in tasks}
    for row in rows:
        history[row["task_id"]].append((row["seq"], row["event"]))
    stream = await read_progress(server)
    for task in tasks:
        told = stream.get(task, [])
        numbers = [seq for seq, _ in history[task]]
        assert numbers == list(range(1, len(numbers) + 1)), f"{task}: the history is {numbers}"
        assert [seq for seq, _ in told] == numbers, f"{task}: the stream is {[seq for seq, _ in told]}, not {numbers}"
        assert told == history[task], f"{task}: an event in the stream differs from its fact"
        events = [json.loads(event) for _, event in told]
        assert [event["seq"] for event in events] == numbers, f"{task}: a number differs between header and body"
        ends = [event["seq"] for event in events if event.get("final")]
        assert not final or ends == numbers[-1:], f"{task}: {len(numbers)} events, final ones: {ends}"


async def read_progress(server: Server) -> dict[str, list[tuple[int, bytes]]]:
    """Everything in the progress stream for this tenant: (number, event) by task, in the stream's order."""
    subjects, tenant = server.subjects, server.settings.tenant
    told: dict[str, list[tuple[int, bytes]]] = {}
    connection = await connect(server)
    try:
        stream = connection.jetstream()
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, inactive_threshold=30.0)
        subscription = await stream.pull_subscribe(
            subjects.progress(tenant, "*"), stream=subjects.progress_stream, config=config
        )
        left = (await subscription.consumer_info()).num_pending or 0
        while left > 0:
            messages = await subscription.fetch(min(left, 500), timeout=10)
            left -= len(messages)
            for message in messages:
                number = int((message.headers or {})[SEQ_HEADER])
                told.setdefault(message.subject.rpartition(".")[2], []).append((number, message.data))
    finally:
        await connection.close()
    return told


@contextlib.contextmanager
def frozen(pid: int) -> Generator[None]:
    """SIGSTOP a server with all its processes, and let it go on at the end."""
    server = psutil.Process(pid)
    processes = [server, *server.children(recursive=True)]
    for process in processes:
        process.suspend()
    try:
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


async def assert_effects_once(service: FakeService, expected: int | None = None) -> None:
    """No key was counted as two effects; with `expected`, exactly so many effects with a key happened."""
    counts = await service.counts()
    twice = {key: count for key, count in counts.keys.items() if count > 1}
    assert not twice, f"{len(twice)} effects happened more than once: {list(twice.items())[:5]}"
    assert expected in {None, len(counts.keys)}, f"{len(counts.keys)} effects happened, not {expected}"


async def connect(server: Server) -> Any:
    """A plain connection to NATS."""
    return await nats.connect(server.nats_url, token=server.nats_token, connect_timeout=10)


async def _picture(connection: Any) -> str:
    summary = await connection.fetch(
        "select status, owner, count(*) from outlive_store.task group by 1, 2 order by 3 desc"
    )
    open_tasks = await connection.fetch(
        "select task_id, status, owner, epoch, version, last_seq, published, inbox_head, applied, due_at, mail_at, sweep_at,"
        " waiting_for, current_step, convert_from(reasons, 'UTF8') as reasons from outlive_store.task where ended_at is null or published < last_seq limit 5"
    )
    workers = await connection.fetch(
        "select incarnation, pid, until, busy, slots, draining, fenced from outlive_store.worker"
    )
    lines = ["tasks:", *map(str, summary), "open:", *map(str, open_tasks), "workers:", *map(str, workers)]
    return "\n".join(lines)


def some(moments: Iterable[Any], *plain: Any) -> list[Any]:
    """These moments as parameters: the plain ones in every run, all others with ``-m slow``."""
    import pytest  # workers' processes use this module as well

    return [moment if moment in plain else pytest.param(moment, marks=pytest.mark.slow) for moment in moments]
