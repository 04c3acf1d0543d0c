import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from outlive.actors.testing import Server
from outlive.infra import database, failpoints, intake, streams
from outlive.infra.bus import Bus
from outlive.infra.ingester import Ingester
from outlive.infra.pull import Message
from outlive.protocol.subjects import Subjects
from tests.infra.ingesting import Bench, bench, eventually
from tests.infra.proxy import Proxy

SUBMIT: dict[str, Any] = {"type": "submit", "kind": "k", "input": {"n": 1.0}}
GO: dict[str, Any] = {"type": "signal", "name": "go"}


@pytest.fixture(name="own")
async def own_bench(shared: Server) -> AsyncIterator[Bench]:
    async with bench(shared) as opened:
        yield opened


async def task(own: Bench, task_id: str) -> dict[str, Any]:
    row = await own.connection.fetchrow("select * from task where task_id = $1", task_id)
    assert row is not None
    return dict(row.items())


async def codes(own: Bench) -> dict[str, str]:
    return {row[0]: row[1] for row in await own.fetch("select command_id, code from inbox")}


# -- what becomes of one command


async def test_a_submit_makes_a_task_and_is_answered(own: Bench) -> None:
    body = {
        **SUBMIT,
        "command_id": "c1",
        "by": "ann",
        "priority": 5,
        "labels": {"team": "a"},
        "policy": {"requires_approval": ["mail"]},
    }
    async with own.ingester() as ingester:
        await own.send("t1", body)
        answer = await own.heard("c1")
        assert (answer["ok"], answer["code"], answer["task_id"]) == (True, "applied", "t1")
        made = await task(own, "t1")
        assert (made["status"], made["kind"], made["priority"], made["inbox_head"]) == ("queued", "k", 5, 0)
        assert made["due_at"] is not None and made["mail_at"] is None and made["owner"] is None
        assert json.loads(made["input"]) == {
            "input": {"n": 1.0},
            "goal": None,
            "policy": {"requires_approval": ["mail"]},
        }
        assert b'"n":1.0' in made["input"].replace(b" ", b"")
        assert json.loads(made["labels"]) == {"team": "a"}
        stored = await own.fetch(
            "select task_id, pos, verb, by, claimed, body, code from inbox where command_id = 'c1'"
        )
        assert stored == [("t1", None, "submit", "ann", True, json.dumps(body).encode(), "applied")]
        assert [(wake.due, wake.mail, wake.owners) for wake in own.wakes] == [(True, False, {})]
        assert ingester.leading and ingester.last_command_at is not None and await ingester.lag() == 0


async def test_the_dedup_table(own: Bench) -> None:
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.send("t2", {**SUBMIT, "command_id": "s2"})
        await own.send("t1", {**SUBMIT, "command_id": "s1"}, tenant="other")
        await own.send("t1", {**GO, "command_id": "g1", "value": 1.0})
        await own.settled()
        own.answers.clear()

        await own.send("t1", {"command_id": "s1", **SUBMIT})  # the same, its keys in another order
        assert (await own.heard("s1"))["code"] == "applied"
        for _ in range(3):
            await own.send("t1", {**GO, "command_id": "g1", "value": 1.0})
        await own.settled()
        assert [answer["command_id"] for answer in own.answers] == ["s1"]  # g1 is not decided yet: no answer

        conflicts = [
            ("t1", {**GO, "command_id": "g1", "value": 1}),  # another body: numbers count as written
            ("t2", {**GO, "command_id": "g1", "value": 1.0}),  # another task
            ("t1", {**GO, "command_id": "s1"}),  # another verb
            ("t1", {**GO, "command_id": "g1", "value": 1.0, "unknown": 0}),  # a field that we do not know
        ]
        for task_id, body in conflicts:
            own.answers.clear()
            await own.send(task_id, body)
            answer = await own.heard(str(body["command_id"]))
            assert (answer["ok"], answer["code"], answer["task_id"]) == (False, "conflict", task_id)
            assert "for task t1" in answer["message"]

        await own.send("t1", {**GO, "command_id": "g1", "value": 2}, tenant="other")  # tenants share no ids
        await own.settled()
    assert await own.fetch("select tenant, task_id, inbox_head from task order by 1, 2") == [
        ("default", "t1", 1), ("default", "t2", 0), ("other", "t1", 1),
    ]  # fmt: skip
    assert len(await own.fetch("select 1 from audit")) == len(conflicts)
    assert len(await own.fetch("select 1 from inbox")) == 5


