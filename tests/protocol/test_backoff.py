from datetime import UTC, datetime, timedelta, timezone
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import backoff
from outlive.protocol.restart import Intensity

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)


@given(st.integers(1, 10_000), st.integers())
def test_the_wait_is_anything_up_to_the_doubled_base(attempt: int, seed: int) -> None:
    waited = backoff.delay(attempt, base=0.5, cap=60.0, random=Random(seed))
    assert 0 <= waited <= min(60.0, 0.5 * 2.0 ** min(attempt - 1, 30))


def test_the_wait_spreads() -> None:
    random = Random(1)
    waits = [backoff.delay(8, random=random) for _ in range(1000)]
    assert min(waits) < 3
    assert max(waits) > 57
    assert 27 < sum(waits) / len(waits) < 33


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120.0),
        (" 0 ", 0.0),
        ("1.5", 1.5),
        ("Tue, 01 Jan 2030 12:00:30 GMT", 30.0),
        ("Tue, 01 Jan 2030 12:00:30 -0000", 30.0),
        ("Tue, 01 Jan 2030 11:00:00 GMT", 0.0),
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1e9", None),
        ("٣", None),
        ("9" * 30, None),
    ],
)
def test_retry_after_is_read(header: str | None, seconds: float | None) -> None:
    assert backoff.retry_after(header, NOW) == seconds
    assert backoff.retry_after(header, NOW.astimezone(timezone(timedelta(hours=3)))) == seconds


def test_so_many_restarts_within_the_period() -> None:
    limit = Intensity(restarts=2, period=10.0)
    history: list[float] = []
    answers = []
    for now in (0.0, 1.0, 9.9, 10.5, 20.0, 40.0):
        allowed, history = limit.allowed(history, now)
        answers.append(allowed)
    assert answers == [True, True, False, False, True, True]
    assert history == [40.0]


def test_no_restart_may_be_allowed_at_all() -> None:
    assert Intensity(restarts=0).allowed([], 0.0) == (False, [0.0])
