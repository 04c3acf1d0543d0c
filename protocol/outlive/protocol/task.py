"""The task record: what anybody may know about a task at a glance."""

import enum
from datetime import datetime
from typing import Any, Final

import msgspec

from outlive.protocol.budget import Budget
from outlive.protocol.plan import PlanRecord


class Status(enum.StrEnum):
    """Where a task is in its life; changes only by `outlive.protocol.lifecycle`."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.CANCELLED})
"""Nothing runs any more. A failed task may be reopened by a person; the other two never."""


class ReasonCode(enum.StrEnum):
    """Why a task is paused."""

    APPROVAL = "approval"
    OUTCOME_UNKNOWN = "outcome_unknown"
    QUESTION = "question"
    OPERATOR = "operator"
    VERSION_MISMATCH = "version_mismatch"
    BUDGET = "budget"
    QUARANTINED = "quarantined"
    THROTTLED = "throttled"


class Reason(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One reason for which a task waits.

    Attributes:
        reason: the code.
        since: when it began.
        do: the command that unblocks it, ready to type.
        message: what a person should know.
        step_id, operation_id: what it is about; the operation by its number within the step.
        digest: hex digest of the arguments that an approval is for.
        until: when it ends by itself.
        choices: the answers that a question allows; empty = any text.
    """

    reason: ReasonCode
    since: datetime
    do: str
    message: str = ""
    step_id: str | None = None
    operation_id: str | None = None
    digest: str | None = None
    until: datetime | None = None
    choices: list[str] = []

    @property
    def headline(self) -> str:
        """The first line of the message, without a preview that follows it; the code where there is none."""
        return self.message.partition("\n")[0].removesuffix(":") or str(self.reason)


class Versions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which versions made the task's state."""

    task: int = 0
    code: str | None = None
    schema: int = 1
    model: str | None = None
    prompt: str | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The finished steps: how many, and the names of the last five."""

    count: int
    last: list[str]


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a task or a step failed: readable anywhere, without the exception's class."""

    type: str
    message: str
    error_class: str = "bug"
    step_id: str | None = None
    traceback: str | None = None


class Spending(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a task's requests to models have cost.

    Attributes:
        requests: how many were made, attempts that failed or were lost included.
        lost: of these, whose cost nobody knows: what was reserved for them counts as used.
        kept: how often a resume used a recorded answer instead of asking again.
        tokens, money: used by the task itself: in and out, US dollars.
        unpriced: requests to models whose price is not known; their money is not counted.
        lent: tokens that its children have drawn.
        budget: its own limits, if it has any.
    """

    requests: int
    tokens: int
    money: float
    lost: int = 0
    kept: int = 0
    unpriced: int = 0
    lent: int = 0
    budget: Budget | None = None


class TaskRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One task, as ``api.get`` and ``api.list`` show it.

    Attributes:
        plan: what it means to do and how far each item is, where it has a plan; not in lists.
        left: the texts of the plan's items that wait; null without a plan.
        total_steps: how many items the plan has.
    """

    task_id: str
    tenant: str
    kind: str
    status: Status
    created_at: datetime
    updated_at: datetime
    input: dict[str, Any] | None = None
    goal: str | None = None
    reasons: list[Reason] = []
    current_step: str | None = None
    total_steps: int | None = None
    checkpoint: str | None = None
    versions: Versions = Versions()
    labels: dict[str, str] = {}
    priority: int = 0
    parent: str | None = None
    owner: str | None = None
    epoch: int = 0
    last_seq: int = 0
    cancelling: bool = False
    compensating: bool = False
    waiting_for: str | None = None
    wait_until: datetime | None = None
    done: Done = Done(count=0, last=[])
    doing: str | None = None
    left: list[str] | None = None
    plan: PlanRecord | None = None
    needs: list[str] = []
    result: Any = None
    failure: Failure | None = None
    spending: Spending | None = None
