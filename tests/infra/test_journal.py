"""The journal against a real Postgres: order, fencing, lost answers, bad content, and what a batch becomes in the tables."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import anyio
import anyio.abc
import asyncpg
import pytest

from outlive.actors.testing import Server
from outlive.infra import database, failpoints
from outlive.infra import journal as journals
from outlive.infra.journal import Batch, Journal, Line, Refused
from outlive.infra.records import (
    AnswerRow,
    AttemptRow,
    ChildRow,
    Claim,
    Fact,
    OperationRow,
    Record,
    State,
)
from tests.infra.proxy import Proxy

NOW = datetime(2030, 1, 1, tzinfo=UTC)
NUL = "a\0b"
TAKE = """
update task set owner = $1, epoch = epoch + 1 where task_id = $2
returning tenant, task_id, kind, epoch, version, last_seq, published, published_at, inbox_head, applied, steps
"""


def step(claim: Claim, name: str = "look", **more: Any) -> Fact:
    seq = claim.number()
    return Fact(seq, "step", b'{"seq":%d}' % seq, str(seq), name, "completed", b"d", **more)


def one_step(claim: Claim, name: str = "look", **more: Any) -> Record:
    fact = step(claim, name)
    return Record(facts=(fact,), steps=1, current_step=fact.step_id, point="outcome", **more)


def operation(status: str, attempt: int = 1, arguments: bytes = b"") -> OperationRow:
    ended = None if status == "started" else NOW
    return OperationRow("1", "1", "post", status, attempt, b"d", 0, arguments, NOW, None, ended)


async def _run(journal: Journal, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    await journal.run(task_status)


@dataclass
class Desk:
    """A store with tasks that belong to one worker, and that worker's journals."""

    server: Server
    connection: Any
    me: uuid.UUID = field(default_factory=uuid.uuid4)
    committed: list[tuple[str, list[int]]] = field(default_factory=list[tuple[str, list[int]]])

    async def tasks(self, count: int, *, prefix: str = "t", inbox: int = 0) -> list[Claim]:
        """Make tasks that are ours, each with so many signals in its inbox."""
        names = [f"{prefix}{n:03}" for n in range(count)]
        await self.connection.execute(
            "insert into task (tenant, task_id, kind, status, owner, epoch, digest, input, inbox_head)"
            " select 'default', t, 'k', 'running', $2, 1, '', '', $3 from unnest($1::text[]) t",
            names, self.me, inbox,
        )  # fmt: skip
        await self.connection.execute(
            "insert into inbox (tenant, command_id, task_id, pos, verb, name, digest, body)"
            " select 'default', t || '-' || p, t, p, 'signal', 'go', '', '{}'"
            " from unnest($1::text[]) t, generate_series(1, $2) p",
            names, inbox,
        )  # fmt: skip
        return [Claim("default", name, "k", 1, 0, 0, 0, 0, inbox, 0, 0) for name in names]

    @contextlib.asynccontextmanager
    async def journal(self, *, live: int = 400, connections: int = 2, dsn: str = "") -> AsyncGenerator[Journal]:
        """Run a journal."""
        journal = Journal(
            dsn or self.server.postgres_dsn, self.me, committed=self._note, live=lambda: live, connections=connections
        )  # fmt: skip
        async with anyio.create_task_group() as group:  # what ends the journal ends the test
            await group.start(_run, journal)
            yield journal
            group.cancel_scope.cancel()

    def _note(self, claim: Claim, records: Sequence[Record]) -> None:
        self.committed.append((claim.task_id, [fact.seq for record in records for fact in record.facts]))

    async def rows(self, query: str, *arguments: Any) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await self.connection.fetch(query, *arguments)]

    async def row(self, query: str, *arguments: Any) -> tuple[Any, ...]:
        [row] = await self.rows(query, *arguments)
        return row

    async def numbers(self, task_id: str) -> list[int]:
        return [row[0] for row in await self.rows("select seq from fact where task_id = $1 order by seq", task_id)]

    def told(self, task_id: str) -> list[int]:
        """Event numbers of a task in the order in which they were said to be durable."""
        return [seq for task, numbers in self.committed if task == task_id for seq in numbers]


@pytest.fixture(name="desk")
async def open_desk(shared: Server) -> AsyncIterator[Desk]:
    connection = await database.connect(shared.postgres_dsn, application_name="test")
    yield Desk(shared, connection)
    await connection.close()


