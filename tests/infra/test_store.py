import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import msgspec
import pytest

from outlive.actors.testing import Server
from outlive.infra import happenings, sql
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.store import Store
from outlive.protocol import api
from outlive.protocol.answers import Code
from outlive.protocol.operations import WordRecord
from outlive.protocol.task import Failure, Reason, ReasonCode, Status
from tests.infra.pencil import START, Pencil

VIEWS = {
    "task": "tenant task_id kind status cancelling priority labels parent steps current_step waiting_for wait_until done total owner epoch "
    "last_seq published created_at updated_at ended_at",
    "step": "tenant task_id step_id name status attempt took wait_until seq at item",
    "operation": "tenant task_id step_id operation_id key name status attempts digest epoch worker started_at deadline ended_at note",
    "attempt": "tenant task_id step_id operation_id attempt worker started_at ended_at error_class reason wait_until",
    "waiting": "tenant task_id kind status waiting_for wait_until reasons since",
}  # fmt: skip


@pytest.fixture
async def pencil(shared: Server) -> AsyncIterator[Pencil]:
    async with (
        Bus.of(shared.settings, name="test") as bus,
        Pool(shared.postgres_dsn, application_name="test", size=4) as pool,
    ):
        yield Pencil(pool, bus, shared.subjects)


@pytest.fixture
def store(pencil: Pencil) -> Store:
    return Store(pencil.pool)


def value(raw: Any) -> Any:
    return msgspec.json.decode(raw)


async def operation(pencil: Pencil, step_id: str, status: str, **columns: Any) -> None:
    row: dict[str, Any] = {
        "tenant": "default", "task_id": "t", "step_id": step_id, "operation_id": "1", "name": "send_mail", "status": status, "attempt": 2,
        "epoch": 1, "worker": "018f0000-0000-7000-8000-000000000001", "digest": b"d" * 16, "arguments": b'{"to":"me"}', "started_at": START,
    }  # fmt: skip
    await pencil.insert("operation", **{**row, **columns})


