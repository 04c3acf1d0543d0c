"""The supervisor of actors: claims tasks, takes over those of dead workers, starts actors and restarts them (one_for_one).

What it starts from is always the table: a claim, a take-over, or (once a second) what the table says is ours and is
not in memory. An actor that crashed begins again at its last checkpoint; a task that killed its workers is put in
quarantine before it gets another one.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from datetime import datetime
from random import Random
from typing import Final

import anyio
import anyio.abc
import structlog

from outlive.actors.actor import Actor, Crash, Ending
from outlive.actors.failures import failure_of
from outlive.actors.world import World
from outlive.infra import database, sql
from outlive.infra.claims import PROBATION, Claimed, Claims
from outlive.infra.clock import Clock
from outlive.infra.ingester import Ingester
from outlive.infra.journal import Journal
from outlive.infra.liveness import Coroner
from outlive.infra.records import Claim, Key
from outlive.infra.relay import Relay
from outlive.protocol.task import Failure, Reason, ReasonCode
from outlive.protocol.tools import AnyKind

CLAIM_MAX: Final = 200
_WAKE_SPREAD: Final = (
    0.005  # several workers hear of new work at once: each waits a random moment, so that all get some
)

_log = structlog.get_logger("outlive.supervisor")


class Supervisor:
    """The actors of one worker."""

    def __init__(
        self, kinds: Mapping[str, AnyKind], claims: Claims, journal: Journal, relay: Relay, coroner: Coroner,
        ingester: Ingester, pool: database.Pool, world: World,
    ) -> None:  # fmt: skip
        """Host tasks of these kinds."""
        self._kinds, self._claims, self._journal, self._relay = kinds, claims, journal, relay
        self._coroner, self._ingester, self._pool, self._world = coroner, ingester, pool, world
        self._settings = world.settings
        self._sql = sql.load("supervisor")
        self._random = Random()
        self.actors: dict[Key, Actor] = {}
        self._kept: set[Key] = set()
        self.draining = False
        self.healthy = True
        self._starting = 0
        self._due = asyncio.Event()
        self._due_soon: float | None = None  # loop time of the next timer that a task of ours was left with
        self._mail: set[Key] = set()
        self._mail_came = asyncio.Event()
        self._probation = asyncio.Semaphore(1)
        self._doubtful: set[tuple[Key, int]] = set()
        self._group: anyio.abc.TaskGroup

    # --- told from outside

    def due(self) -> None:
        """Work without an owner is due."""
        self._due.set()

    def mail(self, keys: Iterable[Key]) -> None:
        """These tasks have mail; those of other workers are none of ours."""
        self._mail.update(key for key in keys if key in self.actors)
        if self._mail:
            self._mail_came.set()

    def left(self, claim: Claim, due_at: datetime | None, clock: Clock) -> None:
        """A task was let go with a timer: look for due work then."""
        if due_at is None or claim.kind not in self._kinds:
            return
        at = asyncio.get_running_loop().time() + max(0.0, (due_at - clock.now()).total_seconds())
        if self._due_soon is None or at < self._due_soon:
            self._due_soon = at
            self._due.set()

    @property
    def busy(self) -> int:
        """Actors that do not wait, and those about to start."""
        return self._starting + sum(actor.flow.idle_since is None for actor in self.actors.values())

    async def run(self, status: anyio.abc.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            for loop in (self._claim, self._probe, self._compare, self._read_mail):
                group.start_soon(loop)
            status.started()
            try:
                await anyio.sleep_forever()
            finally:
                for actor in self.actors.values():
                    actor.fence()  # before they are cancelled: what is cut short now is no fact

    async def drain(self, grace: float) -> bool:
        """Hand every task back; True when all is handed back within the grace (in seconds)."""
        self.draining = True
        for actor in list(self.actors.values()):
            actor.drain()
        with anyio.move_on_after(grace):
            while self.actors or self._starting:  # noqa: ASYNC110  # once in a life
                await asyncio.sleep(0.005)
            return True
        return False

    async def fence(self, within: float) -> None:
        """Stop every actor, each with its word in log and audit trail: this worker was declared dead."""
        self.draining = True
        for actor in list(self.actors.values()):
            actor.fence()
        with anyio.move_on_after(within):
            while self.actors:  # noqa: ASYNC110  # once in a life
                await asyncio.sleep(0.005)

    # --- claiming

    async def _claim(self) -> None:
        while True:
            more = False
            self._due.clear()
            if not self.draining and self.healthy:
                try:
                    more = await self._claim_some()
                except database.TRANSIENT as error:
                    _log.warning("cannot claim: Postgres is out of reach", error=repr(error))
            self._evict()
            if not more:
                await self._until_due()

    async def _claim_some(self) -> bool:
        """Claim for the free slots; True when all were filled, and there may be more to claim."""
        free = min(CLAIM_MAX, self._settings.slots - self.busy)
        if free <= 0:
            return False
        with self._claiming():
            claimed = await self._claims.due(free)
            if claimed:
                self._start(claimed)
        return len(claimed) == free

    @contextmanager
    def _claiming(self) -> Generator[None]:
        """What the table may give us any moment counts as ours: a drain waits for it, to hand it back."""
        self._starting += 1
        try:
            yield
        finally:
            self._starting -= 1

    async def _until_due(self) -> None:
        """Sleep until somebody says that work is due, the next timer, or the poll."""
        pause = self._settings.poll
        loop = asyncio.get_running_loop()
        if self.busy >= self._settings.slots:
            self._world.freed.clear()
            with anyio.move_on_after(pause):
                await self._world.freed.wait()
            return
        try:
            if self.healthy and not self.draining:
                seconds = await self._claims.next_due()
                pause = pause if seconds is None else min(pause, max(0.02, seconds))
        except database.TRANSIENT:
            pass
        if self._due_soon is not None:
            pause = min(pause, max(0.0, self._due_soon - loop.time()))
            self._due_soon = None
        try:
            async with asyncio.timeout(pause):
                await self._due.wait()
        except TimeoutError:
            return
        await asyncio.sleep(self._random.uniform(0, _WAKE_SPREAD))

    def _start(self, claimed: Sequence[Claimed]) -> None:
        self._starting += len(claimed)
        self._group.start_soon(self._begin, claimed)

    async def _begin(self, claimed: Sequence[Claimed]) -> None:
        """Load what was claimed and start its actors; what cannot be loaded now is found again by `_compare`."""
        try:
            await self._claims.load(claimed)
            for task in claimed:
                self._launch(task)
        except database.TRANSIENT as error:
            _log.warning("cannot load claimed tasks now", tasks=len(claimed), error=repr(error))
        finally:
            self._starting -= len(claimed)

    def _evict(self) -> None:
        """Keep at most `slots` waiting actors: those that wait longest leave memory."""
        waiting = [actor for actor in self.actors.values() if actor.flow.idle_since is not None]
        surplus = len(waiting) - self._settings.slots
        if surplus > 0:
            waiting.sort(key=lambda actor: actor.flow.idle_since or 0.0)
            for actor in waiting[:surplus]:
                actor.evict()

    # --- hosting

    def _launch(self, task: Claimed, crashes: Sequence[Crash] = ()) -> None:
        """Put a task's actor into memory, and let it run."""
        key, line = task.claim.key, self._journal.open(task.claim)
        if task.backlog:
            self._relay.committed(task.claim, task.backlog)
        actor = Actor(task, self._kinds[task.claim.kind], line, self._world, crashes)
        if key in self.actors:
            self.actors[key].fence()  # its epoch is over
        self.actors[key] = actor
        if self.draining:
            actor.drain()
        self._group.start_soon(self._host, actor, task, crashes, name=f"actor {task.claim.task_id}")

    async def _host(self, actor: Actor, task: Claimed, crashes: Sequence[Crash]) -> None:
        """Run one task's actor to the end of this incarnation, and restart it after a crash."""
        key = task.claim.key
        try:
            await self._after(await self._live(actor, task), actor, task, crashes)
        finally:
            if self.actors.get(key) is actor:
                del self.actors[key]
        self._world.freed.set()

    async def _live(self, actor: Actor, task: Claimed) -> Ending:
        ending: Ending = "crashed"
        try:
            with actor.life:
                ending = await self._run(actor, task)
        except Exception as error:  # noqa: BLE001  # our own mistake: the task begins again at its checkpoint
            _log.exception("actor failed", task=task.claim.task_id)
            actor.crash = Crash(failure_of(error), actor.claim.steps)
            ending = "crashed"
        return ending

    async def _run(self, actor: Actor, task: Claimed) -> Ending:
        if task.deaths and task.deaths >= self._settings.restart_intensity:
            return await actor.suspend(await self._quarantine(task.claim))
        if task.deaths < PROBATION:
            return await actor.run()
        async with self._alone(actor, task.claim):
            return await actor.run()

    @asynccontextmanager
    async def _alone(self, actor: Actor, claim: Claim) -> AsyncGenerator[None]:
        """Let a task run alone among its like until it has completed a step, so that the next death is its own."""
        if not await actor.stand_by(self._probation.acquire):
            yield  # told to stop: not a line of it will run
            return
        with ExitStack() as turn:
            turn.callback(self._probation.release)
            await self._claims.alone(claim)
            async with anyio.create_task_group() as group:
                group.start_soon(_acquit, claim, turn)
                yield
                group.cancel_scope.cancel()

    async def _quarantine(self, claim: Claim) -> Reason:
        rows = await self._pool.fetch(self._sql["deaths"], claim.tenant, claim.task_id, claim.steps)
        reasons = "; ".join(f"{row['at']:%Y-%m-%d %H:%M:%S} {row['reason']}, last seen {row['place']}" for row in rows)
        return Reason(
            reason=ReasonCode.QUARANTINED, since=self._world.clock.now(), do=f"outlive resume {claim.task_id}",
            message=f"its workers died {len(rows)} times without completing a step: {reasons}. "
            f"When the cause is mended: outlive resume {claim.task_id}. To drop it: outlive cancel {claim.task_id}",
        )  # fmt: skip

    async def _after(self, ending: Ending, actor: Actor, task: Claimed, crashes: Sequence[Crash]) -> None:
        claim = task.claim
        if ending in {"ended", "left"}:
            self._relay.left(claim)
            return
        if ending == "kept":  # a thread of it may still send: whoever is next waits for the end of this process
            self._kept.add(claim.key)
            _log.warning("not handed back: a thread of it still runs", task=claim.task_id)
            return
        self._relay.forget(claim)
        if ending == "fenced":
            _log.warning("fenced", task=claim.task_id, tenant=claim.tenant, epoch=claim.epoch)
            for attempt in actor.flow.returned.values():
                self._world.turned_out(attempt)
            await self._audit(claim, "fenced", "stopped: another owner has a greater epoch")
            return
        unstorable = Failure(
            type="NotStorable", message="Postgres refused a record's content", error_class="not_storable"
        )
        crash = actor.crash or Crash(unstorable, claim.steps)
        await self._restart(claim.key, (*crashes, crash))

    async def _restart(self, key: Key, crashes: Sequence[Crash]) -> None:
        """Begin again at the last checkpoint, under a new epoch."""
        try:
            claimed = await self._claims.reclaim([key])
            await self._claims.load(claimed)
        except database.TRANSIENT:
            return  # `_compare` finds it when Postgres is back
        for task in claimed:
            self._launch(task, crashes)

    async def _audit(self, claim: Claim, what: str, detail: str) -> None:
        try:
            await self._pool.execute(
                self._sql["audit"], claim.tenant, claim.task_id, f"worker {self._world.worker}", what,
                f"epoch {claim.epoch}: {detail}",
            )  # fmt: skip
        except database.TRANSIENT:
            _log.warning("could not write to the audit trail", task=claim.task_id, what=what)

    # --- mail

    async def _read_mail(self) -> None:
        while True:
            await self._mail_came.wait()
            self._mail_came.clear()
            keys, self._mail = self._mail, set()
            actors = [self.actors[key] for key in keys if key in self.actors]
            try:
                letters = await self._claims.mail([actor.claim for actor in actors])
            except database.TRANSIENT:
                await asyncio.sleep(0.1)
                self.mail(keys)
                continue
            for actor, mail in zip(actors, letters, strict=True):
                actor.deliver(mail)

    # --- the dead, and what the table says

    async def _probe(self) -> None:
        while True:
            try:
                if dead := await self._coroner.dead():
                    await self._bury(dead)
            except database.TRANSIENT:
                await asyncio.sleep(self._settings.probe)
            await asyncio.sleep(self._settings.probe)

    async def _bury(self, dead: Mapping[uuid.UUID, str]) -> None:
        self._ingester.seize(dead)
        taken = 0
        while self.healthy and not self.draining and self.busy < 2 * self._settings.slots:
            with self._claiming():
                claimed = await self._claims.take_over(dead, CLAIM_MAX)
                if not claimed:
                    break
                taken += len(claimed)
                self._start(claimed)
        await self._claims.release(list(dead))
        await self._coroner.bury(list(dead))
        if taken:
            _log.warning("took over", tasks=taken, dead={str(k): v for k, v in dead.items()})

    async def _compare(self) -> None:
        """Once a period: start what the table gives us and is not in memory, stop what it does not, find forgotten mail."""
        while True:
            await asyncio.sleep(self._settings.poll)
            self._evict()
            try:
                owned = await self._claims.owned()
                missing = await self._doubt(owned)
                if missing:
                    with self._claiming():
                        self._start(await self._claims.reclaim(missing))
            except database.TRANSIENT:
                continue
            self.mail(
                key for key, (epoch, head) in owned.items()
                if key in self.actors and self.actors[key].claim.epoch == epoch and head > self.actors[key].claim.applied
            )  # fmt: skip

    async def _doubt(self, owned: Mapping[Key, tuple[int, int]]) -> list[Key]:
        """Compare table and memory; a difference counts when it was seen twice (a claim may be on its way)."""
        now: set[tuple[Key, int]] = set()
        for key, (epoch, _) in owned.items():
            actor = self.actors.get(key)
            if (actor is None or actor.claim.epoch < epoch) and key not in self._kept:
                now.add((key, epoch))
        gone = {
            (key, -actor.claim.epoch) for key, actor in self.actors.items()
            if key not in owned or owned[key][0] > actor.claim.epoch
        }  # fmt: skip
        sure = self._doubtful & (now | gone)
        self._doubtful = (now | gone) - sure
        for key, epoch in sure & gone:
            if key in self.actors and self.actors[key].claim.epoch == -epoch:
                self.actors[key].fence()
        return [key for key, _ in sure & now]


async def _acquit(claim: Claim, turn: ExitStack) -> None:
    """End a task's turn as soon as it has completed a step."""
    steps = claim.steps
    while claim.steps == steps:  # noqa: ASYNC110  # rare: a task whose workers have died
        await asyncio.sleep(0.02)
    turn.close()
