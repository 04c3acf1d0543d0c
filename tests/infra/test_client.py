import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio
import pytest
from nats.aio.msg import Msg

from outlive.actors import App, Task
from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from outlive.infra.bus import Bus
from outlive.infra.client import Client
from outlive.infra.database import Pool
from outlive.infra.questions import QuestionRefused
from outlive.infra.reader import Gap
from outlive.infra.settings import Settings
from outlive.protocol import codec, ids
from outlive.protocol.answers import Code
from outlive.protocol.commands import Pause
from outlive.protocol.errors import CommandRefused, NoAnswer, TaskCancelled, TaskFailed, Unreachable
from outlive.protocol.task import Status
from tests.infra.attention import Attention
from tests.infra.pencil import Pencil
from tests.infra.proxy import Proxy

app = App("client")


@dataclass
class Point:
    x: int
    at: datetime


go = app.signal("go", Point)


@app.tool(read_only=True)
def size(text: str) -> int:
    return len(text)


@app.task
async def measure(task: Task, text: str, times: int = 1) -> Point:
    """Add up."""
    total = 0
    for _ in range(times):
        total += await task.call(size, text)
    return Point(total, datetime(2026, 1, 1, tzinfo=UTC))


@app.task
async def wait(task: Task) -> Point:
    """Return what it is sent."""
    return await task.wait_for(go)


@app.task
async def fail(task: Task, text: str) -> None:
    """Raise."""
    raise KeyError(text)


@app.task
async def echo(task: Task, text: str) -> str:
    """Return it."""
    return text * 2


@pytest.fixture
async def client(shared: Server) -> AsyncIterator[Client]:
    async with Worker(app, shared.settings), Client(shared.settings, by="tester", timeout=10) as own:
        yield own


@pytest.fixture
async def alone(shared: Server) -> AsyncIterator[Client]:
    """A client while no worker lives."""
    async with Client(shared.settings, timeout=1) as own:
        yield own


async def test_a_kind_is_submitted_with_its_own_arguments(client: Client) -> None:
    handle = await client.submit(measure, "abc", times=3)
    assert await handle.result(10) == Point(9, datetime(2026, 1, 1, tzinfo=UTC))
    assert handle.answer is not None
    assert handle.answer.code is Code.APPLIED
    record = await handle.record()
    assert (record.kind, record.input, record.status) == ("measure", {"text": "abc", "times": 3}, Status.SUCCEEDED)


async def test_a_name_is_submitted_without_the_code(client: Client) -> None:
    handle = await client.submit("measure", {"text": "ab"}, output=Point, task_id="m", labels={"a": "b"}, priority=7)
    assert (await handle.result(10)).x == 2
    untyped = await client.submit("measure", {"text": "ab"})
    assert await untyped.result(10) == {"x": 2, "at": "2026-01-01T00:00:00Z"}
    record = await client.get("m")
    assert (record.labels, record.priority) == ({"a": "b"}, 7)


async def test_options_of_a_kind_choose_the_task(client: Client) -> None:
    kind = measure.with_options(task_id="mine", priority=5, labels={"x": "y"}, command_id="c1")
    handles = [await client.submit(kind, "a"), await client.submit(kind, "a")]
    handles.append(await client.submit(kind.with_options(command_id="c2"), "a"))
    assert [handle.task_id for handle in handles] == ["mine"] * 3
    first, again, other = [handle.answer for handle in handles]
    assert first == again
    assert other is not None
    assert other.code is Code.DUPLICATE
    assert (await client.find_command("c1")).by == "tester"


async def test_the_same_task_with_another_input_is_a_conflict(client: Client) -> None:
    await client.submit(measure.with_options(task_id="mine"), "a")
    with pytest.raises(CommandRefused) as caught:
        await client.submit(measure.with_options(task_id="mine"), "b")
    assert caught.value.answer.code is Code.CONFLICT


async def test_arguments_that_do_not_fit_are_refused_before_anything_is_sent(client: Client) -> None:
    submit: Any = client.submit  # the type checkers refuse it too
    with pytest.raises(TypeError, match="measure"):
        await submit(measure, 1, 2, 3)
    with pytest.raises(codec.NotStorable):
        await client.submit("measure", {"text": float("nan")})
    with pytest.raises(codec.NotStorable, match="921,600 are allowed: store it elsewhere and pass a reference"):
        await client.submit("measure", {"text": "x" * 950_000})
    with pytest.raises(ids.InvalidId, match="task_id 'a b' is not allowed"):
        await client.submit("measure", {}, task_id="a b")
    with pytest.raises(ids.InvalidId, match="command_id '' is not allowed"):
        await client.command("t", Pause(command_id=""))
    with pytest.raises(ids.InvalidId):
        await client.get("*")


async def test_an_unknown_kind_is_a_no_that_says_so(client: Client) -> None:
    with pytest.raises(CommandRefused, match="mesure") as caught:
        await client.submit("mesure", {"text": "a"})
    assert caught.value.answer.code is Code.UNKNOWN_KIND


