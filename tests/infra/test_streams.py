import logging
from collections.abc import AsyncIterator

import msgspec
import pytest

from outlive.actors.testing import Server
from outlive.infra import streams
from outlive.infra.bus import Bus
from outlive.infra.streams import StreamDrift
from outlive.protocol.subjects import Subjects


@pytest.fixture
async def bus(shared: Server) -> AsyncIterator[Bus]:
    async with Bus.of(shared.settings) as bus:
        yield bus


async def _config(bus: Bus, name: str) -> dict[str, object]:
    config: dict[str, object] = (await bus.api(f"STREAM.INFO.{name}"))["config"]
    return config


async def test_streams_are_what_the_contract_says(bus: Bus, shared: Server) -> None:
    commands = await _config(bus, shared.subjects.commands_stream)
    assert commands["subjects"] == [f"{shared.settings.prefix}.*.cmd.>"]
    assert (commands["duplicate_window"], commands["max_age"], commands["discard"]) == (100_000_000, 0, "new")
    progress = await _config(bus, shared.subjects.progress_stream)
    assert progress["max_age"] == 365 * 86_400 * 10**9
    assert (progress["retention"], progress["storage"], progress["allow_direct"]) == ("limits", "file", True)


async def test_ensure_twice_changes_nothing(bus: Bus, shared: Server, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        await streams.ensure(bus, shared.subjects, shared.settings)
    assert await streams.drift(bus, shared.subjects, shared.settings) == []
    assert not [record for record in caplog.records if record.name == streams.__name__]


async def test_safe_drift_is_mended_and_the_operators_options_stay(
    bus: Bus, shared: Server, caplog: pytest.LogCaptureFixture
) -> None:
    name = shared.subjects.progress_stream
    config = await _config(bus, name)
    await bus.api(
        f"STREAM.UPDATE.{name}", {**config, "max_age": 3600 * 10**9, "max_bytes": 10**9, "allow_direct": False}
    )
    settings = msgspec.structs.replace(shared.settings, progress_max_age_days=30)
    assert {one.option for one in await streams.drift(bus, shared.subjects, settings)} == {"max_age", "allow_direct"}
    await streams.ensure(bus, shared.subjects, settings)
    config = await _config(bus, name)
    assert (config["max_age"], config["max_bytes"], config["allow_direct"]) == (30 * 86_400 * 10**9, 10**9, True)
    assert "mended: stream" in caplog.text


async def test_a_stream_of_another_storage_is_refused_with_what_to_do(bus: Bus, shared: Server) -> None:
    name = shared.subjects.commands_stream
    await bus.api(f"STREAM.DELETE.{name}")
    await bus.api(
        f"STREAM.CREATE.{name}", {"name": name, "subjects": [shared.subjects.all_commands], "storage": "memory"}
    )
    with pytest.raises(StreamDrift, match=rf"storage is 'memory', must be 'file'.*nats stream rm {name}"):
        await streams.ensure(bus, shared.subjects, shared.settings)
    assert [one.option for one in await streams.drift(bus, shared.subjects, shared.settings) if not one.safe] == [
        "storage"
    ]


async def test_subjects_taken_by_another_stream_are_refused_with_what_to_do(bus: Bus, shared: Server) -> None:
    other = Subjects(shared.settings.prefix + "x")
    await bus.api("STREAM.CREATE.ELSE", {"name": "ELSE", "subjects": [f"{other.prefix}.>"], "storage": "file"})
    try:
        with pytest.raises(StreamDrift, match="another JetStream stream already takes"):
            await streams.ensure(bus, other, shared.settings)
        missing = await streams.drift(bus, other, shared.settings)
        assert [(one.stream, one.option) for one in missing] == [
            (other.commands_stream, "name"),
            (other.progress_stream, "name"),
        ]
    finally:
        await bus.api("STREAM.DELETE.ELSE")
