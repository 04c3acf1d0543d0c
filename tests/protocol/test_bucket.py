"""The limit of a remote holds whatever workers do: they die, spend late, come back."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive.protocol import bucket
from outlive.protocol.bucket import Bucket, Lease, Limit

START = datetime(2030, 1, 1, tzinfo=UTC)
LIMIT = Limit(calls=10, per=1, burst=5)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_quiet_bucket_gives_the_burst_and_then_the_rate() -> None:
    row = bucket.full(LIMIT, START)
    first = bucket.take(row, LIMIT, START, "a", want=8, last=0.1)
    assert first.lease == Lease("a", 5, at(0.1))
    none = bucket.take(first.bucket, LIMIT, at(0.05), "b")
    assert none.lease is None and none.again == at(0.2)  # the lease makes room at 0.1, a token takes 0.1 more
    assert bucket.take(none.bucket, LIMIT, at(0.199), "b").lease is None
    assert bucket.take(none.bucket, LIMIT, none.again, "b").lease is not None


def test_what_was_given_back_is_free_and_what_was_spent_is_not() -> None:
    granted = bucket.take(bucket.full(LIMIT, START), LIMIT, START, "a", want=5)
    row = bucket.give_back(granted.bucket, LIMIT, "a", unspent=2)
    assert (row.tokens, row.leases) == (2.0, ())
    assert bucket.give_back(row, LIMIT, "a", unspent=2) == row
    assert bucket.give_back(granted.bucket, LIMIT, "a", unspent=99).tokens == 5.0


def test_a_lease_is_spent_one_by_one_and_never_when_it_has_run_out() -> None:
    lease = Lease("a", 2, at(1))
    one = bucket.spend(lease, at(0.5))
    assert one is not None and one == Lease("a", 1, at(1))
    assert bucket.spend(one, at(1)) is None
    assert bucket.spend(Lease("a", 0, at(1)), at(0)) is None


def test_a_long_pause_fills_up_to_the_burst_even_after_a_lost_lease() -> None:
    granted = bucket.take(bucket.full(LIMIT, START), LIMIT, START, "dead", want=5)
    assert bucket.refill(granted.bucket, LIMIT, at(100)) == Bucket(5.0, at(100))


def test_nobody_is_let_through_while_the_remote_wants_to_be_left_alone() -> None:
    row = bucket.pause(bucket.full(LIMIT, START), at(30))
    refused = bucket.take(row, LIMIT, at(29.9), "a", want=5)
    assert refused.lease is None and refused.again == at(30)
    assert bucket.take(refused.bucket, LIMIT, at(30), "a", want=5).lease == Lease("a", 1, at(31))
    assert bucket.pause(row, at(10)) == row


def test_a_pause_that_is_lifted_leaves_what_was_there() -> None:
    row = bucket.pause(bucket.full(LIMIT, START), at(30))
    assert bucket.lift(row, at(10)) == Bucket(1.0, at(10))
    assert bucket.take(bucket.lift(row, at(10)), LIMIT, at(10), "a", want=5).lease == Lease("a", 1, at(11))
    assert bucket.lift(bucket.full(LIMIT, START), at(10)) == bucket.full(LIMIT, START)


def test_a_clock_that_goes_back_adds_nothing() -> None:
    row = Bucket(0.0, at(10))
    assert bucket.refill(row, LIMIT, at(5)) == row


def test_a_smaller_limit_holds_at_once() -> None:
    granted = bucket.take(bucket.full(LIMIT, START), LIMIT, START, "a", want=2)
    small = Limit(calls=1, per=1, burst=1)
    assert bucket.take(granted.bucket, small, at(0.5), "b").lease is None


@pytest.mark.parametrize("bad", [{"calls": 0}, {"calls": 1, "per": 0}, {"calls": 1, "burst": 0}])
def test_a_limit_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="makes no sense"):
        Limit(**bad)  # type: ignore[arg-type]


moves = st.lists(
    st.tuples(
        st.floats(0, 0.4),  # seconds since the move before
        st.sampled_from("abc"),  # which worker
        st.sampled_from(["take", "spend", "spend", "return", "die"]),
        st.integers(1, 6),
    ),
    max_size=60,
)


@settings(max_examples=150)
@given(moves, st.integers(1, 6), st.floats(0.5, 20), st.floats(0.05, 2))
def test_in_no_span_of_time_do_more_calls_begin_than_allowed(
    plan: list[tuple[float, str, str, int]], burst: int, calls: float, last: float
) -> None:
    limit = Limit(calls=calls, burst=burst)
    row = bucket.full(limit, START)
    leases: dict[str, Lease | None] = {}
    begun: list[float] = []
    now = 0.0
    for pause, who, move, number in plan:
        now += pause
        lease = leases.get(who)
        if move == "take":
            granted = bucket.take(row, limit, at(now), who, want=number, last=last)
            row, leases[who] = granted.bucket, granted.lease
        elif move == "spend" and lease is not None:
            for _ in range(number):
                left = bucket.spend(lease, at(now))
                if left is None:
                    break
                begun.append(now)
                lease = leases[who] = left
        elif move == "return" and lease is not None:
            unspent = lease.tokens
            row = bucket.give_back(bucket.refill(row, limit, at(now)), limit, who, unspent=unspent)
            leases[who] = None
        elif move == "die":
            leases[who] = None
    for i, first in enumerate(begun):
        for j, end in enumerate(begun[i:], 1):
            assert j <= burst + (end - first) * calls + 1e-3
