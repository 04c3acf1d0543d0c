"""The checkpoint: the structured facts that suffice to go on. No transcript."""

from datetime import datetime
from typing import Any

import msgspec

from outlive.protocol.plan import Item


class CompletedStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that is done; ``digest`` is the hex digest of what it was called with."""

    step_id: str
    name: str
    status: str
    digest: str
    seq: int


class PendingStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step that was begun and is not recorded as done: an operation in flight, a sleep, a wait."""

    step_id: str
    name: str
    status: str
    operation_id: str | None = None
    attempt: int = 1
    arguments: Any = None
    wait_until: datetime | None = None


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All that is needed to go on with a task, assembled from its facts.

    Attributes:
        checkpoint_id: ``{task_id}.{last number}``: facts are append-only, so the number names the state.
        step_index: how many steps are done.
        plan, plan_version: the last plan's items, where the task has one.
        model_version, prompt_version: that its function said last.
        tool_results: result by step id.
        state_version: the task row's version, which grows with every record.
        schema_version: of this struct.
    """

    checkpoint_id: str
    task_id: str
    kind: str
    input: Any
    step_index: int
    completed_steps: list[CompletedStep]
    pending_step: PendingStep | None
    tool_results: dict[str, Any]
    state_version: int
    created_at: datetime
    plan: list[Item] | None = None
    plan_version: int | None = None
    model_version: str | None = None
    prompt_version: str | None = None
    schema_version: int = 1
