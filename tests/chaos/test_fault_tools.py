"""Faults in running workers: each breaks what it says, ends by itself or when told, and leaves nothing behind."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import psutil
import pytest

from outlive.actors.chaos import Fault, freezing
from outlive.actors.chaos.commands import CommandFaults, Frames
from outlive.actors.chaos.control import Control, NotBroken
from outlive.actors.chaos.links import Link, Links, Unproxied
from outlive.actors.chaos.orders import BREAK, KINDS, FaultKind, Report
from outlive.actors.chaos.schedule import Entry, InvalidSchedule, Run, Told, at_random, read
from outlive.actors.testing import FakeService, Server
from outlive.infra.bus import Bus
from outlive.infra.settings import Settings
from tests.chaos.harness import WorkerProcess, send, signal_many, submit_many, until, wait_all_final

LONG = 60.0


async def test_a_link_is_cut_slowed_and_whole_again() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    link = Link("127.0.0.1", server.sockets[0].getsockname()[1])
    await link.open()
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)

    async def said(text: bytes) -> bytes:
        writer.write(text)
        return await reader.readexactly(len(text))

    assert await said(b"one") == b"one"
    link.slow(LONG)
    waiting = asyncio.create_task(said(b"two"))
    assert not (await asyncio.wait({waiting}, timeout=0.2))[0]
    link.slow(0)  # what is held goes on at once
    assert await waiting == b"two"
    link.cut(True)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await said(b"three")
    writer.close()
    refused, writer = await asyncio.open_connection("127.0.0.1", link.port)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await refused.readexactly(1)
    writer.close()
    link.cut(False)
    reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
    assert await said(b"four") == b"four"
    writer.close()
    await link.close()
    server.close()


class Written:
    """Stands for the connection to a worker."""

    def __init__(self) -> None:
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data

    def is_closing(self) -> bool:
        return False


COMMAND = b"HMSG t.default.cmd.one.submit 1 $JS.ACK.x 10 14\r\nNATS/1.0\r\n{\r\n}\r\n"
OTHER = b"MSG t.default.progress.one 2 4\r\n{\r\n}\r\n"


@pytest.mark.parametrize("piece", [1, 7, 1000])
async def test_frames_are_found_however_they_are_cut(piece: int) -> None:
    faults, written = CommandFaults("t"), Written()
    frames = Frames(faults, written)  # type: ignore[arg-type]
    stream = b"PING\r\n" + COMMAND + OTHER + b"+OK\r\n"

    def passed() -> bytes:
        written.data = b""
        for at in range(0, len(stream), piece):
            frames.feed(stream[at : at + piece])
        return written.data

    assert passed() == stream
    faults.duplicate = 1.0
    assert passed() == stream.replace(COMMAND, COMMAND * 2)
    faults.duplicate, faults.drop = 0.0, 1.0
    assert passed() == stream.replace(COMMAND, b"")
    faults.drop, faults.delay, faults.late = 0.0, 1.0, 0.01
    assert passed() == stream.replace(COMMAND, b"")
    await eventually(lambda: _true(written.data.endswith(COMMAND)))
    faults.delay = 0.0
    assert passed() == stream


@pytest.mark.parametrize(
    ("nats", "postgres"),
    [
        ("tls://a:4222", "postgresql://u@b/d"),
        ("nats://a:4222,nats://b:4222", "postgresql://u@b/d"),
        ("nats://a:4222", "postgresql:///d?host=/run"),
        ("nats://a:4222", "postgresql://u@b/d?sslmode=require"),
    ],
)
def test_what_no_proxy_can_stand_in_for_is_told(nats: str, postgres: str) -> None:
    with pytest.raises(Unproxied, match="past the proxy"):
        Links(Settings(nats_url=nats, postgres_dsn=postgres))


def test_a_schedule_is_read_and_what_is_wrong_is_told(tmp_path: Path) -> None:
    toml, json, wrong = tmp_path / "a.toml", tmp_path / "a.json", tmp_path / "wrong.toml"
    toml.write_text(
        '[[fault]]\nat = 2\nfault = "cut-nats"\nfor = 3.5\n[[fault]]\nat = 1\nfault = "kill-worker"\ntarget = "7"\n'
    )
    json.write_text('[{"at": 0, "fault": "delay-commands", "by": 2, "share": 0.5}]')
    assert read(toml) == [Entry(at=1, fault="kill-worker", target="7"), Entry(at=2, fault="cut-nats", seconds=3.5)]
    assert read(json) == [Entry(at=0, fault="delay-commands", by=2.0, share=0.5)]
    for text, told in (
        (b'[[fault]]\nat = 2\nfault = "cut-cable"\n', r".*cut-cable.* - at `\$\.fault\[0\]\.fault`"),
        (b'[[fault]]\nat = 2\nfault = "cut-nats"\nseconds = 3\n', ".*unknown field `seconds`"),
        (b'[[fault]]\nat = 2\nfault = "slow-nats"\nby = -1\n', "slow-nats by -1 seconds: give seconds above 0"),
        (b'[[fault]]\nat = 2\nfault = "skew-clock"\nby = nan\n', "skew-clock by nan seconds: give seconds"),
        (b'[[fault]]\nat = 2\nfault = "cut-nats"\nby = 1\n', "cut-nats has no measure"),
        (b"\xff\xfe", ".*can't decode"),
    ):
        wrong.write_bytes(text)
        with pytest.raises(InvalidSchedule, match=rf"wrong\.toml is no schedule: {told}"):
            read(wrong)


def test_a_random_schedule_is_the_same_for_the_same_seed() -> None:
    first = [*at_random(3, 600)]
    assert first == [*at_random(3, 600)] != [*at_random(4, 600)]
    assert {entry.fault for entry in first} == {*KINDS, "kill-worker", "kill-actor"}
    assert [entry.at for entry in first] == sorted(entry.at for entry in first)
    assert first[-1].at < 600


@pytest.fixture
async def worker(shared: Server, service: FakeService) -> AsyncIterator[WorkerProcess]:
    short = {"CHAOS_TOOLS": "1", "OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}
    async with WorkerProcess(shared, "tests.chaos.effects_app:app", service=service, environment=short) as running:
        yield running


@pytest.fixture
async def control(shared: Server) -> AsyncIterator[Control]:
    async with Control(shared.settings) as orders:
        yield orders


async def eventually(condition: Callable[[], Awaitable[object]]) -> None:
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110  # the worker tells nobody
            await asyncio.sleep(0.02)


async def _true(value: bool) -> bool:
    return value


async def on(control: Control) -> list[FaultKind]:
    return [one.fault.fault for report in await control.list() for one in report.active]


async def test_every_fault_begins_is_listed_and_ends(
    shared: Server, service: FakeService, worker: WorkerProcess, control: Control
) -> None:
    (whole,) = await control.list()
    assert (whole.pid, whole.active) == (worker.pid, [])
    lasting: list[FaultKind] = [kind for kind in KINDS if not kind.startswith(("freeze", "cut", "drop"))]
    for kind in lasting:
        (report,) = await control.begin(Fault(fault=kind, seconds=LONG, incarnation=whole.incarnation))
        assert report.ok, report.message
    assert await on(control) == lasting
    tasks = await submit_many(shared, "ticket", 1, name="amid")  # late, twice, slowly, and with its answer lost
    await wait_all_final(shared, tasks)
    assert (await service.counts()).names == {"open_ticket": 1}
    await until(shared, "select exists (select from outlive_store.attempt where reason like '%answer was lost%')")
    await control.calm()
    assert await on(control) == []
    (brief,) = await control.begin(Fault(fault="skew-clock", seconds=0.05))
    assert brief.ok
    await eventually(lambda: _none(control))
    async with Bus.of(shared.settings, name="test") as bus:
        order = b'{"fault": "slow-nats", "by": -1}'
        reply = await bus.request(shared.subjects.chaos("default", BREAK), order, timeout=5)
    told = msgspec.json.decode(reply.data, type=Report)
    assert not told.ok
    assert told.message.startswith(
        f"worker {worker.pid} cannot read this: slow-nats by -1 seconds: give seconds above 0"
    )


async def _none(control: Control) -> bool:
    return not await on(control)


async def test_commands_that_are_lost_on_the_way_come_later(
    shared: Server, worker: WorkerProcess, control: Control
) -> None:
    await control.begin(Fault(fault="drop-commands", seconds=LONG))
    await send(shared, "lost", "submit", command_id="lost", kind="ticket", input={})
    with pytest.raises(AssertionError, match="not within"):
        await until(shared, "select exists (select from outlive_store.task)", within=1.0)
    await control.calm()
    await wait_all_final(shared, ["lost"])


async def test_a_cut_worker_is_fenced_or_comes_back_and_its_task_ends(
    shared: Server, service: FakeService, worker: WorkerProcess, control: Control
) -> None:
    for kind in ("cut-nats", "cut-postgres"):
        tasks = await submit_many(shared, "told", 1, name=kind)
        await until(shared, "select waiting_for = 'signal go' from outlive.task where task_id = $1", tasks[0])
        await control.begin(Fault(fault=kind, seconds=0.5))
        await signal_many(shared, tasks, "go", True)
        await _ended_by_it_or_by_the_next(shared, worker, tasks)
    assert (await service.counts()).names == {"open_ticket": 2}


async def _ended_by_it_or_by_the_next(server: Server, worker: WorkerProcess, tasks: list[str]) -> None:
    """Wait until tasks have ended; a worker that leaves meanwhile is started again."""
    ended = asyncio.create_task(wait_all_final(server, tasks))
    left = asyncio.create_task(worker.exited(within=60))
    await asyncio.wait({ended, left}, return_when=asyncio.FIRST_COMPLETED)
    if left.done():
        await worker.start()
        await worker.ready()
    else:
        left.cancel()
    await ended


async def test_a_frozen_worker_goes_on_by_itself_or_when_told(
    shared: Server, worker: WorkerProcess, control: Control
) -> None:
    process = psutil.Process(worker.pid)
    (whole,) = await control.list()

    async def stopped() -> bool:
        return process.status() == psutil.STATUS_STOPPED

    async def runs() -> bool:
        return process.status() != psutil.STATUS_STOPPED

    await control.begin(Fault(fault="freeze-worker", seconds=LONG))
    await eventually(stopped)
    assert await asyncio.to_thread(freezing.frozen, shared.settings) == [worker.pid]
    assert "does not answer" in await _refused(control, whole.incarnation)
    assert await asyncio.to_thread(freezing.thaw, shared.settings) == [worker.pid]
    await eventually(runs)
    await eventually(control.list)
    await control.begin(Fault(fault="freeze-worker", incarnation=whole.incarnation, seconds=1.5))
    await eventually(stopped)
    await eventually(runs)  # its guard
    assert await asyncio.to_thread(freezing.frozen, shared.settings) == []
    assert not [child for child in process.children() if "outlive-frozen" in " ".join(child.cmdline())]


async def _refused(control: Control, incarnation: str) -> str:
    with pytest.raises(NotBroken) as refused:
        await control.begin(Fault(fault="skew-clock", incarnation=incarnation))
    return str(refused.value)


async def test_a_frozen_actor_stands_before_its_effect(
    shared: Server, service: FakeService, worker: WorkerProcess, control: Control
) -> None:
    (whole,) = await control.list()
    fault = Fault(fault="freeze-actor", incarnation=whole.incarnation, task_id="told-0", seconds=LONG)
    (refused,) = await control.begin(fault)
    assert (refused.ok, refused.message) == (False, f"worker {worker.pid} has no actor of task told-0 in memory")
    tasks = await submit_many(shared, "told", 1)
    await until(shared, "select exists (select from outlive.task where owner is not null)")
    await eventually(lambda: _begun(control, fault))
    await signal_many(shared, tasks, "go", True)
    await until(shared, "select exists (select from outlive.operation where status = 'started')")
    await asyncio.sleep(0.2)
    assert (await service.counts()).names == {}
    await control.calm()
    await wait_all_final(shared, tasks)
    assert (await service.counts()).names == {"open_ticket": 1}


async def _begun(control: Control, fault: Fault) -> bool:
    return {report.ok for report in await control.begin(fault)} == {True}


async def test_a_schedule_is_played_and_told(shared: Server, worker: WorkerProcess, control: Control) -> None:
    told = list[Told]()

    async def nobody() -> list[tuple[str, str]]:
        return []

    entries = [
        Entry(at=0, fault="skew-clock", seconds=LONG),
        Entry(at=0, fault="kill-actor"),
        Entry(at=0.1, fault="kill-worker", target=str(worker.pid)),
        Entry(at=0.2, fault="slow-nats"),
    ]
    await Run(control, nobody, 0, told.append).play(entries)
    assert [(one.entry.fault, one.ok) for one in told] == [
        ("skew-clock", True), ("kill-actor", False), ("kill-worker", True), ("slow-nats", False),
    ]  # fmt: skip
    assert "no worker holds a task now" in told[1].message
    assert "answers to 'any' now" in told[3].message
    assert await worker.exited() == -9