async def test_a_command_to_no_task_is_a_no(client: Client) -> None:
    with pytest.raises(CommandRefused) as caught:
        await client.cancel("nope")
    assert caught.value.answer.code is Code.UNKNOWN_TASK
    with pytest.raises(QuestionRefused, match="no task 'nope'"):
        await client.get("nope")


async def test_a_typed_signal_arrives_as_its_type(client: Client) -> None:
    handle = await client.submit(wait)
    point = Point(1, datetime(2026, 5, 1, tzinfo=UTC))
    assert (await handle.signal(go, point)).ok
    assert await handle.result(10) == point


async def test_a_signal_by_name_needs_no_code(client: Client) -> None:
    handle = await client.submit("wait", output=Point)
    await client.signal(handle.task_id, "go", {"x": 2, "at": "2026-05-01T00:00:00Z"})
    assert (await handle.result(10)).x == 2


async def test_pause_resume_and_cancel(client: Client) -> None:
    handle = await client.submit(wait)
    assert (await handle.pause("lunch")).ok
    async with asyncio.timeout(10):
        while await handle.status() is not Status.PAUSED:  # noqa: ASYNC110  # asks over the wire
            await asyncio.sleep(0.02)
    assert [task.task_id for task in (await client.waiting()).tasks] == [handle.task_id]
    assert "operator" in await client.why(handle.task_id)
    assert (await handle.resume()).ok
    assert (await handle.cancel("enough")).ok
    with pytest.raises(TaskCancelled) as caught:
        await handle.result(10)
    assert caught.value.task_id == handle.task_id
    assert "ancel" in str(caught.value)
    with pytest.raises(CommandRefused):
        await handle.cancel()


async def test_a_failure_is_raised_with_its_type(client: Client) -> None:
    handle = await client.submit(fail, "deep inside")
    with pytest.raises(TaskFailed) as caught:
        await handle.result(10)
    assert caught.value.failure.type == "KeyError"
    assert "deep inside" in caught.value.failure.message


async def test_giving_up_leaves_the_task_alone(client: Client, attention: Attention) -> None:
    handle = await client.submit(wait)
    with pytest.raises(TimeoutError, match=r"has not ended within 0.1 s; it runs on"):
        await handle.result(0.1)
    rests = attention.rests
    waiter = asyncio.ensure_future(handle.result())
    await attention.until(lambda: attention.rests > rests)
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    with anyio.move_on_after(0.1):
        await handle.result()
    assert await handle.status() in {Status.QUEUED, Status.RUNNING}
    await handle.signal(go, Point(3, datetime(2026, 1, 1, tzinfo=UTC)))
    results = await asyncio.gather(*(client.result(handle.task_id, Point, 10) for _ in range(3)))
    assert [point.x for point in results] == [3, 3, 3]


async def test_a_result_of_another_type_is_named(client: Client) -> None:
    handle = await client.submit("measure", {"text": "a"}, output=int)
    with pytest.raises(codec.NotStorable, match="Expected `int`"):
        await handle.result(10)


async def test_results_larger_than_a_message_come_whole(client: Client) -> None:
    text = "ü" * 400_000
    handle = await client.submit(echo, text)
    assert await handle.result(20) == text * 2
    record = await client.get(handle.task_id)
    assert (record.result, record.input) == (text * 2, {"text": text})
    checkpoint = await client.checkpoint(handle.task_id)
    assert checkpoint.input == {"text": text}


async def test_events_are_followed_to_the_end(client: Client) -> None:
    handle = await client.submit(measure, "a", times=5)
    seen = [event.seq async for event in handle.events() if not isinstance(event, Gap)]
    assert seen == list(range(1, len(seen) + 1))
    assert len([event async for event in handle.events(from_seq=seen[-1])]) == 1


async def test_checkpoint_and_ledger_are_put_together_from_pages(client: Client) -> None:
    handle = await client.submit(measure, "abc", times=3)
    await handle.result(10)
    checkpoint = await client.checkpoint(handle.task_id)
    assert list(checkpoint.tool_results.values()) == [3, 3, 3]
    assert checkpoint.step_index == 3
    assert (await client.operations(handle.task_id)).operations == []


async def test_lists_kinds_and_health(client: Client) -> None:
    handles = [await client.submit(measure, str(n)) for n in range(5)]
    page = await client.list(limit=3, kind="measure")
    rest = await client.list(limit=3, kind="measure", after=page.after)
    assert {task.task_id for task in [*page.tasks, *rest.tasks]} == {handle.task_id for handle in handles}
    assert {kind.name for kind in await client.kinds()} >= {"measure", "wait", "fail", "echo"}
    report = await client.health()
    assert len(report.workers) == 1
    assert report.ingester == report.workers[0].incarnation
    assert (await client.dead_letters()).dead_letters == []


async def test_many_at_once(client: Client) -> None:
    handles = await asyncio.gather(*(client.submit(measure, "ab") for _ in range(100)))
    results = await asyncio.gather(*(handle.result(30) for handle in handles))
    assert {result.x for result in results} == {2}


