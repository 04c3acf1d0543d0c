"""The ledger's records: operations, their attempts, and the three outcomes of a side effect."""

import enum
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

R_co = TypeVar("R_co", covariant=True)


class ErrorClass(enum.StrEnum):
    """What an error means for the next move; decided before any retry."""

    TIMEOUT = "timeout"  # it may have happened
    RATE_LIMITED = "rate_limited"  # wait as long as told
    UNAVAILABLE = "unavailable"  # back off with jitter, a bounded number of times
    INVALID_ARGUMENTS = "invalid_arguments"  # the same again is useless
    PERMISSION_DENIED = "permission_denied"  # never retried
    NOT_STORABLE = "not_storable"  # it happened; its result cannot be kept
    NOT_SENT = "not_sent"  # proven that no request left
    BUG = "bug"  # anything else


class OperationStatus(enum.StrEnum):
    """Where an operation is; ``unknown`` is not ``failed``."""

    PREPARED = "prepared"
    AWAITING_APPROVAL = "awaiting_approval"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One side effect of a step.

    Attributes:
        key: the idempotency key ``tenant/task:step:operation``.
        digest: hex digest of the encoded arguments; another payload under the same key is refused.
        attempts: how many times it was begun.
        arguments: as given (marked secrets as digests).
    """

    operation_id: str
    step_id: str
    key: str
    name: str
    status: OperationStatus
    digest: str
    attempts: int
    epoch: int
    started_at: datetime
    ended_at: datetime | None = None
    arguments: Any = None
    result: Any = None


class AttemptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One try of an operation or a read-only step."""

    step_id: str
    operation_id: str
    attempt: int
    worker: str
    started_at: datetime
    ended_at: datetime | None = None
    error_class: ErrorClass | None = None
    reason: str | None = None
    wait_until: datetime | None = None


class Outcome(msgspec.Struct, Generic[R_co], frozen=True, kw_only=True, omit_defaults=True):
    """What a reconciler found out about an operation whose answer was lost.

    Attributes:
        verdict: happened | happened_result_lost | did_not_happen | refused | unknown.
        result: the effect's result, with ``happened``.
        reason: why, with ``refused`` and ``unknown``.
        matches: how many effects were found; more than one means that it happened twice.
    """

    verdict: str
    result: R_co | None = None
    reason: str = ""
    matches: int = 1

    @classmethod
    def happened(cls, result: R_co, *, matches: int = 1) -> "Outcome[R_co]":  # type: ignore[misc]  # reason: constructor
        """It happened, and this is its result."""
        return cls(verdict="happened", result=result, matches=matches)

    @classmethod
    def happened_result_lost(cls) -> "Outcome[R_co]":
        """It happened; what it returned cannot be had any more."""
        return cls(verdict="happened_result_lost")

    @classmethod
    def did_not_happen(cls) -> "Outcome[R_co]":
        """It did not happen. Believed only when asked after the last moment at which it still could."""
        return cls(verdict="did_not_happen", matches=0)

    @classmethod
    def refused(cls, reason: str) -> "Outcome[R_co]":
        """The remote refused it for good."""
        return cls(verdict="refused", reason=reason, matches=0)

    @classmethod
    def unknown(cls, reason: str) -> "Outcome[R_co]":
        """Nobody can tell at the moment."""
        return cls(verdict="unknown", reason=reason, matches=0)
