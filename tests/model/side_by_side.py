"""The model's store and the product's statements, side by side: the same moves, the same answers, the same rows."""

import contextlib
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Any, Final

from outlive.actors.testing import Server
from outlive.infra import intake, sql
from outlive.infra.claims import Claimed, Claims
from outlive.infra.cursor import Cursor, Deposed, Position
from outlive.infra.database import Pool
from outlive.infra.journal import Line, Link
from outlive.infra.records import Claim, Fact, Record, State
from outlive.protocol.task import Status
from tests.infra.pencil import Pencil
from tests.model.store import KIND, NOW, SUBJECTS, TENANT, CommandStream, Store

TASKS: Final = ("a", "b", "c", "d")
_LEASE: Final = 3600.0
_SLOTS: Final = 10
_ROWS: Final = """
select array(select row(task_id, status, owner, epoch, version, steps, inbox_head, applied, published, published_at, due_at is not null,
                        mail_at is not null, sweep_at is not null, last_seq) from task order by task_id) as task,
       array(select row(command_id, task_id, pos, verb, code, digest) from inbox order by command_id) as inbox,
       array(select row(owner, epoch, seq, created, at, digest) from cursor) as cursor,
       array(select row(incarnation) from worker where fenced order by incarnation) as fenced,
       array(select row(task_id, steps, count(*)) from death where steps >= 0 group by task_id, steps order by task_id, steps) as death
"""


@dataclass
class Process:
    """A worker: what it holds of the real store, and what it believes."""

    me: uuid.UUID
    kinds: list[str]
    claims: Claims
    cursor: Cursor
    link: Link
    epoch: int = 0
    """Of the command stream's cursor; 0 = it never had it."""
    expired: bool = False