async def test_a_task_is_submitted_once_under_any_command_id(own: Bench) -> None:
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.send("t1", {**SUBMIT, "command_id": "s2", "labels": {"a": "b"}})
        await own.send("t1", {**SUBMIT, "command_id": "s3", "input": {"n": 2}})
        await own.settled()
        assert await codes(own) == {"s1": "applied", "s2": "duplicate", "s3": "conflict"}
        assert "task t1 exists (kind k, queued)" in (await own.heard("s3"))["message"]
        assert json.loads((await task(own, "t1"))["input"])["input"] == {"n": 1.0}
        assert await own.fetch("select task_id, what from audit") == [("t1", "submit")]


async def test_repeats_inside_one_batch_are_distinct_first(own: Bench) -> None:
    await own.send_all("t1", [{**SUBMIT, "command_id": "s1"}] * 3 + [{**GO, "command_id": "g1"}] * 3)
    await own.send_all("t1", [{**GO, "command_id": "g1", "value": 2}, {**SUBMIT, "command_id": "s2"}])
    async with own.ingester():
        await own.settled()
    assert await own.fetch("select command_id, pos, code from inbox order by 1") == [
        ("g1", 1, None), ("s1", None, "applied"), ("s2", None, "duplicate"),
    ]  # fmt: skip
    made = await task(own, "t1")
    assert made["inbox_head"] == 1 and made["due_at"] and made["mail_at"]


async def test_where_a_command_gets_its_id_from(own: Bench) -> None:
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"}, headers={"Nats-Msg-Id": "ignored"})
        await own.send("t1", GO, headers={"Nats-Msg-Id": "foreign"})
        await own.send("t1", GO, headers={"Nats-Msg-Id": "ours:0123456789abcdef"})
        for _ in range(6):
            await own.send("t1", GO)  # six messages without any id are six commands
        await own.settled()
    ids = [row[0] for row in await own.fetch("select command_id from inbox order by pos nulls first")]
    assert ids[:3] == ["s1", "foreign", "ours"]
    assert len(set(ids[3:])) == 6
    assert [int(name.rpartition("-")[2]) for name in ids[3:]] == [4, 5, 6, 7, 8, 9]


def test_a_sequence_that_is_given_again_names_another_command() -> None:
    subjects = Subjects()
    subject = subjects.command("default", "t1", "signal")
    first, again, lost = (Message(7, at, subject, {}, json.dumps(GO).encode()) for at in ("100", "100", "200"))
    one, same, other = (intake.read(message, subjects, "created", 1000) for message in (first, again, lost))
    assert one.command_id == same.command_id != other.command_id


