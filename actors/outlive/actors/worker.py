"""The worker: a process that hosts actors, as a tree of supervised services.

In start order, each relying on those before it (rest_for_one): heartbeat, bus, relay, journal, clerk, ingester, api,
buckets, supervisor of actors. Stopping drains: nothing new is claimed, steps in flight end within the grace, the rest is handed back
at once. A worker never installs signal handlers: the command line does, an embedding program decides itself.
"""

import asyncio
import contextlib
import json
import sys
import uuid
from collections.abc import Generator, Sequence
from datetime import datetime, timedelta
from functools import partial
from importlib import metadata
from types import TracebackType
from typing import Any, Final, Self

import anyio
import anyio.abc
import msgspec
import structlog

from outlive.actors import services
from outlive.actors.app import App
from outlive.actors.compensation import compensators
from outlive.actors.ends import WorkerUnhealthy, WorkerWornOut
from outlive.actors.hindsight import Hindsight
from outlive.actors.services import Services
from outlive.actors.supervision import ChildSpec, rest_for_one, unwrap
from outlive.actors.supervisor import Supervisor
from outlive.actors.threads import Threads
from outlive.actors.watchdog import Watchdog
from outlive.actors.world import World
from outlive.infra import embedded, migrate, sql, streams
from outlive.infra.admission import Wake
from outlive.infra.announcer import Announcer
from outlive.infra.api import ApiService
from outlive.infra.buckets import Buckets, Pause
from outlive.infra.budgets import Budgets
from outlive.infra.bus import Bus, BusError
from outlive.infra.claims import Claims
from outlive.infra.clerk import Clerk
from outlive.infra.clock import Clock
from outlive.infra.database import Pool
from outlive.infra.identities import Identities
from outlive.infra.ingester import Ingester
from outlive.infra.journal import Journal
from outlive.infra.liveness import Coroner, Fenced, Heartbeat
from outlive.infra.records import Claim, Key, Record
from outlive.infra.relay import Relay
from outlive.infra.settings import Settings
from outlive.protocol import ids
from outlive.protocol.restart import Intensity
from outlive.protocol.subjects import Subjects

FLUSH: Final = 2.0
"""Seconds at the end for what is durable to be published."""

LAST: Final = 4.5
"""Seconds beyond the grace after which a process that is a worker alone is ended by force."""

START: Final = 30.0
"""Seconds within which all services must have started."""

FROZEN: Final = 3
"""Leases after which the watchdog's last resort ends the process. One that was stopped and goes on before that can still
say that it was fenced."""

WorkerFenced = Fenced

_VERSION: Final = metadata.version("outlive")  # reads files, so once and early

_log = structlog.get_logger("outlive.worker")
_wake_due: Final = msgspec.json.Decoder(dict[str, bool])
_pauses: Final = msgspec.json.Decoder(list[Pause])
_wake_keys: Final = msgspec.json.Decoder(list[tuple[str, str]])


