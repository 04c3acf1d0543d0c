"""A token bucket that several workers share by leases. Pure: the row is read, changed here and written back.

A worker that is about to call takes a lease of a few tokens, valid for a moment, and spends them without asking again.
Tokens of a living lease stay counted against the burst until it is returned or has run out. So free and leased tokens
are together never more than the burst, and in any span of time no more calls begin than ``burst + span / interval``,
whatever workers die and however late they spend.

All times are the database's: a lease that has run out by that clock is spent no more.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How many calls a remote allows.

    Attributes:
        calls: so many ...
        per: ... in so many seconds, evenly.
        burst: so many at once after a quiet time, at least 1; never more within a moment.
    """

    calls: float
    per: float = 1.0
    burst: int = 1

    def __post_init__(self) -> None:
        if not (self.calls > 0 and self.per > 0 and self.burst >= 1):
            raise ValueError(f"{self!r} makes no sense: calls and per are above 0, burst is 1 or more")

    def __str__(self) -> str:
        """Say it, for instance ``10 calls in 1 s, 5 at once``."""
        calls = "1 call" if self.calls == 1 else f"{self.calls:g} calls"
        at_once = f", {self.burst} at once" if self.burst > 1 else ""
        return f"{calls} in {self.per:g} s{at_once}"

    @property
    def interval(self) -> float:
        """Seconds in which one token comes."""
        return self.per / self.calls


class Lease(msgspec.Struct, frozen=True):
    """Tokens that one holder may spend.

    Attributes:
        holder: a name that no other lease of the bucket has.
        tokens: how many calls it may begin.
        until: from then on it may begin none.
    """

    holder: str
    tokens: int
    until: datetime


class Bucket(msgspec.Struct, frozen=True):
    """The row of one tenant and tool.

    Attributes:
        tokens: free ones, as of `at`.
        at: up to when tokens have been added; in the future, the remote wants to be left alone until then.
        leases: those that may still be spent.
    """

    tokens: float
    at: datetime
    leases: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class Granted:
    """The answer to `take`.

    Attributes:
        bucket: what is to be written back.
        lease: None when there is not one token.
        again: when it is worth asking for one, if there is no lease.
    """

    bucket: Bucket
    lease: Lease | None
    again: datetime


def full(limit: Limit | None, at: datetime) -> Bucket:
    """Return the bucket of a tool that nobody has called yet; without a limit, room for the call that tries after a pause."""
    return Bucket(1.0 if limit is None else float(limit.burst), at)


def refill(bucket: Bucket, limit: Limit, now: datetime) -> Bucket:
    """Return the bucket as of now: tokens added, leases that have run out dropped. A clock that goes back adds none.

    Until a lease has run out its tokens may be spent, so they take up room up to that moment and no longer.
    """
    leases = sorted(bucket.leases, key=lambda lease: lease.until)
    tokens, at = bucket.tokens, bucket.at
    while leases and leases[0].until <= now:
        tokens, at = _filled(tokens, at, limit, leases[0].until, leases), max(at, leases[0].until)
        del leases[0]
    return Bucket(_filled(tokens, at, limit, now, leases), max(at, now), tuple(leases))


def take(bucket: Bucket, limit: Limit, now: datetime, holder: str, *, want: int = 1, last: float = 1.0) -> Granted:
    """Lease up to `want` tokens.

    Args:
        bucket: the row as read.
        limit: what the tool declares now; a smaller one than before holds at once.
        now: the database's time.
        holder: who asks. Its earlier lease counts as spent and is replaced: it must not spend from it any more.
            One that it has spent is best given back at once: until then no token comes in its place.
        want: how many calls it is about to begin; it gets what there is.
        last: seconds for which the lease is good. Tokens left at its end are lost, so short and small ones are best.
    """
    current = give_back(refill(bucket, limit, now), limit, holder)
    if current.at > now or current.tokens < 1:
        return Granted(current, None, _next(current, limit, now))
    lease = Lease(holder, min(max(want, 1), int(current.tokens)), now + timedelta(seconds=last))
    left = Bucket(current.tokens - lease.tokens, current.at, (*current.leases, lease))
    return Granted(left, lease, now)


def give_back(bucket: Bucket, limit: Limit, holder: str, *, unspent: int = 0) -> Bucket:
    """End the lease of a holder; what it did not spend is free again.

    Args:
        bucket: as of now (see `refill`).
        limit: of the tool.
        holder: whose lease it is; nothing happens when it has none any more.
        unspent: tokens of it for which no call was begun.
    """
    own = [lease for lease in bucket.leases if lease.holder == holder]
    others = tuple(lease for lease in bucket.leases if lease.holder != holder)
    returned = min(max(unspent, 0), _leased(own))
    room = max(0, limit.burst - _leased(others))
    return Bucket(min(bucket.tokens + returned, float(room)), bucket.at, others)


def pause(bucket: Bucket, until: datetime) -> Bucket:
    """Leave the remote alone until then, as its ``Retry-After`` asks: no token before, at most one at that time.

    Holders of leases must be told, or a call may begin while their leases last.
    """
    return bucket if until <= bucket.at else Bucket(min(bucket.tokens, 1.0), until, bucket.leases)


def lift(bucket: Bucket, now: datetime) -> Bucket:
    """End a pause before its time."""
    return bucket if bucket.at <= now else Bucket(bucket.tokens, now, bucket.leases)


def spend(lease: Lease, now: datetime) -> Lease | None:
    """Take one token for a call that begins now; None when there is none or the lease has run out."""
    if lease.tokens < 1 or now >= lease.until:
        return None
    return Lease(lease.holder, lease.tokens - 1, lease.until)


def _filled(tokens: float, at: datetime, limit: Limit, until: datetime, leases: Iterable[Lease]) -> float:
    added = max(0.0, (until - at).total_seconds()) / limit.interval
    return max(0.0, min(tokens + added, limit.burst - _leased(leases)))


def _leased(leases: Iterable[Lease]) -> int:
    return sum(lease.tokens for lease in leases)


def _next(bucket: Bucket, limit: Limit, now: datetime) -> datetime:
    """Return when there will be a token; while leases take up all room, the first that runs out makes some."""
    full_up = limit.burst - _leased(bucket.leases) < 1
    begin = min(lease.until for lease in bucket.leases) if full_up else now
    return max(bucket.at, begin) + timedelta(seconds=max(0.0, 1 - bucket.tokens) * limit.interval)