REFUSED = [
    ("verb unlike type", "pause", {"type": "cancel"}, "invalid", "make them equal"),
    ("unknown type", "fly", {"type": "fly"}, "invalid", "there is no command 'fly'; there are: approve, cancel"),
    ("internal type", "child", {"type": "child"}, "invalid", "there is no command 'child'"),
    ("wrong type", "submit", {**SUBMIT, "priority": "high"}, "invalid", "$.priority"),
    ("fraction", "submit", {**SUBMIT, "priority": 1.5}, "invalid", "$.priority"),
    ("out of range", "submit", {**SUBMIT, "priority": 101}, "invalid", "$.priority"),
    ("no kind", "submit", {"type": "submit"}, "invalid", "kind"),
    ("input no object", "submit", {**SUBMIT, "input": [1]}, "invalid", "$.input"),
    ("NUL in a label", "submit", {**SUBMIT, "labels": {"a": "\0"}}, "invalid", "$.labels"),
    ("too large", "signal", {**GO, "value": "x" * 930_000}, "invalid", "930002 bytes are too many"),
    ("tenant in the body", "pause", {"type": "pause", "tenant": "default"}, "not_allowed", "leave `tenant` out"),
    ("another task", "pause", {"type": "pause", "task_id": "t2"}, "not_allowed", "leave `task_id` out"),
    ("unknown kind", "submit", {**SUBMIT, "kind": "kk"}, "unknown_kind", "Did you mean 'k'?"),
    ("unknown task", "pause", {"type": "pause"}, "unknown_task", "there is no task"),
]


async def test_what_is_refused_is_answered_and_makes_no_task(own: Bench) -> None:
    async with own.ingester():
        for number, (name, verb, body, _, _) in enumerate(REFUSED):
            assert name
            await own.send(f"r{number}", {**body, "command_id": f"c{number}"}, verb=verb)
        await own.settled()
        for number, (name, _, _, code, words) in enumerate(REFUSED):
            answer = await own.heard(f"c{number}")
            assert (name, answer["code"], answer["ok"]) == (name, code, False)
            assert words in answer["message"], name
    stored = await own.fetch("select count(*), count(code), count(decided_at), count(pos) from inbox")
    assert stored == [(len(REFUSED), len(REFUSED), len(REFUSED), 0)]
    assert await own.fetch("select (select count(*) from task), (select count(*) from dead_letter)") == [(0, 0)]


async def test_what_cannot_be_read_becomes_a_dead_letter(own: Bench) -> None:
    subject = own.subjects.command("default", "t1", "pause")
    await own.send("t1", b"{nonsense", verb="pause", headers={"Nats-Msg-Id": "d1:0123456789abcdef", "X": "y"})
    await own.send("t1", b"[1]", verb="pause")
    await own.send("t1", b'{"type": "pause", "command_id": "no spaces"}', verb="pause")
    await own.send("t1", b'{"type": "pause"}', verb="pause", headers={"Nats-Msg-Id": "no spaces"})
    await own.bus.nc.jetstream().publish(subject + ".a.b", b"{}")
    await own.bus.nc.jetstream().publish(f"{own.subjects.prefix}._no.cmd.t1.pause", b"{}")
    await own.send("t1", {**SUBMIT, "command_id": "s1"})
    async with own.ingester():
        await own.settled()
        assert (await own.heard("d1"))["code"] == "invalid"
    dead = await own.fetch(
        "select tenant, subject, stream_seq, reason, headers, body from dead_letter order by stream_seq"
    )
    assert [row[0] for row in dead] == ["default"] * 5 + ["_"]
    assert dead[0][1:3] == (subject, 1) and dead[0][3].startswith("the body is no JSON")
    assert json.loads(dead[0][4]) == {"Nats-Msg-Id": "d1:0123456789abcdef", "X": "y"} and dead[0][5] == b"{nonsense"
    assert "a command is an object" in dead[1][3] and "command_id 'no spaces' is not allowed" in dead[2][3]
    assert await codes(own) == {"d1": "invalid", "s1": "applied"}


async def test_a_principal_proves_who_gives_a_command(own: Bench) -> None:
    publish = own.bus.nc.jetstream().publish
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        for number, by in enumerate((None, "ann", "bob")):
            body = {"type": "pause", "command_id": f"p{number}", "by": by}
            await publish(own.subjects.command("default", "t1", "pause", "ann"), json.dumps(body).encode())
        await own.settled()
    rows = await own.fetch("select by, claimed, code from inbox where verb = 'pause' order by command_id")
    assert rows == [("ann", False, None), ("ann", False, None), (None, False, "not_allowed")]