async def test_a_running_task_tells_what_is_done_and_what_it_does(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t", current_step="7", labels='{"team":"blue"}', priority=3)
    await pencil.steps(claim, *"abcdef")
    await operation(pencil, "7", "started")
    record = await store.task("default", "t")
    assert record is not None
    assert (record.status, record.kind, record.priority, record.labels) == (
        Status.RUNNING,
        "collect",
        3,
        {"team": "blue"},
    )
    assert (record.done.count, record.done.last) == (6, list("bcdef"))
    assert record.doing == "step 7 (send_mail)"
    assert value(record.input) == {"folder": "src"}
    assert (record.result, record.failure, record.needs) == (None, None, [])


async def test_another_tenants_task_is_no_task(pencil: Pencil, store: Store) -> None:
    await pencil.task("t")
    assert await store.task("other", "t") is None
    assert await store.events("other", "t") is None
    assert await store.checkpoint("other", "t") is None
    assert await store.why("other", "t") is None
    assert not (await store.tasks("other", api.List())).tasks


async def test_a_result_is_the_final_facts_body(pencil: Pencil, store: Store) -> None:
    await pencil.end(await pencil.task("t"), body=b'{"n":123456789012345678901234567890}')
    record = await store.task("default", "t")
    assert record is not None
    assert value(record.result) == {"n": 123456789012345678901234567890}
    assert record.doing is None
    without = await store.task("default", "t", with_input=False, with_result=False)
    assert without is not None
    assert without.result is None
    assert without.input is None


async def test_a_failure_is_told_with_its_type(pencil: Pencil, store: Store) -> None:
    failure = Failure(type="KeyError", message="'x'", step_id="3")
    await pencil.end(await pencil.task("t"), Status.FAILED, msgspec.json.encode(failure))
    record = await store.task("default", "t", with_result=False)
    assert record is not None
    assert record.failure == failure
    assert record.result is None


async def test_reasons_become_commands_to_type(pencil: Pencil, store: Store) -> None:
    reason = Reason(reason=ReasonCode.OPERATOR, since=START, do="outlive resume t")
    await pencil.task("t", "paused", reasons=msgspec.json.encode([reason]))
    await pencil.task("u")
    page = await store.waiting("default", api.Waiting())
    assert [(task.task_id, task.needs, task.reasons) for task in page.tasks] == [("t", ["outlive resume t"], [reason])]


async def test_pages_give_every_task_once_newest_first(pencil: Pencil, store: Store) -> None:
    for n in range(7):  # four of them of the same moment
        await pencil.task(f"t{n}", created_at=START + timedelta(seconds=max(n - 3, 0)))
    seen: list[str] = []
    question = api.List(limit=3)
    while True:
        page = await store.tasks("default", question)
        seen += [task.task_id for task in page.tasks]
        if page.after is None:
            break
        question = msgspec.structs.replace(question, after=page.after)
    assert seen == ["t6", "t5", "t4", "t0", "t1", "t2", "t3"]


async def test_lists_are_filtered_by_all_that_is_asked(pencil: Pencil, store: Store) -> None:
    await pencil.task("a", labels='{"x":"1","y":"2"}')
    await pencil.task("b", "queued", labels='{"x":"1"}')
    await pencil.task("c", kind="other", parent="a")

    async def ids(**question: Any) -> list[str]:
        return sorted(task.task_id for task in (await store.tasks("default", api.List(**question))).tasks)

    assert await ids() == ["a", "b", "c"]
    assert await ids(labels={"x": "1"}) == ["a", "b"]
    assert await ids(labels={"x": "1"}, status=[Status.QUEUED, Status.PAUSED]) == ["b"]
    assert await ids(kind="other") == ["c"]
    assert await ids(parent="a") == ["c"]
    with pytest.raises(ValueError, match="isoformat"):
        await store.tasks("default", api.List(after="x"))


async def test_event_pages_are_cut_by_bytes_and_follow_each_other(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t")
    facts = await pencil.say(claim, 100, publish=False)
    seen: list[bytes] = []
    start: int | None = 1
    while start is not None:
        page = await store.events("default", "t", start, 2000)
        assert page is not None
        assert page.events
        assert sum(len(bytes(event)) for event in page.events) <= 2000
        seen += [bytes(event) for event in page.events]
        start = page.next
    assert seen == [fact.event for fact in facts]
    after = await store.events("default", "t", 101)
    assert after == api.EventPage(events=[], last_seq=100)


async def test_an_event_that_fits_no_page_is_read_in_pieces(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t")
    await pencil.say(claim, publish=False)
    big = happenings.note(claim, START, "n", "x" * 5000)
    await pencil.write(claim, [big])
    page = await store.events("default", "t", 2, 1000)
    assert page is not None
    assert (page.events, page.large, page.next) == ([], 2, None)
    pieces = b""
    while len(pieces) < len(big.event):
        piece = await store.piece("default", api.Slice(task_id="t", part="event", seq=2, offset=len(pieces)), 1000)
        assert piece is not None
        assert piece.total == len(big.event)
        pieces += piece.data
    assert pieces == big.event


async def test_pieces_of_input_result_and_nothing(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t")
    await pencil.steps(claim, "a", result=b'"step"')
    assert await store.piece("default", api.Slice(task_id="t"), 10) is None  # not ended
    await pencil.end(claim, body=b'"whole"')
    for question, data in (
        (api.Slice(task_id="t", part="input"), b'{"folder":"src"}'),
        (api.Slice(task_id="t", part="result"), b'"whole"'),
        (api.Slice(task_id="t", part="result", seq=1), b'"step"'),
        (api.Slice(task_id="t", part="result", offset=5), b'e"'),
    ):
        assert await store.piece("default", question, 100) == api.Piece(
            total=len(data) if not question.offset else 7, data=data
        )
    assert await store.piece("default", api.Slice(task_id="t", part="event", seq=9), 10) is None
    assert await store.piece("default", api.Slice(task_id="x", part="input"), 10) is None


async def test_a_checkpoint_has_what_is_needed_to_go_on(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t", current_step="3")
    await pencil.steps(claim, "a", "b", result=b'["x"]')
    await operation(pencil, "1", "succeeded")
    await operation(pencil, "3", "unknown")
    page = await store.checkpoint("default", "t")
    assert page is not None
    checkpoint = page.checkpoint
    assert (checkpoint.checkpoint_id, checkpoint.step_index, value(checkpoint.input)) == ("t.2", 2, {"folder": "src"})
    assert [(step.step_id, step.name, step.digest) for step in checkpoint.completed_steps] == [
        ("1", "a", "64" * 16), ("2", "b", "64" * 16),
    ]  # fmt: skip
    assert {step: value(result) for step, result in checkpoint.tool_results.items()} == {"1": ["x"], "2": ["x"]}
    assert checkpoint.pending_step is not None
    assert (checkpoint.pending_step.step_id, checkpoint.pending_step.status, checkpoint.pending_step.attempt) == (
        "3",
        "unknown",
        2,
    )
    assert value(checkpoint.pending_step.arguments) == {"to": "me"}


async def test_a_checkpoint_of_a_waiting_task_names_what_it_waits_for(pencil: Pencil, store: Store) -> None:
    await pencil.task("t", current_step="3", waiting_for="signal go", wait_until=START)
    page = await store.checkpoint("default", "t")
    assert page is not None
    assert page.checkpoint.pending_step is not None
    assert (page.checkpoint.pending_step.name, page.checkpoint.pending_step.wait_until) == ("signal go", START)


async def test_large_results_are_named_and_left_out_of_a_checkpoint(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t")
    await pencil.steps(claim, "a")
    await pencil.steps(claim, "b", result=json.dumps("x" * 3000).encode())
    await pencil.steps(claim, "c")
    page = await store.checkpoint("default", "t", limit_bytes=4000)
    assert page is not None
    assert (list(page.checkpoint.tool_results), page.large) == (["1", "3"], [2])
    assert [step.name for step in page.checkpoint.completed_steps] == ["a", "b", "c"]


async def test_a_new_run_forgets_the_steps_of_the_former_one(pencil: Pencil, store: Store) -> None:
    claim = await pencil.task("t")
    await pencil.steps(claim, "a", "b")
    await pencil.pool.execute("update task set run = 2, run_from = 2, steps = 0")
    await pencil.steps(claim, "c")
    page, record = await store.checkpoint("default", "t"), await store.task("default", "t")
    assert page is not None
    assert record is not None
    assert [step.name for step in page.checkpoint.completed_steps] == ["c"]
    assert (record.done.count, record.done.last) == (1, ["c"])


async def test_the_ledger_comes_with_attempts_and_in_pages(pencil: Pencil, store: Store) -> None:
    await pencil.task("t")
    for n in "123":
        await operation(pencil, n, "succeeded", ended_at=START)
    lost = {
        "worker": "018f0000-0000-7000-8000-000000000001",
        "started_at": START,
        "error_class": "timeout",
        "reason": "no answer",
    }
    await pencil.insert("attempt", tenant="default", task_id="t", step_id="2", operation_id="1", attempt=1, **lost)
    first = await store.operations("default", api.Operations(task_id="t", limit=2))
    assert [(one.key, one.attempts) for one in first.operations] == [("default/t:1:1", 2), ("default/t:2:1", 2)]
    assert [(one.step_id, one.attempt, one.reason) for one in first.attempts] == [
        ("1", 2, "succeeded"), ("2", 1, "no answer"), ("2", 2, "succeeded"),
    ]  # fmt: skip
    second = await store.operations("default", api.Operations(task_id="t", limit=2, after=first.after))
    assert [one.step_id for one in second.operations] == ["3"]
    assert [one.step_id for one in second.attempts] == ["3"]
    last = await store.operations("default", api.Operations(task_id="t", after=second.after))
    assert (last.operations, last.after) == ([], None)


async def test_the_ledger_says_what_people_said(pencil: Pencil, store: Store) -> None:
    await pencil.task("t")
    for n in "12":
        await operation(pencil, n, "succeeded", ended_at=START)
    row = {"tenant": "default", "task_id": "t", "digest": b"", "by": "ann", "decided_at": START}
    letters = [
        ("approve", {"operation_id": "1", "reason": "fine"}, "applied", False),
        ("reject", {"operation_id": "1"}, "stale", True),
        ("resolve", {"operation_id": "2:1", "verdict": "give_up", "reference": "T-7"}, "applied", True),
        ("resolve", {"operation_id": "2:2", "verdict": "give_up"}, "applied", True),
        ("approve", {"operation_id": "3"}, "applied", True),
    ]
    for pos, (verb, body, code, claimed) in enumerate(letters, 1):
        name = str(body["operation_id"]).partition(":")[0]
        raw = json.dumps({"type": verb, **body}).encode()
        await pencil.insert(
            "inbox", command_id=f"c{pos}", pos=pos, verb=verb, name=name, code=code, claimed=claimed, body=raw, **row
        )
    page = await store.operations("default", api.Operations(task_id="t"))
    assert page.words == [
        WordRecord(
            step_id="1", operation_id="1", verb="approve", at=START, by="ann", proven=True, reason="fine"
        ),
        WordRecord(
            step_id="2", operation_id="1", verb="resolve", at=START, by="ann", verdict="give_up", reference="T-7"
        ),
    ]  # fmt: skip


async def test_a_commands_answer_is_found_by_its_id(pencil: Pencil, store: Store) -> None:
    row = {"tenant": "default", "task_id": "t", "verb": "pause", "digest": b"\1\2", "body": b"{}", "by": "me"}
    await pencil.insert("inbox", command_id="c1", code="too_late", message="ended", decided_at=START, **row)
    await pencil.insert("inbox", command_id="c2", **row)
    decided, pending = await store.command("default", "c1"), await store.command("default", "c2")
    assert decided is not None
    assert decided.answer is not None
    assert (decided.digest, decided.by) == ("0102", "me")
    assert (decided.answer.ok, decided.answer.code, decided.answer.message) == (False, Code.TOO_LATE, "ended")
    assert pending is not None
    assert pending.answer is None
    assert await store.command("default", "c3") is None


async def test_kinds_count_their_living_workers(pencil: Pencil, store: Store) -> None:
    await pencil.kind("collect", title="Collect")
    await pencil.kind("other")
    await pencil.worker()
    await pencil.worker(fenced=True)
    await pencil.worker(until=START)
    assert [(kind.name, kind.title, kind.workers) for kind in await store.kinds()] == [
        ("collect", "Collect", 1),
        ("other", None, 0),
    ]


async def test_health_shows_living_workers_and_how_long_work_waits(pencil: Pencil, store: Store) -> None:
    report, taken_in = await store.health("S")
    assert (report.workers, report.due_for, report.mail_for, report.unpublished_for, report.ingester, taken_in) == (
        [], None, None, None, None, None,
    )  # fmt: skip
    mine = await pencil.worker(health='{"lag": 0.1}')
    await pencil.insert("cursor", stream="S", owner=mine, until=report.at + timedelta(hours=1), seq=17)
    now = report.at
    await pencil.task("t", due_at=now - timedelta(seconds=9), mail_at=now, sweep_at=now + timedelta(hours=1))
    report, taken_in = await store.health("S")
    assert [(worker.pid, value(worker.health)) for worker in report.workers] == [(4711, {"lag": 0.1})]
    assert report.due_for is not None
    assert 9 <= report.due_for < 60
    assert report.mail_for is not None
    assert (report.unpublished_for, report.ingester, taken_in) == (None, str(mine), 17)


async def test_dead_letters_are_listed_until_resolved(pencil: Pencil, store: Store) -> None:
    row = {"tenant": "default", "subject": "s", "stream_seq": 1, "reason": "not JSON", "body": b"abc"}
    for resolved in (None, START, None):
        await pencil.insert("dead_letter", resolved_at=resolved, **row)
    page = await store.dead_letters("default", api.DeadLetters(limit=1))
    assert [(letter.reason, letter.size) for letter in page.dead_letters] == [("not JSON", 3)]
    assert page.after is not None
    rest = await store.dead_letters("default", api.DeadLetters(after=page.after))
    assert len(rest.dead_letters) == 1
    assert rest.after is None


@pytest.mark.parametrize(("view", "columns"), VIEWS.items())
async def test_views_are_stable(pencil: Pencil, view: str, columns: str) -> None:
    await pencil.task("t", "paused", reasons=b"[]")
    rows = await pencil.pool.fetch(
        "select column_name from information_schema.columns where table_schema = 'outlive' and table_name = $1 order by ordinal_position", view
    )  # fmt: skip
    assert [row[0] for row in rows] == columns.split()
    await pencil.pool.fetch(f"select {', '.join(columns.split())} from outlive.{view}")  # noqa: S608  # of this file


@pytest.mark.parametrize("view", VIEWS)
async def test_views_cannot_be_written(pencil: Pencil, view: str) -> None:
    await pencil.task("t", "paused")
    with pytest.raises(asyncpg.PostgresError, match=r"view|permission|not allowed"):
        await pencil.pool.execute(f"update outlive.{view} set tenant = 'x'")  # noqa: S608  # of this file


async def test_statements_read_big_tables_only_by_index(pencil: Pencil) -> None:
    arguments: dict[str, str] = {
        "records": "'default', array['t'], true, true", "page": "'default', null, '', array[]::text[], null, null, '{}', 50",
        "plan": "'default', 't', 20", "events": "'default', 't', 1, 1000, 100", "checkpoint": "'default', 't'", "steps": "'default', 't', 0, 1000, 100, 100",
        "operations": "'default', 't', '', '', 1000, 100", "attempts": "'default', 't', '', '', null, null",
        "words": "'default', 't', array['1'], true", "results": "'default', 't', array['1'], 100, 1000",
        "piece": "'default', 't', 1, true, 0, 10", "final": "'default', 't'", "input": "'default', 't'",
        "command": "'default', 'c'", "command_piece": "'default', 't', 'c'", "hidden": "array['k']", "audit": "'default', 't', 0, 1000, 10",
        "commands": "'default', 't', 0, '', 1000, 100, 10", "recent": "'default', null, '', 60, null, 10",
        "stats": "'default', array['t']", "spending": "'default', 't'", "why": "'default', 't'", "lags": "'S'", "dead_letters": "'default', 0, 10",
    }  # fmt: skip
    async with pencil.pool.acquire() as connection:
        await connection.execute("set enable_seqscan = off; set plan_cache_mode = force_generic_plan")
        try:
            for name, statement in sql.load("store").items():
                if name not in arguments:
                    assert name in {"kinds", "workers"}  # small tables
                    continue
                await connection.execute(f"prepare {name}_plan as {statement}")
                rows = await connection.fetch(f"explain (format text) execute {name}_plan({arguments[name]})")
                plan = "\n".join(row[0] for row in rows)
                for table in ("task", "fact", "operation", "attempt", "inbox", "audit", "dead_letter", "spend"):
                    assert f"Seq Scan on {table} " not in plan, (name, plan)
        finally:
            await connection.execute("reset all; deallocate all")
