"""The ledger's records: operations, their attempts, and the three outcomes of a side effect."""

import enum
from datetime import datetime
from typing import Any, Generic, Never, TypeVar

import msgspec

T = TypeVar("T")
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
    """Where an operation is; ``unknown`` is not ``failed``.

    ``prepared``: its arguments are known, and nothing was sent for it. It has a yes, given to several calls at once and
    not used yet; or another step makes the same business action (``unique=``), and it waits for that one, or has its
    result: `OperationRecord.note` says so.
    """

    PREPARED = "prepared"
    AWAITING_APPROVAL = "awaiting_approval"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"


class OperationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One side effect of a step; corrected arguments, or the same under a new key, are another one of the same step.

    Attributes:
        key: the idempotency key ``tenant/task:step:operation``.
        digest: hex digest of the encoded arguments; another payload under the same key is refused.
        attempts: how many times it was begun.
        arguments: as given (marked secrets as digests).
        result: what it returned, where it succeeded and that is at most 10,000 bytes; else see the checkpoint.
        note: what a person should know beside the status: who agreed to it, whose result it has, why it was not sent.
        doubt: what turned out after it had been judged, for instance that it may have happened twice.
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
    note: str | None = None
    doubt: str | None = None


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


class WordRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person said about an operation, and was applied: a yes, a no, what became of it, other arguments.

    Attributes:
        verb: approve | reject | resolve | retry (the operation has the arguments that it gave).
        by: who, as claimed unless `proven`.
        verdict, reference: of a resolve.
        new_operation: of a resolve: it was sent again, as the step's next operation.
    """

    step_id: str
    operation_id: str
    verb: str
    at: datetime
    by: str | None = None
    proven: bool = False
    verdict: str | None = None
    reason: str | None = None
    reference: str | None = None
    new_operation: bool = False


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

    @staticmethod
    def happened(result: T, *, matches: int = 1) -> "Outcome[T]":
        """It happened, and this is its result."""
        return Outcome(verdict="happened", result=result, matches=matches)

    @staticmethod
    def happened_result_lost() -> "Outcome[Never]":
        """It happened; what it returned cannot be had any more."""
        return Outcome(verdict="happened_result_lost")

    @staticmethod
    def did_not_happen() -> "Outcome[Never]":
        """It did not happen. Believed only when asked after the last moment at which it still could."""
        return Outcome(verdict="did_not_happen", matches=0)

    @staticmethod
    def refused(reason: str) -> "Outcome[Never]":
        """The remote refused it for good."""
        return Outcome(verdict="refused", reason=reason, matches=0)

    @staticmethod
    def unknown(reason: str) -> "Outcome[Never]":
        """Nobody can tell at the moment."""
        return Outcome(verdict="unknown", reason=reason, matches=0)