@dataclass
class SideBySide:
    """One schedule; every move compares its two answers, and all rows."""

    pool: Pool
    dsn: str
    random: Random
    store: Store
    stack: contextlib.AsyncExitStack
    commands: CommandStream = field(default_factory=CommandStream)
    processes: list[Process] = field(default_factory=list[Process])
    handles: list[tuple[Process, Claim]] = field(default_factory=list[tuple[Process, Claim]])
    """Every right to write that anybody ever had, stale ones too."""
    agreed: set[tuple[str, bool]] = field(default_factory=set[tuple[str, bool]])
    """Which moves were accepted or refused, by both."""

    async def born(self, kinds: list[str]) -> Process:
        """Start a worker. It says that it is full, so that nobody leaves it a share: a claim takes all that is due."""
        me = await Pencil(self.pool, None, SUBJECTS).worker(kinds=kinds, slots=_SLOTS, busy=_SLOTS)  # type: ignore[arg-type]
        link = await Link.open(self.dsn, me, sql.load("journal"))
        self.stack.push_async_callback(link.connection.close)
        cursor = await self.stack.enter_async_context(Cursor(self.dsn, "commands", me, _LEASE))
        return Process(me, kinds, Claims(self.pool, me, kinds), cursor, link)

    async def play(self, moves: int) -> None:
        """Make so many moves."""
        table: list[tuple[int, Callable[[Process], Coroutine[Any, Any, None]]]] = [
            (6, self.send), (4, self.take), (8, self.admit), (1, self.restart), (6, self.claim), (14, self.write),
            (5, self.mark), (1, self.expire), (2, self.beat), (4, self.fence), (8, self.take_over),
        ]  # fmt: skip
        for move in self.random.choices([m for _, m in table], [w for w, _ in table], k=moves):
            await move(self.random.choice(self.processes))
            await self.compare(move.__name__)

    def agree(self, move: str, real: Any, model: Any, *, accepted: bool) -> None:
        """Both gave the same answer."""
        assert real == model, f"{move}: Postgres says {real}, the model {model}"
        self.agreed.add((move, accepted))

    async def compare(self, move: str) -> None:
        """All rows are the same."""
        found = await self.pool.fetchrow(_ROWS)
        assert found is not None
        for table, rows in self._rows().items():
            real = [tuple(row) for row in found[table]]
            assert real == rows, f"after {move}, {table}: Postgres has {real}, the model {rows}"

    def _rows(self) -> dict[str, list[tuple[Any, ...]]]:
        store, c = self.store, self.store.cursor
        return {
            "task": [
                (t.task_id, t.status, t.owner, t.epoch, t.version, t.steps, t.inbox_head, t.applied, t.published, t.published_at,
                 t.due, t.mail, t.sweep, len(t.facts)) for _, t in sorted(store.tasks.items())
            ],
            "inbox": sorted((row.command_id, row.task_id, row.pos, row.verb, row.code, row.digest) for row in store.inbox),
            "cursor": [(c.owner, c.epoch, c.seq, c.created, c.at, c.digest)],
            "fenced": [(me,) for me in sorted(store.fenced)],
            "death": sorted((t.task_id, steps, n) for t in store.tasks.values() for steps, n in t.deaths.items()),
        }  # fmt: skip

    # --- commands

    async def send(self, _: Process) -> None:
        """A client sends, or sends again, or means something else by the same id."""
        task, number = self.random.choice(TASKS), self.random.randrange(3)
        verb = self.random.choice(("submit", "submit", "pause", "resume", "cancel"))
        more = {"kind": KIND} if verb == "submit" else {}
        self.commands.publish(task, verb, command_id=f"{self.random.choice((verb, verb, 'x'))}-{task}-{number}", **more)

    async def take(self, process: Process) -> None:
        dead = self.store.fenced if self.random.random() < 0.5 else set[uuid.UUID]()
        real = await process.cursor.take(dead)
        epoch = self.store.take_cursor(process.me, free=self.store.cursor.owner in dead)
        self.agree("take", real, epoch is not None, accepted=real)
        process.epoch = epoch or process.epoch

    async def restart(self, process: Process) -> None:
        if process.epoch:
            created = f"stream {self.random.randrange(3)}"
            real = await _unless_deposed(process.cursor.restart(created))
            model = self.store.restart_cursor(process.me, process.epoch, created)
            self.agree("restart", real, model, accepted=real)

    async def admit(self, process: Process) -> None:
        """Also of a holder that was deposed, or did not hear that its last batch is durable."""
        if not process.epoch:
            return
        at: Position = process.cursor.position
        batch = self.commands.messages[at.seq : at.seq + self.random.randint(1, 4)]
        if batch:
            read = [intake.read(message, SUBJECTS, at.created, 1 << 20) for message in batch]
            real = await _unless_deposed(process.cursor.admit(read))
            model = self.store.admit(process.me, process.epoch, at.seq, batch, at.created)
            self.agree("admit", real, model, accepted=real)
            if self.random.random() < 0.2:
                process.cursor.position = at

    # --- claims

    async def claim(self, process: Process) -> None:
        real = await process.claims.due(200)
        tasks = self.store.tasks.values() if KIND in process.kinds else ()
        mine = {t.task_id for t in tasks if self.store.claim(process.me, t)}
        self.agree("claim", {c.claim.task_id for c in real}, mine, accepted=bool(mine))
        self._hold(process, real)

    async def take_over(self, process: Process) -> None:
        """Whoever takes over runs the task alone, as a worker does from the second death on: then each death counts."""
        real = await process.claims.take_over(dict.fromkeys(self.store.fenced, "gone"), 200)
        tasks = [t for t in self.store.tasks.values() if t.owner in self.store.fenced and KIND in process.kinds]
        mine = {t.task_id: t.deaths[t.steps] for t in tasks if self.store.claim(process.me, t, t.owner)}
        self.agree("take_over", {c.claim.task_id: c.deaths for c in real}, mine, accepted=bool(mine))
        for claimed in real:
            await process.claims.alone(claimed.claim)
        self._hold(process, real)

    def _hold(self, process: Process, claimed: list[Claimed]) -> None:
        self.handles += sorted(((process, c.claim) for c in claimed), key=lambda handle: handle[1].task_id)

    async def expire(self, process: Process) -> None:
        """Let a lease run out."""
        await self.pool.execute(
            "update worker set until = outlive.clock() - interval '1 second' where incarnation = $1", process.me
        )
        process.expired = True

    async def beat(self, process: Process) -> None:
        """Whoever was declared dead is told so, and another process starts."""
        beats = await self.pool.fetchrow(sql.load("liveness")["beat"], process.me, _LEASE, _SLOTS, False, "{}")
        lives = process.me not in self.store.fenced
        self.agree("beat", beats is not None, lives, accepted=lives)
        process.expired = process.expired and not lives
        if not lives:
            self.processes[self.processes.index(process)] = await self.born(process.kinds)

    async def fence(self, process: Process) -> None:
        """Declare a worker dead."""
        others = [p.me for p in self.processes if p is not process]
        dead = self.random.sample(others, 1)
        rows = await self.pool.fetch(sql.load("liveness")["fence"], process.me, dead)
        may = not process.expired and process.me not in self.store.fenced
        self.agree("fence", {row[0] for row in rows}, set(dead) if may else set(), accepted=may)
        self.store.fenced.update(dead if may else ())

    # --- journal and relay

    async def write(self, _: Process) -> None:
        """Somebody who has, or had, the right to, writes a step or leaves; not everybody hears that it is durable."""
        if not self.handles:
            return
        which = len(self.handles) - 1 - min(int(self.random.expovariate(0.4)), len(self.handles) - 1)
        process, before = self.handles[which]
        claim, task = replace(before), self.store.tasks[before.task_id]
        state, drained, record = State(status=Status.RUNNING), None, Record(steps=1)
        if self.random.random() < 0.3:
            state, record = self._leave(), Record()
        record.applied = task.inbox_head if self.random.random() < 0.7 else before.applied
        drained = record.applied if state.leave == "drained" else None
        record.state, record.facts = state, (Fact(claim.number(), "note", b"{}"),)
        line = Line(claim, lambda _: None)
        line.hand_in(record)
        written = not await process.link.batch([line.take()])
        model = self.store.write(process.me, before.epoch, before.version, task, drained_at=drained)
        move = "write" if state.leave is None else f"leave {state.leave}"
        self.agree(move, written, model, accepted=written)
        if not written:
            return
        task.facts.append(move)
        task.status, task.steps, task.applied = Status(str(state.status)), claim.steps, max(task.applied, claim.applied)
        task.published, task.published_at = max(
            (task.published, task.published_at), (claim.published, claim.published_at)
        )
        if state.leave is not None:
            task.owner, task.sweep, task.mail = None, True, task.inbox_head > claim.applied
            task.due = state.due_at is not None
        if self.random.random() < 0.9:
            self.handles[which] = (process, claim)

    def _leave(self) -> State:
        if self.random.random() < 0.03:
            return State(status=Status.SUCCEEDED, leave="always")
        due = NOW - timedelta(days=7300) if self.random.random() < 0.8 else None
        return State(status=Status.PAUSED, leave="drained" if self.random.random() < 0.5 else "always", due_at=due)

    async def mark(self, _: Process) -> None:
        """Somebody, a former owner too, says how far a task's events are in the stream."""
        if self.store.tasks:
            task = self.random.choice(list(self.store.tasks.values()))
            epoch, published = (
                max(0, task.epoch - self.random.choice((0, 0, 1))),
                self.random.randint(0, len(task.facts)),
            )
            mark = ([TENANT], [task.task_id], [epoch], [published], [10 * published])
            await self.pool.execute(sql.load("relay")["mark"], *mark)
            self.store.mark(task, epoch, published, 10 * published)


async def _unless_deposed(move: Coroutine[Any, Any, Any]) -> bool:
    try:
        await move
    except Deposed:
        return False
    return True


@contextlib.asynccontextmanager
async def side_by_side(server: Server, seed: int, bugs: frozenset[str] = frozenset()) -> AsyncGenerator[SideBySide]:
    """Three workers, one of which lacks the code, on an empty database; `bugs` are the model's."""
    async with (
        Pool(server.postgres_dsn, application_name="test") as pool,
        contextlib.AsyncExitStack() as stack,
    ):
        await Pencil(pool, None, SUBJECTS).kind(KIND)  # type: ignore[arg-type]  # writes rows only
        own = SideBySide(pool, server.postgres_dsn, Random(seed), Store(bugs), stack)
        for kinds in ([KIND], [KIND], ["other"]):
            own.processes.append(await own.born(kinds))
        yield own
