import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import msgspec
import pytest
from nats.aio.msg import Msg

from outlive.actors.testing import Server
from outlive.infra.api import ApiService
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.questions import QuestionRefused, Questions
from outlive.protocol import api
from outlive.protocol.api import Trouble
from outlive.protocol.errors import Unreachable
from outlive.protocol.task import TaskRecord
from tests.infra.pencil import Pencil


class Desk:
    """A running service, and a client that asks as any other language would."""

    def __init__(self, server: Server, pencil: Pencil, bus: Bus) -> None:
        self.server = server
        self.pencil = pencil
        self.bus = bus

    async def ask(self, verb: str, body: Any = None, tenant: str = "default") -> Msg:
        payload = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return await self.bus.request(self.server.subjects.api(tenant, verb), payload)

    async def value(self, verb: str, **body: Any) -> Any:
        reply = await self.ask(verb, body)
        assert reply.headers is None, reply.data
        return json.loads(reply.data)

    async def problem(self, verb: str, body: Any = None, tenant: str = "default") -> dict[str, str]:
        reply = await self.ask(verb, body, tenant)
        assert reply.headers is not None, reply.data
        problem: dict[str, str] = json.loads(reply.data)
        assert reply.headers[api.ERROR_HEADER] == problem["error"]
        assert reply.headers["Nats-Service-Error"]
        return problem


@pytest.fixture
async def desk(shared: Server) -> AsyncIterator[Desk]:
    async with (
        Bus.of(shared.settings, name="service") as bus,
        Bus.of(shared.settings, name="client") as client,
        Pool(shared.postgres_dsn, application_name="test", size=4, wait=3.0) as pool,
        anyio.create_task_group() as tasks,
    ):
        await tasks.start(ApiService(pool, bus, shared.subjects).run)
        yield Desk(shared, Pencil(pool, bus, shared.subjects), client)
        tasks.cancel_scope.cancel()


async def test_every_verb_answers_with_its_type(desk: Desk) -> None:
    claim = await desk.pencil.task("t")
    await desk.pencil.steps(claim, "a")
    await desk.pencil.end(claim)
    await desk.pencil.worker()
    await desk.pencil.kind("collect")
    await desk.pencil.insert(
        "inbox", tenant="default", command_id="c", task_id="t", verb="pause", digest=b"", body=b"{}", code="too_late"
    )
    for verb, types in api.VERBS.items():
        fields = {field.name for field in msgspec.structs.fields(types.request)}
        body = {name: value for name, value in (("task_id", "t"), ("command_id", "c")) if name in fields}
        reply = await desk.ask(verb, body)
        assert reply.headers is None, reply.data
        msgspec.json.decode(reply.data, type=types.reply)


async def test_an_empty_payload_is_an_empty_object(desk: Desk) -> None:
    assert json.loads((await desk.ask("list", b"")).data) == {"tasks": [], "after": None}


async def test_values_pass_untouched(desk: Desk) -> None:
    body = b'{"big":123456789012345678901234567890,"exact":1.10,"text":"\\u0000"}'
    claim = await desk.pencil.task("t", input=b'{"input":%b}' % body)
    await desk.pencil.end(claim, body=body)
    reply = await desk.ask("get", {"task_id": "t"})
    assert reply.data.count(body) == 2


@pytest.mark.parametrize(
    ("verb", "body", "says"),
    [
        ("get", b"{", "truncated"),
        ("get", b"[]", "Expected `object`"),
        ("get", {}, "missing required field `task_id`"),
        ("get", {"task_id": 7}, "Expected `str`"),
        ("get", {"task_id": "a b"}, "task_id 'a b' is not allowed: 1 to 64 characters"),
        ("why", {"task_id": ""}, "task_id '' is not allowed"),
        ("command", {"command_id": "*"}, "command_id '*' is not allowed"),
        ("list", {"limit": 0}, ">= 1"),
        ("list", {"limit": 501}, "<= 500"),
        ("list", {"after": "yesterday"}, "yesterday"),
        ("list", {"status": ["dead"]}, "Invalid enum value 'dead'"),
        ("list", {"kind": "\0"}, ""),
        ("events", {"task_id": "t", "from_seq": 2**63}, "9223372036854775807"),
        ("slice", {"task_id": "t", "part": "all"}, "Invalid enum value 'all'"),
    ],
)
async def test_bad_questions_are_refused_with_the_rule(desk: Desk, verb: str, body: Any, says: str) -> None:
    problem = await desk.problem(verb, body)
    assert problem["error"] == "invalid"
    assert says in problem["message"]


async def test_a_bad_tenant_is_refused(desk: Desk) -> None:
    problem = await desk.problem("list", tenant="_x")
    assert "tenant '_x' is not allowed" in problem["message"]


@pytest.mark.parametrize("verb", ["get", "why", "checkpoint", "operations", "events"])
async def test_an_unknown_task_is_named(desk: Desk, verb: str) -> None:
    await desk.pencil.task("t")
    assert await desk.problem(verb, {"task_id": "t"}, tenant="other") == {
        "error": "unknown_task",
        "message": "there is no task 't' of tenant 'other'",
    }


async def test_what_does_not_exist_is_told_apart(desk: Desk) -> None:
    await desk.pencil.task("t")
    assert (await desk.problem("command", {"command_id": "c"}))["error"] == "unknown_command"
    assert (await desk.problem("slice", {"task_id": "t"})) == {
        "error": "not_found", "message": "task 't' of tenant 'default' has no result",
    }  # fmt: skip


async def test_unknown_fields_are_ignored(desk: Desk) -> None:
    await desk.pencil.task("t")
    assert (await desk.value("get", task_id="t", later=1))["task_id"] == "t"