# -- one task


async def test_records_of_one_task_become_one_row_in_order(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        for _ in range(5):
            line.hand_in(one_step(claim))
        assert await line.flushed()
        assert journal.commits == 1
    assert await desk.numbers("t000") == [1, 2, 3, 4, 5] == desk.told("t000")
    row = await desk.row("select version, last_seq, steps, current_step, owner from task")
    assert row == (5, 5, 5, "5", desk.me)
    assert (claim.version, line.durable) == (5, 5)


async def test_what_is_handed_in_during_a_commit_goes_with_the_next(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        failpoints.arm("outcome.before_commit", "sleep:0.05")
        first = asyncio.create_task(line.commit(one_step(claim)))
        await failpoints.reached("outcome.before_commit")
        line.hand_in(one_step(claim))
        line.hand_in(one_step(claim))
        assert await first and await desk.numbers("t000") == [1]
        assert await line.flushed()
        assert journal.commits == 2
    assert desk.told("t000") == [1, 2, 3]


async def test_an_operation_keeps_its_arguments_through_a_batch(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    lost = AttemptRow("1", "1", 1, uuid.uuid4(), NOW, None, "timeout", "its worker ended")
    async with desk.journal() as journal:
        line = journal.open(claim)
        line.hand_in(Record(operations=(operation("started", 2, b'{"n":1}'),), attempts=(lost,)))
        line.hand_in(one_step(claim, operations=(operation("succeeded", 2),)))
        await line.flushed()
        stored = "select status, attempt, arguments, epoch, worker, ended_at from operation"
        assert await desk.row(stored) == ("succeeded", 2, b'{"n":1}', 1, desk.me, NOW)
        await line.commit(Record(operations=(operation("started", 3, b""),)))
        assert await desk.row(stored) == ("started", 3, b'{"n":1}', 1, desk.me, None)
    assert await desk.rows("select attempt, reason from attempt") == [(1, "its worker ended")]


async def test_an_operation_whose_key_names_no_arguments_has_those_of_its_last_attempt(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    ask = operation("started", 1, b"old")._replace(name="clerk__model.request")
    async with desk.journal() as journal:
        line = journal.open(claim)
        await line.commit(Record(operations=(ask,)))
        line.hand_in(Record(operations=(ask._replace(status="unknown", arguments=b""),)))
        line.hand_in(Record(operations=(ask._replace(attempt=2, arguments=b"new"),)))
        line.hand_in(one_step(claim, operations=(ask._replace(status="succeeded", attempt=2, arguments=b""),)))
        await line.flushed()
        assert await desk.row("select status, attempt, arguments from operation") == ("succeeded", 2, b"new")


async def test_another_payload_under_the_same_key_is_refused(desk: Desk) -> None:
    first, second = await desk.tasks(2)
    async with desk.journal() as journal:
        lines = [journal.open(first), journal.open(second)]
        await lines[0].commit(Record(operations=(operation("started"),)))
        other = operation("succeeded")._replace(digest=b"other")
        lines[0].hand_in(one_step(first, operations=(other,)))
        lines[1].hand_in(one_step(second, operations=(other,)))  # in the same batch, of another task
        with pytest.raises(Refused) as refused:
            await lines[0].flushed()
        assert refused.value.refusal == "unstorable"
        assert await lines[1].flushed()
    assert await desk.rows("select task_id, status, digest from operation order by task_id") == [
        (first.task_id, "started", b"d"), (second.task_id, "succeeded", b"other")
    ]  # fmt: skip


async def test_answers_of_one_position_are_one_row_and_the_first_answer_stays(desk: Desk) -> None:
    [claim] = await desk.tasks(1, inbox=2)
    async with desk.journal() as journal:
        line = journal.open(claim)
        line.hand_in(Record(answers=(AnswerRow(1, "applied", "kept"),), applied=1))
        line.hand_in(one_step(claim, answers=(AnswerRow(1, taken=True),)))
        line.hand_in(Record(answers=(AnswerRow(2, "applied", "kept too"),), applied=2))
        await line.flushed()
        await line.commit(Record(answers=(AnswerRow(1, "invalid", "never"), AnswerRow(2, taken=True))))
    assert await desk.rows("select pos, code, message, taken from inbox order by pos") == [
        (1, "applied", "kept", True), (2, "applied", "kept too", True),
    ]  # fmt: skip
    assert await desk.row("select applied, version from task") == (2, 4)


async def test_rare_changes_fold_to_the_last_of_each(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        line.hand_in(Record(state=State(waiting_for="sleep", wait_until=NOW, note_done=1, note_total=9)))
        line.hand_in(Record(state=State(waiting_for="", note_done=2)))
        await line.flushed()
        row = await desk.row("select waiting_for, wait_until, note_done, note_total from task")
        assert row == (None, None, 2, 9)
        line.hand_in(Record(state=State(reasons=b"[1]", cancelling=True)))
        line.hand_in(Record(state=State(reasons=b"[]", run=2, run_from=3, input=b"new")))
        await line.flushed()
    row = await desk.row("select reasons, cancelling, run, run_from, input from task")
    assert row == (None, True, 2, 3, b"new")


async def test_a_child_is_made_once_in_the_same_transaction(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    child = ChildRow("child", "1", "k", b"d", 0, b"{}", 3, '{"a":"b"}')
    async with desk.journal() as journal:
        line = journal.open(claim)
        await line.commit(one_step(claim, children=(child,)))
        await line.commit(one_step(claim, children=(child,)))
    made = await desk.row(
        "select parent, parent_step, kind, priority, labels, due_at is not null, owner from task where task_id = 'child'"
    )
    assert made == ("t000", "1", "k", 3, '{"a": "b"}', True, None)


async def test_much_is_written_in_parts(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "BATCH_BYTES", 1000)
    one, *others = await desk.tasks(11)
    async with desk.journal(connections=1) as journal:
        line, rest = journal.open(one), [journal.open(claim) for claim in others]
        for size in (300, 300, 300, 300, 2000, 10, 10):
            line.hand_in(Record(facts=(step(one, body=b"x" * size),), steps=1))
        for each in rest:
            each.hand_in(Record(facts=(step(each.claim, body=b"x" * 400),), steps=1))
        assert all(await asyncio.gather(line.flushed(), *[each.flushed() for each in rest]))
        assert journal.commits == 3 + 4  # 3 of it, and 3 each of the others at a time
    sizes = await desk.rows("select octet_length(body) from fact where task_id = 't000' order by seq")
    assert [size for (size,) in sizes] == [300, 300, 300, 300, 2000, 10, 10]
    assert desk.told("t000") == [1, 2, 3, 4, 5, 6, 7] and line.held == 0


async def test_who_hands_in_much_waits_for_room(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        line.hand_in(Record(facts=(step(claim, body=b"x" * 2_000_000),), steps=1))
        await line.room()
        assert await desk.numbers("t000") == [1]
        for _ in range(64):
            line.hand_in(one_step(claim))
        await line.room()
        assert len(await desk.numbers("t000")) == 65


# -- leaving


async def test_a_task_that_waits_is_let_go_only_when_all_mail_is_seen(desk: Desk) -> None:
    read, unread = await desk.tasks(2, inbox=1)
    leave = State(leave="drained", due_at=NOW, waiting_for="signal go")
    async with desk.journal() as journal:
        line = journal.open(read)
        line.hand_in(Record(answers=(AnswerRow(1, "applied", ""),), applied=1))
        assert await line.commit(Record(state=leave)) and read.left
        other = journal.open(unread)
        assert not await other.commit(Record(state=State(leave="drained", due_at=NOW)))
        assert not unread.left and unread.refused is None and unread.inbox_head == 1
        assert await other.commit(one_step(unread)), "it goes on as if it had never asked"
    assert await desk.row("select owner, due_at, mail_at, sweep_at is not null from task where task_id = 't000'") == (
        None, NOW, None, True,
    )  # fmt: skip
    assert await desk.row("select owner, due_at, version from task where task_id = 't001'") == (desk.me, None, 2)


async def test_mail_that_is_applied_while_a_leave_is_handed_in_keeps_the_task(desk: Desk) -> None:
    # Both would go in one batch: the table would say that all mail is seen and nobody would ever act on it.
    [claim] = await desk.tasks(1, inbox=1)
    async with desk.journal(connections=1) as journal:
        line = journal.open(claim)
        leaving = asyncio.create_task(line.commit(Record(state=State(leave="drained"))))
        await asyncio.sleep(0)
        line.hand_in(Record(answers=(AnswerRow(1, "applied", ""),), applied=1))
        assert not await leaving
        assert not claim.left
        assert await line.commit(one_step(claim))
    assert await desk.row("select owner, applied, version from task") == (desk.me, 1, 3)


async def test_leaving_with_unseen_mail_calls_the_clerk(desk: Desk) -> None:
    [claim] = await desk.tasks(1, inbox=1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        final = one_step(claim, state=State(status="succeeded", leave="always", tell=True))
        assert await line.commit(final) and claim.left
    row = await desk.row(
        "select status, owner, mail_at is not null, tell_at is not null, ended_at is not null from task"
    )
    assert row == ("succeeded", None, True, True, True)


# -- fencing


async def test_a_fenced_task_is_refused_and_the_others_of_its_batch_are_not(desk: Desk) -> None:
    claims = await desk.tasks(20)
    async with desk.journal(connections=1) as journal:
        lines = [journal.open(claim) for claim in claims]
        await asyncio.gather(*[line.commit(one_step(line.claim)) for line in lines])
        await desk.connection.execute("update task set epoch = 2, owner = $1 where task_id = 't007'", uuid.uuid4())
        before = journal.commits
        done = await asyncio.gather(
            *[line.commit(one_step(line.claim, operations=(operation("started"),))) for line in lines],
            return_exceptions=True,
        )
        assert journal.commits == before + 1, "one batch"
        assert [i for i, result in enumerate(done) if result is not True] == [7]
        refused = done[7]
        assert isinstance(refused, Refused) and refused.refusal == "fenced" and "now epoch 2" in str(refused)
        with pytest.raises(Refused):
            lines[7].hand_in(one_step(claims[7]))
        assert await lines[6].commit(one_step(claims[6]))
    assert await desk.row("select version, last_seq from task where task_id = 't007'") == (1, 1)
    assert await desk.numbers("t007") == [1] and await desk.numbers("t006") == [1, 2, 3]
    assert await desk.rows("select 1 from operation where task_id = 't007'") == []
    assert len(await desk.rows("select 1 from operation")) == 19


@pytest.mark.parametrize(
    "change",
    ["epoch = epoch + 1", "owner = null", "owner = gen_random_uuid()", "version = version + 2"],
)
async def test_every_part_of_the_right_to_write_is_checked(desk: Desk, change: str) -> None:
    [claim] = await desk.tasks(1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        await line.commit(one_step(claim))
        await desk.connection.execute(f"update task set {change}")  # noqa: S608  # reason: from the list above
        before = await desk.row("select * from task")
        with pytest.raises(Refused, match="fenced"):
            await line.commit(one_step(claim, answers=(AnswerRow(1, taken=True),)))
    assert await desk.row("select * from task") == before
    assert await desk.numbers("t000") == [1]


async def test_a_refusal_takes_all_that_was_handed_in_behind_it(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    async with desk.journal() as journal:
        line = journal.open(claim)
        failpoints.arm("outcome.before_commit", "sleep:0.1")
        first = asyncio.create_task(line.commit(one_step(claim)))
        await failpoints.reached("outcome.before_commit")
        behind = [asyncio.create_task(line.commit(one_step(claim))) for _ in range(3)]
        await desk.connection.execute("update task set epoch = 2")
        results = await asyncio.gather(first, *behind, return_exceptions=True)
        with pytest.raises(Refused):
            await line.flushed()  # asked for after the refusal
    assert [isinstance(result, Refused) for result in results] == [True] * 4
    assert await desk.numbers("t000") == []


# -- content that cannot be stored


@pytest.mark.parametrize(
    "bad",
    [
        lambda claim: one_step(claim, name=NUL),
        lambda claim: one_step(claim, name="\ud800"),
        lambda claim: one_step(claim, state=State(note_done=2**70)),
        lambda claim: one_step(claim, children=(ChildRow("c", "1", "k", b"", 0, b"", 0, '{"a":"\\u0000"}'),)),
        lambda claim: Record(facts=(step(claim)._replace(seq=1), step(claim)._replace(seq=1))),
    ],
    ids=["NUL in a text", "lone surrogate", "number too large", "label", "a number twice"],
)
async def test_one_unstorable_record_among_200_stands_alone(desk: Desk, bad: Any) -> None:
    claims = await desk.tasks(200)
    async with desk.journal(connections=1) as journal:
        lines = [journal.open(claim) for claim in claims]
        records = [bad(line.claim) if i == 117 else one_step(line.claim) for i, line in enumerate(lines)]
        done = await asyncio.gather(
            *[line.commit(record) for line, record in zip(lines, records, strict=True)], return_exceptions=True
        )
        assert [i for i, result in enumerate(done) if result is not True] == [117]
        refused = done[117]
        assert isinstance(refused, Refused) and refused.refusal == "unstorable" and refused.detail
        again = [line for i, line in enumerate(lines) if i != 117]
        assert all(await asyncio.gather(*[line.commit(one_step(line.claim)) for line in again]))
    assert await desk.row("select version, last_seq from task where task_id = 't117'") == (0, 0)
    assert await desk.row("select count(*), min(version), max(version) from task where task_id <> 't117'") == (
        199,
        2,
        2,
    )
    assert len(await desk.rows("select 1 from fact")) == 398


# -- the answer to a commit is lost


async def test_a_commit_whose_answer_is_lost_counts_once(desk: Desk) -> None:
    claims = await desk.tasks(30, inbox=1)
    async with (
        Proxy(desk.server.postgres_dsn) as proxy,
        desk.journal(dsn=proxy.url, connections=1) as journal,
    ):
        lines = [journal.open(claim) for claim in claims]
        await asyncio.gather(*[line.commit(one_step(line.claim)) for line in lines])
        for line in lines:
            line.hand_in(one_step(line.claim))
            line.hand_in(one_step(line.claim, operations=(operation("started", 1, b"a"),)))
        # One of them leaves in the same batch: applied although nobody owns it any more.
        lines[3].hand_in(Record(applied=1, state=State(leave="drained", due_at=NOW)))
        proxy.answers_left = 0
        waiting = [asyncio.create_task(line.flushed()) for line in lines]
        while await desk.row("select min(version) from task") != (3,):  # noqa: ASYNC110  # reason: a fact of the server
            await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        proxy.answers_left = None
        proxy.cut()
        assert all(await asyncio.gather(*waiting))
        assert claims[3].left and all(claim.refused is None for claim in claims)
        assert await lines[0].commit(one_step(claims[0]))
    assert await desk.row("select count(*), count(distinct (task_id, seq)) from fact") == (91, 91)
    assert desk.told("t000") == [1, 2, 3, 4] and desk.told("t003") == [1, 2, 3]
    assert len(await desk.rows("select 1 from operation")) == 30


async def test_a_connection_killed_at_any_moment_loses_and_repeats_nothing(desk: Desk) -> None:
    claims = await desk.tasks(20)
    stop = asyncio.Event()

    async def killer() -> None:
        while not stop.is_set():
            await asyncio.sleep(random.uniform(0.03, 0.12))
            await desk.connection.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1",
                f"outlive:{desk.me}",
            )

    async def work(line: Line) -> None:
        for n in range(60):
            line.hand_in(one_step(line.claim))
            if n % 3 == 0:
                await line.flushed()
        await line.flushed()

    async with desk.journal(live=20) as journal:
        killing = asyncio.create_task(killer())
        await asyncio.gather(*[work(journal.open(claim)) for claim in claims])
        stop.set()
        await killing
    for claim in claims:
        assert await desk.numbers(claim.task_id) == list(range(1, 61)) == desk.told(claim.task_id)
    assert await desk.row("select min(version), max(version), min(steps), max(last_seq) from task") == (60, 60, 60, 60)


async def test_records_wait_through_an_outage_and_a_task_taken_meanwhile_is_fenced(desk: Desk) -> None:
    kept, taken = await desk.tasks(2)
    async with Proxy(desk.server.postgres_dsn) as proxy, desk.journal(dsn=proxy.url) as journal:
        lines = [journal.open(kept), journal.open(taken)]
        await asyncio.gather(*[line.commit(one_step(line.claim)) for line in lines])
        proxy.refuse = True
        proxy.cut()
        waiting = [asyncio.create_task(line.commit(one_step(line.claim))) for line in lines]
        await asyncio.sleep(0.3)
        assert not any(task.done() for task in waiting) and journal.lag > 0.2
        await desk.connection.execute("update task set epoch = 2, owner = gen_random_uuid() where task_id = 't001'")
        proxy.refuse = False
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert results[0] is True
    assert isinstance(results[1], Refused) and results[1].refusal == "fenced"


# -- several writers


async def test_writers_over_the_same_tasks_in_other_order_never_deadlock(desk: Desk) -> None:
    # Both say that they are the same owner, so their batches lock the same rows; the version refuses one of each pair.
    claims = await desk.tasks(60)
    async with desk.journal(connections=1) as one, desk.journal(connections=1) as other:

        async def write(journal: Journal, order: Sequence[Claim]) -> None:
            for round_ in range(15):
                lines = [journal.open(Claim(*c.key, "k", 1, round_, round_, 0, 0, 0, 0, round_)) for c in order]
                for line in lines:
                    line.hand_in(one_step(line.claim))
                await asyncio.gather(*[line.flushed() for line in lines], return_exceptions=True)

        await asyncio.gather(write(one, claims), write(other, claims[::-1]))
    assert await desk.row("select deadlocks from pg_stat_database where datname = current_database()") == (0,)
    assert await desk.row("select count(*) from fact") == await desk.row("select sum(version) from task") == (900,)


async def test_owners_that_take_tasks_from_each_other_leave_one_story(desk: Desk) -> None:
    """Three workers, ten tasks, take-overs all the time: whatever was refused, each task's numbers have no gap."""
    names = [claim.task_id for claim in await desk.tasks(10)]
    refusals: list[str | None] = []

    async def keep(pool: database.Pool, journal: Journal, me: uuid.UUID) -> None:
        """Take a task from whoever has it, and write until somebody takes it away."""
        claim = Claim(*(await pool.fetchrow(TAKE, me, random.choice(names)) or ()))
        line = journal.open(claim)
        with contextlib.suppress(Refused):
            for _ in range(random.randint(1, 6)):
                line.hand_in(one_step(claim))
                await asyncio.sleep(random.choice((0, 0.001)))
            await line.flushed()
        refusals.append(claim.refused)

    async def work(worker: Desk) -> None:
        async with worker.journal() as journal, anyio.create_task_group() as group:
            for _ in range(250):
                group.start_soon(keep, pool, journal, worker.me)
                await asyncio.sleep(0.002)

    async with database.Pool(desk.server.postgres_dsn, application_name="test", size=4) as pool:
        await asyncio.gather(*[work(Desk(desk.server, desk.connection)) for _ in range(3)])
    assert set(refusals) == {None, "fenced"} and refusals.count("fenced") > 20, refusals.count("fenced")
    for name in names:
        numbers = await desk.numbers(name)
        assert numbers == list(range(1, len(numbers) + 1))
        assert (
            await desk.row("select version, last_seq, steps from task where task_id = $1", name) == (len(numbers),) * 3
        )


async def test_one_task_is_never_on_two_connections_at_a_time(desk: Desk) -> None:
    claims = await desk.tasks(16)
    flying: set[str] = set()
    overlaps = 0
    async with desk.journal(live=16, connections=3) as journal:
        original = Batch.done

        take = Line.take

        def watched_take(line: Line) -> Batch:
            nonlocal overlaps
            overlaps += line.claim.task_id in flying
            flying.add(line.claim.task_id)
            return take(line)

        def watched_done(batch: Batch) -> None:
            flying.discard(batch.line.claim.task_id)
            original(batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Line, "take", watched_take)
            patch.setattr(Batch, "done", watched_done)

            async def work(line: Line) -> None:
                for _ in range(30):
                    line.hand_in(one_step(line.claim))
                    await asyncio.sleep(0)
                await line.flushed()

            await asyncio.gather(*[work(journal.open(claim)) for claim in claims])
    assert overlaps == 0
    assert await desk.row("select count(*) from fact") == (480,)


async def test_an_error_that_is_no_fault_of_the_content_ends_the_journal(desk: Desk) -> None:
    [claim] = await desk.tasks(1)
    journal = Journal(desk.server.postgres_dsn, desk.me, committed=lambda *_: None, live=lambda: 1, connections=1)
    running = asyncio.create_task(journal.run())
    line = journal.open(claim)
    await line.commit(one_step(claim))
    await desk.connection.execute("alter table fact rename to gone")
    line.hand_in(one_step(claim))
    with pytest.raises(ExceptionGroup) as group:
        await asyncio.wait_for(running, 5)
    assert group.value.subgroup(asyncpg.UndefinedTableError)
