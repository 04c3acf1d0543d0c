"""The clock: the database's time between two readings of it."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from outlive.infra.clock import Clock


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The machine's boot time, to be set."""
    reading = [1000.0]
    monkeypatch.setattr(time, "clock_gettime", lambda _: reading[0])
    return reading


def test_before_the_first_reading_it_is_the_wall_clock() -> None:
    clock = Clock()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(seconds=1)
    assert clock.error == float("inf")


def test_it_follows_the_database_and_not_the_wall_clock(machine: list[float]) -> None:
    clock = Clock()
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    clock.observe(noon, sent=999.9, received=1000.1)
    machine[0] = 1060.0
    assert clock.now() == noon + timedelta(seconds=60)
    assert clock.error == pytest.approx(0.1 + 60 * 100e-6, abs=1e-4)


def test_a_reading_with_a_shorter_round_trip_wins_until_it_is_old(machine: list[float]) -> None:
    clock = Clock()
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    clock.observe(noon, sent=999.999, received=1000.001)
    machine[0] = 1001.0
    clock.observe(noon + timedelta(seconds=0.9), sent=999.0, received=1001.0)  # slow: may be a second off
    assert clock.now() == noon + timedelta(seconds=1)
    machine[0] = 5000.0
    clock.observe(noon + timedelta(seconds=4000), sent=4999.9, received=5000.0)  # slow, but the good one is stale
    assert clock.now() == noon + timedelta(seconds=4000.05)


def test_a_reading_that_contradicts_what_is_known_wins(machine: list[float]) -> None:
    clock = Clock()
    noon = datetime(2020, 1, 1, 12, tzinfo=UTC)
    clock.observe(noon, sent=1000.0, received=1000.0)
    clock.observe(noon + timedelta(hours=1), sent=999.9, received=1000.1)  # the database's clock was set
    assert clock.now() == noon + timedelta(hours=1)
