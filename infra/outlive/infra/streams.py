"""The two JetStream streams: made, compared with what they must be, and mended where that loses nothing.

Both keep messages by limits on file. Commands are purged behind the ingester's cursor, so their own age must never
end them, and a full stream refuses instead of dropping the oldest. Progress may age out: its history is in Postgres.

Defeats: a power cut of the machine of NATS without `sync_interval: always`
Then: commands of the last two minutes that no worker had taken in are gone, though NATS had acknowledged them
Seen: the task is unknown, or the command has no answer; sending it again under its id is safe at any time
"""

import logging
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from outlive.infra.bus import NO_STREAM, Bus, JetStreamError
from outlive.infra.settings import Settings
from outlive.protocol.subjects import Subjects

_log = logging.getLogger(__name__)

_SECOND: Final = 1_000_000_000
_DAY: Final = 86_400 * _SECOND
_OVERLAP: Final = 10065

_UNSAFE: Final = frozenset({"subjects", "retention", "storage"})
"""What cannot be changed under a stream that holds messages without losing some, or somebody else's."""


class Drift(NamedTuple):
    """A stream's option that is not what it must be. `safe`: `ensure` mends it by itself."""

    stream: str
    option: str
    expected: Any
    found: Any
    safe: bool

    def __str__(self) -> str:
        return f"stream {self.stream}: {self.option} is {self.found!r}, must be {self.expected!r}"


class StreamDrift(Exception):
    """A stream of our name, or on our subjects, is not ours to change; the message says what to do."""


async def ensure(bus: Bus, subjects: Subjects, settings: Settings) -> None:
    """Make both streams, or bring them to what they must be. Idempotent; cheap when there is nothing to do.

    Raises:
        StreamDrift: another stream holds our subjects, or ours has another retention, storage or other subjects.
        outlive.infra.bus.BusError: JetStream did not answer or refused.
    """
    for config in _wanted(subjects, settings):
        found = await _config(bus, config["name"])
        if found is None:
            await _create(bus, config)
        else:
            await _reconcile(bus, config, found)


async def drift(bus: Bus, subjects: Subjects, settings: Settings) -> list[Drift]:
    """List what differs from what must be; a missing stream is one with the option ``name``."""
    differences: list[Drift] = []
    for config in _wanted(subjects, settings):
        found = await _config(bus, config["name"])
        if found is None:
            differences.append(Drift(config["name"], "name", config["name"], None, safe=True))
        else:
            differences += _compare(config, found)
    return differences


def _wanted(subjects: Subjects, settings: Settings) -> list[dict[str, Any]]:
    """Only what is ours to say: replicas, placement and byte limits are left to the operator."""
    common = {"retention": "limits", "storage": "file", "max_msgs_per_subject": -1, "no_ack": False}
    commands = {
        "name": subjects.commands_stream,
        "subjects": [subjects.all_commands],
        "discard": "new",  # a full stream must refuse a command, not forget another
        "max_age": 0,
        "duplicate_window": _SECOND // 10,  # the least: dedup by id alone swallows other tasks' commands
    }
    progress = {
        "name": subjects.progress_stream,
        "subjects": [subjects.all_progress],
        "discard": "old",
        "max_age": settings.progress_max_age_days * _DAY,
        "duplicate_window": 120 * _SECOND,
        "allow_direct": True,  # replay of one task in one round trip
    }
    return [commands | common, progress | common]


async def _config(bus: Bus, name: str) -> dict[str, Any] | None:
    try:
        answer = await bus.api(f"STREAM.INFO.{name}")
    except JetStreamError as error:
        if error.err_code == NO_STREAM:
            return None
        raise
    config: dict[str, Any] = answer["config"]
    return config


async def _create(bus: Bus, config: Mapping[str, Any]) -> None:
    try:
        await bus.api(f"STREAM.CREATE.{config['name']}", config)
    except JetStreamError as error:
        if error.err_code != _OVERLAP:
            raise
        raise StreamDrift(
            f"another JetStream stream already takes {config['subjects'][0]}, so {config['name']} cannot be made. "
            "Delete that stream or take its subjects away (nats stream ls), or set OUTLIVE_PREFIX to another word"
        ) from error
    _log.info("stream %s was made", config["name"])


async def _reconcile(bus: Bus, config: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    differences = _compare(config, found)
    if refused := [str(one) for one in differences if not one.safe]:
        raise StreamDrift(
            f"{'; '.join(refused)}. This cannot be changed without loss. Back the stream up and delete it "
            f"(nats stream rm {config['name']}): it is made again at the next start; or set OUTLIVE_PREFIX to another word"
        )
    if differences:
        await bus.api(f"STREAM.UPDATE.{config['name']}", {**found, **config})
        _log.warning("mended: %s", "; ".join(map(str, differences)))


def _compare(config: Mapping[str, Any], found: Mapping[str, Any]) -> list[Drift]:
    # The server leaves options out of its answer that are false or empty.
    return [
        Drift(config["name"], option, expected, found.get(option, type(expected)()), option not in _UNSAFE)
        for option, expected in config.items()
        if found.get(option, type(expected)()) != expected
    ]