async def test_letters_are_kept_under_what_they_are_about(own: Bench) -> None:
    letters: list[dict[str, Any]] = [
        {"type": "signal", "name": "go"},
        {"type": "approve", "operation_id": "4-1:2"},
        {"type": "reject", "operation_id": "5"},
        {"type": "resolve", "operation_id": "6:1", "verdict": "give_up"},
        {"type": "retry", "step_id": "7"},
        {"type": "retry"},
        {"type": "skip", "step_id": "8", "result": None},
        {"type": "skip", "step_id": "9"},
        {"type": "skip", "step_id": "9", "result": "x" * 1_000_000},
        {"type": "pause"},
    ]
    async with own.ingester():
        await own.send("t", {**SUBMIT, "command_id": "s"})
        for letter in letters:
            await own.send("t", letter)
        await own.settled()
    rows = await own.fetch("select verb, name from inbox where pos is not null order by pos")
    assert rows == [
        ("signal", "go"), ("approve", "4-1"), ("reject", "5"), ("resolve", "6"), ("retry", "7"), ("retry", None),
        ("skip", "8"), ("pause", None),
    ]  # fmt: skip
    refused = await own.fetch("select code, message from inbox where verb = 'skip' and pos is null order by message")
    assert [code for code, _ in refused] == ["invalid", "invalid"]
    assert "1000002 bytes are too many" in refused[0][1]


async def test_who_is_woken(own: Bench) -> None:
    heard: list[tuple[str, Any]] = []
    owner = uuid.uuid4()
    me = uuid.uuid4()

    async def hear(message: Any) -> None:
        heard.append((message.subject.rpartition(".")[2], json.loads(message.data)))

    await own.bus.subscribe(own.subjects.wake("*"), hear)
    async with own.ingester(me=me):
        for name in ("owned", "mine", "waiting", "paused"):
            await own.send(name, {**SUBMIT, "command_id": name})
        await own.settled()
        await own.connection.execute("update task set due_at = null")
        await own.connection.execute("update task set owner = $1, status = 'running' where task_id = 'owned'", owner)
        await own.connection.execute("update task set owner = $1, status = 'running' where task_id = 'mine'", me)
        await own.connection.execute("update task set status = 'paused' where task_id = 'paused'")
        await own.connection.execute("update task set status = 'running' where task_id = 'waiting'")
        heard.clear()
        own.wakes.clear()
        for name in ("owned", "mine", "waiting", "paused"):
            await own.send(name, GO)
            await own.settled()
        await own.send("waiting", {"type": "pause"})
        await own.settled()
        rows = await own.fetch(
            "select task_id, inbox_head, due_at is not null, mail_at is not null from task order by task_id"
        )
    assert rows == [("mine", 1, False, False), ("owned", 1, False, False), ("paused", 1, False, True),
                    ("waiting", 2, True, True)]  # fmt: skip
    assert [(dict(wake.owners), wake.due, wake.mail) for wake in own.wakes] == [
        ({owner: [("default", "owned")]}, False, False),
        ({me: [("default", "mine")]}, False, False),
        ({}, True, False),
        ({}, False, True),
        ({}, False, True),
    ]
    assert heard == [
        (str(owner), [["default", "owned"]]),
        ("all", {"due": True, "mail": False}),
        ("all", {"due": False, "mail": True}),
        ("all", {"due": False, "mail": True}),
    ]


async def test_one_message_that_cannot_be_stored_stands_alone(own: Bench) -> None:
    await own.connection.execute("alter table task add constraint poison check (input not like '%poison%'::bytea)")
    bodies = [{**SUBMIT, "command_id": f"c{n}", "input": {"word": "poison" if n == 77 else "fine"}} for n in range(200)]
    await asyncio.gather(*[own.send(f"t{n}", body) for n, body in enumerate(bodies)])
    async with own.ingester():
        await own.settled()
        answer = await own.heard("c77")
    assert answer["code"] == "invalid" and "cannot be stored" in answer["message"] and "poison" in answer["message"]
    assert await own.fetch("select count(*) from task") == [(199,)]
    assert await own.fetch("select body from dead_letter") == [(json.dumps(bodies[77]).encode(),)]
    assert await own.fetch("select code, count(*) from inbox group by 1 order by 1") == [
        ("applied", 199),
        ("invalid", 1),
    ]