class Worker:
    """Runs the tasks of an app.

    Args:
        app: what it can run.
        settings: where the servers are, and limits; without URLs the live pair of the state folder is used.
        watchdog: end the process when its event loop stands still for a lease, or its end takes too long (for processes
            that are a worker alone).

    Use ``async with Worker(app, settings) as worker: await worker.run()``, or `run` alone. Entering connects; a
    failure to reach the servers is raised there.

    Raises:
        WorkerFenced: it was declared dead while it lived.
        WorkerUnhealthy: see there.
        WorkerWornOut: see there.
    """

    def __init__(self, app: App, settings: Settings | None = None, *, watchdog: bool = False) -> None:
        """See the class."""
        self.app = app
        self.settings = embedded.locate(settings or Settings.load())
        self.incarnation = uuid.UUID(ids.new_id())
        self.clock = Clock()
        self.subjects = Subjects(self.settings.prefix)
        self.supervisor: Supervisor | None = None
        self.buckets: Buckets | None = None
        self.draining = False
        self._watchdog = Watchdog() if watchdog else None
        self._kinds = dict(app.kinds)
        self._stopping = anyio.Event()
        self._ready = anyio.Event()
        self._stack = contextlib.AsyncExitStack()
        self._entered = False
        self._worn_out = ""
        self._problems: list[str] = []  # these four are what the heartbeat tells, from its own thread
        self._lags: dict[str, float] = {}
        self._last_commit: str | None = None
        self._last_command: str | None = None

    def stop(self) -> None:
        """Drain and end `run`. May be called from a signal handler; twice is once."""
        self._stopping.set()

    async def __aenter__(self) -> Self:
        """Connect, migrate, register the kinds, and start all services."""
        with _one_error():
            async with contextlib.AsyncExitStack() as stack:
                await self._enter(stack)
                self._stack = stack.pop_all()
        self._entered = True
        return self

    async def _enter(self, stack: contextlib.AsyncExitStack) -> None:
        stack.push_async_callback(_close_http)
        dsn = str(self.settings.postgres_dsn)
        await migrate.migrate(dsn)
        self._pool = await stack.enter_async_context(
            Pool(dsn, application_name=f"outlive:{self.incarnation}", size=self.settings.pool_size)
        )
        await self._register()
        self._bus = await stack.enter_async_context(Bus.of(self.settings, name="outlive worker"))
        self._announcer = Announcer(self._bus, self.subjects)
        self._hindsight = Hindsight(Claims(self._pool, self.incarnation, ()), self._announcer, self.clock)
        self._threads = Threads(self.settings.threads)
        self._group = await stack.enter_async_context(anyio.create_task_group())
        self._services = Services(self._group, {**compensators(self.app.tools.values()), **self.app.tools})
        stack.push_async_exit(self._leave)
        self._group.start_soon(self._tree)
        self._group.start_soon(self._hindsight.run)
        with anyio.move_on_after(START):
            await self._ready.wait()
            self._group.start_soon(self._watch_health)
            return
        raise WorkerUnhealthy(f"not all services had started after {START:g} s: do Postgres and NATS answer?")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        """Drain unless something failed, then stop the services in reverse order."""
        self._entered = False
        with _one_error():
            handled = await self._stack.__aexit__(kind, error, trace)
        if self._worn_out and error is None:
            raise WorkerWornOut(self._worn_out)
        return handled

    async def _leave(self, *raised: object) -> None:
        try:
            if raised == (None, None, None):
                await self._drain()
        finally:
            self._group.cancel_scope.cancel()

    async def run(self) -> None:
        """Serve until `stop`."""
        if not self._entered:
            async with self:
                await self._stopping.wait()
            return
        await self._stopping.wait()

    # --- the tree

    async def _tree(self) -> None:
        services.current.set(self._services)
        children = [
            ChildSpec("heartbeat", self._run_heartbeat, fatal=(Fenced,)),
            ChildSpec("bus", self._run_bus),
            ChildSpec("relay", self._run_relay),
            ChildSpec("journal", self._run_journal),
            ChildSpec("clerk", self._run_clerk),
            ChildSpec("ingester", self._run_ingester),
            ChildSpec("api", self._run_api),
            ChildSpec("buckets", self._run_buckets),
            ChildSpec("actors", self._run_actors),
        ]
        await rest_for_one(children, Intensity(restarts=5, period=60), started=self._ready.set)

    async def _run_heartbeat(self, status: anyio.abc.TaskStatus[None]) -> None:
        self.heartbeat = Heartbeat(
            str(self.settings.postgres_dsn), self.incarnation, self.clock, lease=self.settings.lease,
            period=self.settings.heartbeat, version=_VERSION, kinds=sorted(self._kinds),
            slots=self.settings.slots, report=self._report,
        )  # fmt: skip
        async with anyio.create_task_group() as group:
            if self._watchdog:
                group.start_soon(self._feed, self._watchdog)
            try:
                await self.heartbeat.run(task_status=status)
            except Fenced:
                if self.supervisor is not None:
                    await self.supervisor.fence(FLUSH)
                raise

    async def _run_bus(self, status: anyio.abc.TaskStatus[None]) -> None:
        while not await self._has_streams():
            await self._bus.wait_connected()
        async with anyio.create_task_group() as group:
            group.start_soon(self._announcer.run)
            wakes = {str(self.incarnation): self._hear_mail, "all": self._hear_due, "pauses": self._hear_pauses}
            for subject, hear in wakes.items():
                subscription = await self._bus.subscribe(self.subjects.wake(subject), hear)
                group.start_soon(_until_cancelled, subscription)
            status.started()
            await self._bus.run()

    async def _has_streams(self) -> bool:
        try:
            await streams.ensure(self._bus, self.subjects, self.settings)
        except BusError as error:
            _log.warning("cannot look for the streams", error=str(error))
            await asyncio.sleep(0.2)
            return False
        return True

    async def _run_relay(self, status: anyio.abc.TaskStatus[None]) -> None:
        self.relay = Relay(
            self._bus,
            self._pool,
            self.subjects,
            ensure=partial(streams.ensure, self._bus, self.subjects, self.settings),
        )
        status.started()
        await self.relay.run()

    async def _run_journal(self, status: anyio.abc.TaskStatus[None]) -> None:
        self.journal = Journal(
            str(self.settings.postgres_dsn), self.incarnation, committed=self._committed,
            live=lambda: len(self.supervisor.actors) if self.supervisor else 0,
            connections=self.settings.journal_connections,
        )  # fmt: skip
        await self.journal.run(status)

    async def _run_clerk(self, status: anyio.abc.TaskStatus[None]) -> None:
        self.clerk = Clerk(
            str(self.settings.postgres_dsn), self.incarnation, self.clock, self._announcer, committed=self._committed,
            left=self.relay.left, told=self._told, misfit=self._misfit, poll=self.settings.poll,
        )  # fmt: skip
        status.started()
        await self.clerk.run()

    async def _run_ingester(self, status: anyio.abc.TaskStatus[None]) -> None:
        self.ingester = Ingester(
            str(self.settings.postgres_dsn), self._bus, self.subjects, self.incarnation, self.settings, self._wake
        )
        status.started()
        await self.ingester.run()

    async def _run_api(self, status: anyio.abc.TaskStatus[None]) -> None:
        service = ApiService(self._pool, self._bus, self.subjects)
        status.started()
        await service.run()

    async def _run_buckets(self, status: anyio.abc.TaskStatus[None]) -> None:
        self.buckets = Buckets(
            self._pool, str(self.incarnation), self.clock, self._announcer.pauses, poll=self.settings.poll
        )
        await self.buckets.run(status)

    async def _run_actors(self, status: anyio.abc.TaskStatus[None]) -> None:
        claims = Claims(self._pool, self.incarnation, sorted(self._kinds))
        assert self.buckets is not None  # started before
        world = World(
            clock=self.clock,
            threads=self._threads,
            settings=self.settings,
            heartbeat=self.heartbeat,
            claims=claims,
            identities=Identities(self._pool, self.incarnation),
            announcer=self._announcer,
            budgets=Budgets(self._pool),
            buckets=self.buckets,
            worker=str(self.incarnation),
            signals=dict(self.app.signals),
            tools=self._services.tools,
            turned_out=self._hindsight.succeeded,
            waived=self.settings.waived,
        )
        coroner = Coroner(self._pool, self.incarnation, lease=self.settings.lease)
        self.supervisor = Supervisor(
            self._kinds, claims, self.journal, self.relay, coroner, self.ingester, self._pool, world
        )
        try:
            await self.supervisor.run(status)
        finally:
            self.supervisor = None

    async def _watch_health(self) -> None:
        """Not in the tree, so that it outlives what it watches."""
        bad_since: float | None = None
        while True:
            await asyncio.sleep(self.settings.heartbeat)
            self._wear_out()
            self._problems = self._diagnose()
            if self.supervisor is not None:
                self.supervisor.healthy = not self._problems
            now = asyncio.get_running_loop().time()
            bad_since = None if not self._problems else bad_since or now
            if bad_since is not None and now - bad_since > self.settings.patience:
                raise WorkerUnhealthy(f"unhealthy for {now - bad_since:.0f} s: {'; '.join(self._problems)}")

    def _wear_out(self) -> None:
        """Drain once too many threads hang: each is a place that only the end of the process gives back."""
        hung, limit = self._threads.abandoned, self.settings.abandoned_threads
        if hung > limit and not self._worn_out:
            self._worn_out = f"{hung} threads of synchronous tools outlived their timeouts, more than {limit}"
            _log.error("worn out: drains to be started again", reason=self._worn_out)
            self.stop()

    def _diagnose(self) -> list[str]:
        """Name what is overdue by more than three periods."""
        limit = 3 * self.settings.heartbeat
        lags = {
            "heartbeat": self.clock.boottime() - self.heartbeat.last_beat_at,
            "journal": self.journal.lag,
            "relay": self.relay.oldest,
            "ingester": self.ingester.behind,
            "loop": self.heartbeat.loop_lag,
        }
        self._lags = {name: round(seconds, 3) for name, seconds in lags.items()}
        quiet = timedelta(seconds=asyncio.get_running_loop().time() - self.journal.last_commit_at)
        self._last_commit = _iso(self.clock.now() - quiet if self.journal.commits else None)
        self._last_command = _iso(self.ingester.last_command_at)
        problems = [f"{name} is {seconds:.1f} s behind" for name, seconds in lags.items() if seconds > limit]
        if self._worn_out:
            problems.append(f"{self._worn_out}: drains to be started again")
        if not self._bus.connected:
            problems.append("NATS is out of reach")
        if self.supervisor is None:
            problems.append("services are being restarted")
        return problems

    # --- what services tell each other

    def _misfit(self, kind: str, tool: str, arguments: bytes) -> str:
        """Say why arguments do not fit a tool of ours; of another app's, the step itself will tell."""
        known = self.app.tools.get(tool) if kind in self._kinds else None
        if known is None:
            return ""
        try:
            known.decode_arguments(arguments)
        except Exception as error:  # noqa: BLE001  # a user's own type may raise anything, and show what it was given
            return str(known.arguments) if known.arguments.secrets else str(error)
        return ""

    def _committed(self, claim: Claim, records: Sequence[Record]) -> None:
        """A batch is durable: publish its events, send its answers, note its timers."""
        events = [(fact[0], fact[2]) for record in records for fact in record.facts]
        if events:
            self.relay.committed(claim, events)
        for record in records:
            for said in record.said:
                self._announcer.answer(claim.tenant, claim.task_id, *said)
            if record.attention is not None:
                status, message, reasons, at = record.attention
                self._announcer.attention(claim.key, claim.kind, status, message, at, reasons)
            if record.children and self.supervisor is not None:
                self.supervisor.due()
            state = record.state
            if state is not None and state.tell:
                self.clerk.wake()
            if state is not None and state.leave and self.supervisor is not None:
                self.supervisor.left(claim, state.due_at, self.clock)
                if self.draining and state.due_at is not None:
                    self._announcer.due()

    def _wake(self, wake: Wake) -> None:
        """The ingester of this worker took something in."""
        if wake.mail:
            self.clerk.wake()
        if self.supervisor is not None:
            if wake.due:
                self.supervisor.due()
            self.supervisor.mail(wake.owners.get(self.incarnation, ()))

    def _told(self, rows: Sequence[tuple[str, str, uuid.UUID | None]]) -> None:
        """The clerk carried news between relatives."""
        owners: dict[uuid.UUID, list[Key]] = {}
        for tenant, task_id, owner in rows:
            if owner is not None:
                owners.setdefault(owner, []).append((tenant, task_id))
        self._wake(Wake(owners=owners, due=True, mail=True))
        for owner, keys in owners.items():
            if owner != self.incarnation:
                self._group.start_soon(self._publish, self.subjects.wake(str(owner)), msgspec.json.encode(keys))

    async def _publish(self, subject: str, payload: bytes) -> None:
        with contextlib.suppress(BusError):
            await self._bus.publish(subject, payload)

    async def _hear_mail(self, message: Any) -> None:
        if self.supervisor is not None:
            self.supervisor.mail(_wake_keys.decode(message.data))

    async def _hear_pauses(self, message: Any) -> None:
        if self.buckets is not None:
            self.buckets.hear(_pauses.decode(message.data))

    async def _hear_due(self, message: Any) -> None:
        wake = _wake_due.decode(message.data)
        if wake.get("mail"):
            self.clerk.wake()
        if wake.get("due") and self.supervisor is not None:
            self.supervisor.due()

    def _report(self) -> tuple[int, bool, dict[str, Any]]:
        """What a heartbeat says (called in its thread; reads plain numbers only)."""
        supervisor = self.supervisor
        busy = 0 if supervisor is None else len(supervisor.actors)
        health = {
            "problems": self._problems, "lags": self._lags, "last_commit": self._last_commit,
            "last_command": self._last_command, "actors": busy, "abandoned_threads": self._threads.abandoned,
        }  # fmt: skip
        return busy, self.draining, health

    # --- the end

    async def _drain(self) -> None:
        self.draining = True
        if self._watchdog:  # whatever holds the end, a function that swallows its cancellation or a thread that hangs
            limit = self.settings.grace + LAST
            self._watchdog.feed(limit, limit + 0.5)
        if self.supervisor is None:
            return
        supervisor = self.supervisor
        handed_back = await supervisor.drain(self.settings.grace + 1)
        with anyio.move_on_after(FLUSH):
            await self.journal.idle()
            await self.relay.drain(FLUSH)
        _log.info("drained", handed_back=handed_back, left=len(supervisor.actors))

    async def _feed(self, watchdog: Watchdog) -> None:
        """Show that the event loop goes round."""
        lease = self.settings.lease
        try:
            while not self.draining:
                watchdog.feed(lease, FROZEN * lease)
                await asyncio.sleep(lease / 10)
        finally:
            if not self.draining:
                watchdog.stop()

    async def _register(self) -> None:
        kinds = list(self._kinds.values())
        await self._pool.execute(
            sql.load("supervisor")["register_kinds"], [kind.name for kind in kinds],
            [kind.code_version for kind in kinds], [json.dumps(kind.input_schema) for kind in kinds],
            [kind.title for kind in kinds], [kind.plans for kind in kinds],
        )  # fmt: skip


async def _close_http() -> None:
    """Close what `outlive.actors.http` keeps open for this event loop, where a tool has imported it."""
    if (http := sys.modules.get("outlive.actors.http")) is not None:
        await http.close()


def _iso(at: datetime | None) -> str | None:
    return at.isoformat() if at else None


@contextlib.contextmanager
def _one_error() -> Generator[None]:
    """Raise what is inside groups of one error."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = unwrap(group)
        raise error from error.__cause__


async def _until_cancelled(subscription: Any) -> None:
    try:
        await asyncio.sleep(float("inf"))
    finally:
        with anyio.CancelScope(shield=True), contextlib.suppress(BusError):
            await subscription.unsubscribe()