async def test_no_answer_exceeds_a_message(desk: Desk) -> None:
    large = json.dumps("x" * 1_100_000).encode()
    claim = await desk.pencil.task("t")
    await desk.pencil.steps(claim, "a", result=large)
    for n in range(4):
        await desk.pencil.steps(claim, f"s{n}", result=json.dumps("y" * 250_000).encode())
    await desk.pencil.end(claim, body=large)
    problem = await desk.problem("get", {"task_id": "t"})
    assert problem["error"] == "too_large"
    assert "with_result" in problem["message"]
    assert (await desk.value("get", task_id="t", with_result=False))["result"] is None

    page = await desk.value("checkpoint", task_id="t")
    assert page["large"] == [1]
    steps = [step["name"] for step in page["checkpoint"]["completed_steps"]]
    while page["next"]:
        page = await desk.value("checkpoint", task_id="t", after=page["next"])
        steps += [step["name"] for step in page["checkpoint"]["completed_steps"]]
    assert steps == ["a", "s0", "s1", "s2", "s3"]

    questions = Questions(desk.bus, desk.server.subjects, "default")
    assert await questions.whole("t", "result") == large
    assert await questions.whole("t", "result", 1) == large


async def test_events_of_many_megabytes_come_in_pages(desk: Desk) -> None:
    claim = await desk.pencil.task("t")
    facts = [
        fact._replace(event=fact.event.replace(b'"message":"note', b'"message":"' + b"z" * 90_000))
        for fact in await desk.pencil.say(claim, 40, publish=False)
    ]
    await desk.pencil.pool.execute("delete from fact")
    await desk.pencil.write(claim, facts)
    seen, start, pages = 0, 1, 0
    while start:
        page = await desk.value("events", task_id="t", from_seq=start)
        seen, start, pages = seen + len(page["events"]), page["next"], pages + 1
    assert seen == 40
    assert 3 < pages < 8


async def test_pages_of_wide_records_are_cut(desk: Desk) -> None:
    label = json.dumps({"k" * 100: "v" * 100_000})
    for n in range(25):
        await desk.pencil.task(f"t{n:02}", labels=label)
    seen: list[str] = []
    after = None
    while True:
        page = await desk.value("list", limit=25, after=after)
        seen += [task["task_id"] for task in page["tasks"]]
        if not (after := page["after"]):
            break
    assert sorted(seen) == [f"t{n:02}" for n in range(25)]


async def test_a_pool_without_a_free_connection_is_named_within_its_deadline(desk: Desk) -> None:
    async with AsyncExitStack() as held:
        for _ in range(4):
            await held.enter_async_context(desk.pencil.pool.acquire())
        problem = await desk.problem("health")
        assert problem["error"] == "unavailable"
        assert "all 4 database connections were in use" in problem["message"]


async def test_too_many_questions_at_once_are_told_so(desk: Desk) -> None:
    async with Bus.of(desk.server.settings, name="second") as bus, anyio.create_task_group() as tasks:
        other = desk.server.subjects._replace(prefix=desk.server.subjects.prefix + "x")
        await tasks.start(ApiService(desk.pencil.pool, bus, other, at_once=0).run)
        reply = await desk.bus.request(other.api("default", "list"))
        assert json.loads(reply.data)["error"] == Trouble.BUSY
        tasks.cancel_scope.cancel()


async def test_the_service_is_discoverable(desk: Desk) -> None:
    reply = await desk.bus.request(f"$SRV.INFO.{desk.server.subjects.prefix}")
    info = json.loads(reply.data)
    assert {endpoint["name"] for endpoint in info["endpoints"]} == set(api.VERBS)


async def test_two_services_share_the_questions(desk: Desk) -> None:
    async with Bus.of(desk.server.settings, name="second") as bus, anyio.create_task_group() as tasks:
        await tasks.start(ApiService(desk.pencil.pool, bus, desk.server.subjects).run)
        heard: list[bytes] = []
        subscription = await desk.bus.subscribe("test.inbox", _append(heard))
        for _ in range(40):
            await desk.bus.nc.publish(desk.server.subjects.api("default", "list"), b"", reply="test.inbox")
        async with asyncio.timeout(10):
            while len(heard) < 40:  # noqa: ASYNC110  # counts messages
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        assert len(heard) == 40
        await subscription.unsubscribe()
        tasks.cancel_scope.cancel()


def _append(heard: list[bytes]) -> Any:
    async def append(message: Msg) -> None:
        heard.append(message.data)

    return append


async def test_a_rebuilt_connection_is_served_again(desk: Desk) -> None:
    service = desk.pencil.bus
    former = service.nc
    await former.close()
    async with asyncio.timeout(10):
        while service.nc is former or not service.connected:  # noqa: ASYNC110  # the bus tells no event of it
            await asyncio.sleep(0.01)
    assert (await desk.value("list"))["tasks"] == []


async def test_without_a_service_the_asker_says_what_to_start(shared: Server) -> None:
    async with Bus.of(shared.settings, name="client") as bus:
        questions = Questions(bus, shared.subjects, "default")
        with pytest.raises(Unreachable, match="is a worker running"):
            await questions.ask("get", api.Get(task_id="t"), TaskRecord, timeout=0.3)


async def test_a_service_that_comes_late_is_waited_for(desk: Desk) -> None:
    other = desk.server.subjects._replace(prefix=desk.server.subjects.prefix + "y")
    questions = Questions(desk.bus, other, "default")
    async with anyio.create_task_group() as tasks:
        asking = asyncio.ensure_future(questions.ask("get", api.Get(task_id="t"), TaskRecord))
        await asyncio.sleep(0.5)
        await tasks.start(ApiService(desk.pencil.pool, desk.pencil.bus, other).run)
        with pytest.raises(QuestionRefused, match="no task 't'"):
            await asking
        tasks.cancel_scope.cancel()