# -- streams that are not what they were


async def test_a_stream_made_anew_is_read_from_its_start(own: Bench) -> None:
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.send_all("t1", [{**GO, "command_id": f"old{n}"} for n in range(20)])
        await own.settled()
        await own.bus.api(f"STREAM.DELETE.{own.stream}")
        await streams.ensure(own.bus, own.subjects, own.server.settings)
        await own.send_all("t1", [{**GO, "command_id": "old3"}, *({**GO, "command_id": f"new{n}"} for n in range(5))])
        await own.until("select count(*) from inbox where command_id like 'new%'", equals=5)
        await own.settled()
    assert (await task(own, "t1"))["inbox_head"] == 25


async def test_a_missing_stream_is_made_again(own: Bench) -> None:
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.settled()
        await own.bus.api(f"STREAM.DELETE.{own.stream}")

        async def complete() -> bool:
            return await streams.drift(own.bus, own.subjects, own.server.settings) == []

        await eventually(complete)
        await own.send("t1", {**GO, "command_id": "g1"})
        await own.until("select inbox_head from task", equals=1)


@pytest.mark.parametrize(
    "damage",
    [
        "update cursor set seq = seq + 5",  # the stream lost its last messages
        "update cursor set at = '17'",  # another message stands at the cursor: lost, and written again since
        "update cursor set digest = 'x'",
        "update cursor set created = 'before'",
    ],
)
async def test_a_stream_that_lost_its_end_is_read_again(own: Bench, damage: str) -> None:
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.send_all("t1", [{**GO, "command_id": f"g{n}"} for n in range(10)])
        await own.send("t1", b"{nonsense")
        await own.settled()
    await own.connection.execute(damage)
    await own.send("t1", {**GO, "command_id": "after"})
    async with own.ingester():
        await own.settled()
    assert (await task(own, "t1"))["inbox_head"] == 11
    assert await own.fetch("select count(*) from dead_letter") == [(1,)]
    assert (await own.fetch("select seq, created like '20%' from cursor")) == [(13, True)]


async def test_what_was_taken_in_is_purged_later(own: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outlive.infra.ingester.PURGE", 0.0)
    own.server = own.server.with_settings(command_retention_hours=1)
    async with own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.send_all("t1", [{**GO, "command_id": f"g{n}"} for n in range(5)])
        await own.settled()
        await asyncio.sleep(0.1)
        assert (await own.bus.api(f"STREAM.INFO.{own.stream}"))["state"]["messages"] == 6
        # In two hours all of it is old; the message at the cursor stays.
        await own.connection.execute(
            "create or replace function outlive.clock() returns timestamptz language sql stable as"
            " 'select clock_timestamp() + interval ''2 hours'''"
        )
        await own.send("t1", {**GO, "command_id": "late"})
        await own.settled()

        async def purged() -> bool:
            return bool((await own.bus.api(f"STREAM.INFO.{own.stream}"))["state"]["messages"] == 1)

        await eventually(purged)
    async with own.ingester():
        await own.send("t1", {**GO, "command_id": "later"})
        await own.settled()
    assert (await task(own, "t1"))["inbox_head"] == 7


# -- who takes in


async def test_one_of_two_takes_in_and_the_other_takes_over(own: Bench) -> None:
    await own.send("t1", {**SUBMIT, "command_id": "s1"})
    async with contextlib.AsyncExitStack() as life:
        first = await life.enter_async_context(own.ingester())
        await leads(first)
        async with own.ingester() as other:
            await own.send("t1", {**GO, "command_id": "g1"})
            await own.settled()
            assert first.leading and not other.leading
            await life.aclose()  # a clean end gives the cursor up at once
            await own.send("t1", {**GO, "command_id": "g2"})
            await own.until("select inbox_head from task", equals=2)
            assert other.leading


async def leads(ingester: Ingester, *, leading: bool = True) -> None:
    async def check() -> bool:
        return ingester.leading is leading

    await eventually(check)


async def test_a_former_ingester_writes_nothing(own: Bench) -> None:
    dead = uuid.uuid4()
    async with own.ingester(me=dead) as former:
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.settled()
        failpoints.arm("ingest.before_commit", "hang")
        await own.send("t1", {**GO, "command_id": "g1"})
        await failpoints.reached("ingest.before_commit")
        # It holds the cursor's row now; a server that ended its session is how such an owner loses it.
        await own.connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1", f"outlive:{dead}"
        )
        async with own.ingester() as successor:
            successor.seize([dead])
            failpoints.disarm("ingest.before_commit")
            await own.until("select inbox_head from task", equals=1)
            await own.send("t1", {**GO, "command_id": "g2"})
            await own.settled()
            await leads(former, leading=False)
    assert await own.fetch("select command_id, pos from inbox where pos > 0 order by pos") == [("g1", 1), ("g2", 2)]