async def test_a_lost_answer_is_asked_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from outlive.infra.sender import _Sending

    async def deaf(self: Any, message: Msg) -> None:
        """Hear no answer."""

    monkeypatch.setattr(_Sending, "receive", deaf)
    handle = await client.submit(measure.with_options(command_id="c1"), "a")
    assert handle.answer is not None
    assert handle.answer.code is Code.APPLIED
    with pytest.raises(CommandRefused, match=r"command id 'c1' is taken: it was a submit of task") as caught:
        await client.submit(measure.with_options(command_id="c1"), "b")
    assert caught.value.answer.code is Code.CONFLICT


async def test_a_submit_over_a_link_that_is_cut_again_and_again_makes_one_task(client: Client, shared: Server) -> None:
    async with Proxy(shared.nats_url) as proxy:
        settings = Settings(nats_url=proxy.url, nats_token=shared.nats_token, prefix=shared.settings.prefix)
        async with Client(settings, timeout=30) as far:
            running = True

            async def cut() -> None:
                while running:
                    await far._connected.bus.wait_connected()
                    proxy.cut()
                    await asyncio.sleep(0.15)

            cutting = asyncio.ensure_future(cut())
            handles = [await far.submit(measure.with_options(task_id=f"t{n}"), "abc") for n in range(10)]
            running = False
            await cutting
            assert far._connected.bus.generation > 0
            assert [(await handle.result(10)).x for handle in handles] == [3] * 10
    assert len((await client.list()).tasks) == 10


async def test_without_a_worker_a_submit_is_stored_and_says_so(alone: Client, shared: Server) -> None:
    with pytest.raises(NoAnswer, match=r"is stored, but nobody has answered within 1 s.*command_id='c7' is safe"):
        await alone.submit("measure", {"text": "abc"}, task_id="t7", command_id="c7")
    async with Worker(app, shared.settings):
        handle = await alone.submit("measure", {"text": "abc"}, task_id="t7", command_id="c7", output=Point)
        assert (await handle.result(10)).x == 3


async def test_without_a_server_a_submit_says_that_nothing_is_known(server: Server) -> None:
    assert server.pair is not None
    async with Client(server.settings, timeout=1) as client:
        server.pair.nats.kill()
        with pytest.raises(Unreachable, match=r"may or may not be stored.*Sending it again"):
            await client.submit("measure", {"text": "abc"})
        await server.pair.nats.start()


async def test_a_waiter_outlives_a_restart_of_nats_and_of_the_worker(server: Server, attention: Attention) -> None:
    assert server.pair is not None
    async with Client(server.settings, timeout=30) as client:
        async with Worker(app, server.settings):
            handle = await client.submit(wait)
            waiting = asyncio.ensure_future(handle.result(60))
            await attention.at_rest()
        server.pair.nats.kill()
        await server.pair.nats.start()
        async with Worker(app, server.settings):
            await handle.signal(go, Point(4, datetime(2026, 1, 1, tzinfo=UTC)))
            assert (await waiting).x == 4


async def test_a_client_outside_of_async_with_says_what_to_write(shared: Server) -> None:
    client = Client(shared.settings)
    with pytest.raises(RuntimeError, match="async with Client"):
        await client.get("t")
    with pytest.raises(RuntimeError, match="async with Client"):
        await client.cancel("t")


async def test_connect_takes_what_it_is_given(shared: Server) -> None:
    async with Client.connect(
        shared.nats_url, nats_token=shared.nats_token, tenant="blue", prefix=shared.settings.prefix
    ) as client:
        assert client.tenant == "blue"


async def test_a_client_shares_a_connection(shared: Server) -> None:
    async with Bus.of(shared.settings) as bus:
        async with Client(shared.settings, bus=bus) as client:
            assert client.questions is not None
        assert bus.connected


async def test_a_bad_answer_on_the_wire_is_no_answer(shared: Server) -> None:
    async with (
        Bus.of(shared.settings) as bus,
        Pool(shared.postgres_dsn, application_name="test") as pool,
        Client(shared.settings, bus=bus, timeout=2) as client,
    ):
        pencil = Pencil(pool, bus, shared.subjects)
        await pencil.task("t")

        async def answer(message: Msg) -> None:
            command_id = json.loads(message.data)["command_id"]
            subject = shared.subjects.answer("default", "t")
            at = "2026-01-01T00:00:00Z"
            for body in (
                b"nonsense",
                json.dumps(
                    {"command_id": "x", "task_id": "t", "ok": False, "code": "stale", "message": "other", "at": at}
                ).encode(),
                json.dumps(
                    {"command_id": command_id, "task_id": "t", "ok": True, "code": "applied", "message": "m", "at": at}
                ).encode(),
            ):
                await bus.publish(subject, body)

        await bus.subscribe(shared.subjects.command("default", "t", "pause"), answer)
        assert (await client.pause("t")).message == "m"
