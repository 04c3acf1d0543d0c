"""What must hold whatever was killed: effects once, progress without a gap."""

from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any

from outlive.actors.testing.fake_service import FakeClient, FakeService
from outlive.actors.testing.world import FakeWorld
from outlive.infra.handle import Handle
from outlive.infra.reader import Gap, Item
from outlive.protocol.events import StatusEvent


async def assert_effects_once(
    effects: FakeService | FakeClient | FakeWorld | Mapping[str, int], expected: int | None = None
) -> None:
    """No effect happened more than once; with `expected`, exactly so many happened.

    Args:
        effects: the fake service or world, whose effects are counted by key; or how often each happened, by any name.
        expected: how many different ones.

    Raises:
        AssertionError: which ones happened how often.
    """
    if isinstance(effects, FakeService):
        counts = dict((await effects.counts()).keys)
    else:
        counts = dict(effects.counts().keys) if isinstance(effects, FakeClient | FakeWorld) else dict(effects)
    twice = {name: count for name, count in counts.items() if count > 1}
    assert not twice, f"{len(twice)} effects happened more than once: {list(twice.items())[:5]}"
    happened = [name for name, count in counts.items() if count]
    assert expected in {None, len(happened)}, f"{len(happened)} effects happened, not {expected}: {happened[:5]}"


async def assert_progress_gapless(progress: Handle[Any] | Iterable[Item] | AsyncIterable[Item]) -> list[Item]:
    """Events of a task are 1, 2, 3, ... without gap, repetition or disorder, and nothing follows its end; returns them.

    Args:
        progress: of a task that ends: its handle, which is followed to the end; or events from the first one on.

    Raises:
        AssertionError: which numbers there are.
    """
    if isinstance(progress, Handle):
        progress = progress.events()
    events = [event async for event in progress] if isinstance(progress, AsyncIterable) else list(progress)
    gaps = [event for event in events if isinstance(event, Gap)]
    assert not gaps, f"events {gaps[0].from_seq} to {gaps[0].to_seq} exist no more"
    numbers = [event.seq for event in events if not isinstance(event, Gap)]
    assert numbers == list(range(1, len(numbers) + 1)), f"the numbers are {numbers}"
    ends = [event.seq for event in events if isinstance(event, StatusEvent) and event.final]
    assert ends in ([], numbers[-1:]), f"{len(numbers)} events, final ones: {ends}"
    return events