async def test_a_seized_cursor_fences_the_living(own: Bench) -> None:
    me = uuid.uuid4()
    async with own.ingester(me=me) as fenced:
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.settled()
        async with own.ingester() as successor:
            successor.seize([me])
            await leads(successor)
            await own.send_all("t1", [{**GO, "command_id": f"g{n}"} for n in range(50)])
            await own.settled()
            await leads(fenced, leading=False)
    rows = await own.fetch("select command_id from inbox where pos is not null order by pos")
    assert [row[0] for row in rows] == [f"g{n}" for n in range(50)]


# -- faults


async def test_a_lost_answer_to_the_commit_repeats_nothing(own: Bench) -> None:
    async with Proxy(own.server.postgres_dsn) as proxy, own.ingester(dsn=proxy.url):
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.settled()
        failpoints.arm("ingest.before_commit", "hang")
        await own.send_all("t1", [{**GO, "command_id": f"g{n}"} for n in range(3)])
        await failpoints.reached("ingest.before_commit")
        proxy.answers_left = 1  # the statement's; the commit's is lost
        failpoints.disarm("ingest.before_commit")
        await own.until("select inbox_head > 0 from task")
        proxy.answers_left = None
        proxy.cut()
        await own.send("t1", {**GO, "command_id": "last"})
        await own.settled()
    rows = await own.fetch("select command_id from inbox where pos is not null order by pos")
    assert [row[0] for row in rows] == ["g0", "g1", "g2", "last"]


async def test_commands_survive_cuts_of_both_links(own: Bench) -> None:
    random.seed(7)
    wanted = [f"g{n}" for n in range(400)]
    async with (
        Proxy(own.server.postgres_dsn) as postgres,
        Proxy(own.server.nats_url) as nats,
        Bus(nats.url) as bus,
        own.ingester(dsn=postgres.url, bus=bus),
    ):
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        for start in range(0, 400, 40):
            await own.send_all("t1", [{**GO, "command_id": name} for name in wanted[start : start + 40]])
            await asyncio.sleep(random.random() * 0.02)
            random.choice((postgres, nats)).cut()
        await own.settled()
    rows = await own.fetch("select command_id from inbox where pos is not null order by pos")
    assert [row[0] for row in rows] == wanted


