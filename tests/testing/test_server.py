import asyncio

import asyncpg
import pytest

from outlive.actors.testing import Server, fresh, server
from outlive.infra import streams
from outlive.infra.bus import Bus
from outlive.infra.settings import Settings


async def test_a_shared_server_is_ready_and_empty(shared: Server) -> None:
    assert await _tasks(shared) == 0
    async with Bus(shared.nats_url) as bus:
        assert await streams.drift(bus, shared.subjects, shared.settings) == []


async def test_parts_of_one_pair_do_not_see_each_other(shared: Server) -> None:
    async with fresh(shared) as other:
        await _insert(other)
        assert (await _tasks(shared), await _tasks(other)) == (0, 1)
        assert other.subjects.commands_stream != shared.subjects.commands_stream
    with pytest.raises(asyncpg.InvalidCatalogNameError):
        await _tasks(other)


async def test_a_fresh_part_is_a_copy_of_what_was_migrated_once(
    shared: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def again(_: str) -> None:
        raise AssertionError("migrated again")

    monkeypatch.setattr("outlive.infra.migrate.migrate", again)
    async with fresh(shared) as other:
        await _insert(other)
        assert await _tasks(other) == 1


async def test_a_pair_of_its_own_can_be_killed_and_restarted(server: Server) -> None:
    if server.pair is None:
        pytest.skip("only the embedded pair can be restarted")
    await _insert(server)
    for process in (server.pair.postgres, server.pair.nats):
        process.kill()
        await process.start()
    assert await _tasks(server) == 1
    async with Bus(server.nats_url) as bus:
        assert await streams.drift(bus, server.subjects, server.settings) == []


async def test_a_temporary_pair_leaves_nothing_behind() -> None:
    async with server(lease=5.0) as own:
        assert own.settings.lease == 5.0
        folder = own.settings.state_dir
        processes = [own.pair.postgres.pid, own.pair.nats.pid] if own.pair else []
    if own.pair:
        assert all(processes) and not folder.exists()


async def test_another_process_finds_the_same_servers(shared: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    own = shared.with_settings(lease=4.0, linger=0.0)
    for name, value in own.environment.items():
        monkeypatch.setenv(name, value)
    assert Settings.load() == own.settings


async def test_many_parts_at_once(shared: Server) -> None:
    async def use() -> int:
        async with fresh(shared) as own:
            await _insert(own)
            return await _tasks(own)

    assert await asyncio.gather(*(use() for _ in range(3))) == [1, 1, 1]


async def _insert(server: Server) -> None:
    connection = await asyncpg.connect(server.postgres_dsn)
    await connection.execute(
        "insert into outlive_store.task (tenant, task_id, kind, digest, input) values ('t', '1', 'k', '', '')"
    )
    await connection.close()


async def _tasks(server: Server) -> int:
    connection = await asyncpg.connect(server.postgres_dsn)
    try:
        count: int = await connection.fetchval("select count(*) from outlive_store.task")
        return count
    finally:
        await connection.close()