async def test_killed_servers_lose_nothing(server: Server) -> None:
    assert server.pair is not None
    async with bench(server) as own, own.ingester():
        await own.send("t1", {**SUBMIT, "command_id": "s1"})
        await own.send_all("t1", [{**GO, "command_id": f"a{n}"} for n in range(100)])
        server.pair.nats.kill()
        await server.pair.nats.start()
        await own.bus.wait_connected(10)
        await own.send_all("t1", [{**GO, "command_id": f"b{n}"} for n in range(100)])
        server.pair.postgres.kill()
        await own.send_all("t1", [{**GO, "command_id": f"c{n}"} for n in range(100)])
        await server.pair.postgres.start()
        own.connection = await database.connect(server.postgres_dsn, application_name="test")
        await own.settled()
        rows = await own.fetch("select command_id from inbox where pos is not null order by pos")
    assert [row[0] for row in rows] == [f"{batch}{n}" for batch in "abc" for n in range(100)]


async def test_writers_of_the_same_rows_never_deadlock_with_it(own: Bench) -> None:
    names = [f"t{n}" for n in range(60)]
    done = asyncio.Event()

    async def write(step: int) -> int:
        """Lock and update the tasks' rows as the journal does."""
        count = 0
        connection = await database.connect(own.server.postgres_dsn, application_name="test")
        while not done.is_set():
            some = random.Random(count + step).sample(names, 30)
            await connection.execute(
                "with l as materialized (select tenant, task_id from task where task_id = any($1)"
                " order by tenant, task_id for no key update)"
                " update task t set version = version + 1 from l where t.tenant = l.tenant and t.task_id = l.task_id",
                some,
            )
            count += 1
        await connection.close()
        return count

    async with own.ingester():
        await asyncio.gather(*[own.send(name, SUBMIT) for name in names])
        await own.settled()
        writers = [asyncio.create_task(write(step)) for step in range(3)]
        for _ in range(20):
            await asyncio.gather(*[own.send(random.choice(names), GO) for _ in range(60)])
        await own.settled()
        done.set()
        assert min(await asyncio.gather(*writers)) > 5
        assert await own.fetch("select epoch from cursor") == [(1,)]  # it never had to begin again
    assert await own.fetch("select sum(inbox_head)::int from task") == [(1200,)]


async def test_order_is_kept_while_the_process_is_killed(own: Bench) -> None:
    random.seed(11)
    wanted = [f"g{n}" for n in range(240)]
    await own.send("t1", {**SUBMIT, "command_id": "s1"})
    by_itself = 0
    for start, hit in zip(range(0, 240, 40), (1, 2, 1, 3, 1, 2), strict=True):
        point = random.choice(("ingest.before_commit", "ingest.after_commit"))
        async with child(own, {"OUTLIVE_FAILPOINTS": f"{point}=kill@{hit}"}) as process:
            await trickle(own, wanted[start : start + 40])

            async def dead_or_at_work(process: Process = process, before: int = start, hit: int = hit) -> bool:
                taken_in = await own.connection.fetchval("select count(*) from inbox where pos > $1", before)
                return process.returncode is not None or (hit > 1 and bool(taken_in))

            await eventually(dead_or_at_work)
            await asyncio.sleep(random.random() / 5)
            by_itself += process.returncode == -signal.SIGKILL
    assert by_itself >= 3
    async with child(own, {}):
        await own.settled()
    rows = await own.fetch("select command_id from inbox where pos is not null order by pos")
    assert [row[0] for row in rows] == wanted


@contextlib.asynccontextmanager
async def child(own: Bench, failpoint: Mapping[str, str]) -> AsyncGenerator[Process]:
    """Run an ingester in a process of its own; SIGKILL it at the end."""
    program = Path(__file__).with_name("ingester_main.py")
    environment = {**os.environ, **own.server.environment, **failpoint}
    process = await asyncio.create_subprocess_exec(sys.executable, program, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def trickle(own: Bench, names: Sequence[str]) -> None:
    for start in range(0, len(names), 5):
        await own.send_all("t1", [{**GO, "command_id": name} for name in names[start : start + 5]])
        await asyncio.sleep(0.05)
