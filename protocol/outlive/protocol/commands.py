"""Commands: instructions to a task, each a NATS message with a dedup id.

One tagged union (field ``type``), which later commands extend. Unknown fields are tolerated, so an older reader
understands a newer writer. What is checked against a task's state is in `outlive.protocol.lifecycle`.
"""

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from outlive.protocol import keys
from outlive.protocol.budget import Budget
from outlive.protocol.plan import Item, Plan, check
from outlive.protocol.policy import read_policy
from outlive.protocol.task import Failure, Status

INPUT_LIMIT: Final = 900 * 1024
"""The most bytes of a submit's input or a signal's value."""

_NO_NUL: Final = "^[^\\u0000]*$"  # these words become columns, and Postgres has no NUL in a text
Name: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=_NO_NUL)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=10_000, pattern=_NO_NUL)]
SignalName: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}$(?!\n)")]
StepId: TypeAlias = SignalName
OperationName: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9-][A-Za-z0-9_-]{0,63}(:[1-9][0-9]{0,8})?$(?!\n)")
]
Digest: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
Priority: TypeAlias = Annotated[int, msgspec.Meta(ge=-100, le=100)]
_LIMITS: Final = msgspec.json.schema_components((Budget,))[1]["Budget"]["properties"]
_POLICY: Final = {
    "properties": {
        "requires_approval": {"anyOf": [{"const": True}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]},
        "budget": {"type": "object", "properties": _LIMITS, "additionalProperties": False},
    },
    "additionalProperties": False,
}  # fmt: skip
Policy: TypeAlias = Annotated[dict[str, Any], msgspec.Meta(extra_json_schema=_POLICY)]
Labels: TypeAlias = Annotated[dict[Name, Name], msgspec.Meta(max_length=64)]


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every command carries.

    Attributes:
        command_id: the dedup id. In the body it wins over the header ``Nats-Msg-Id``; without both the message is
            named by its place: when the stream was made, the message's time and sequence.
        by: who gives the command. Shown as *claimed* unless the subject's principal token says the same.
        note: free text for the audit trail.
    """

    command_id: str | None = None
    by: Name | None = None
    note: Text | None = None


class Submit(Command, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    """Make a task. Identified by its task as well: the same kind and input again is a duplicate, else a conflict.

    Attributes:
        kind: the name of the code that runs the task.
        input: the arguments by name (or ``goal`` for kinds that take a goal). Up to 900 KiB.
        priority: -100 to 100, higher first.
        labels: names for finding the task again: at most 64, 1 to 200 characters each.
        policy: what may only tighten the tools' own rules: ``{"requires_approval": true}`` has every effect wait for a
            yes, a list of names those tools'; ``{"budget": {"tokens": 10000}}`` limits what it and all that it starts
            spend on models. Children inherit it. Anything else is refused as ``invalid``.
    """

    kind: Name
    input: dict[str, Any] = {}
    goal: str | None = None
    priority: Priority = 0
    labels: Labels = {}
    policy: Policy = {}

    def __post_init__(self) -> None:
        read_policy(self.policy)


class Pause(Command, frozen=True, kw_only=True, omit_defaults=True, tag="pause"):
    """Stop before the next step, until `Resume`. An operation in flight ends first."""

    reason: Text | None = None


class Resume(Command, frozen=True, kw_only=True, omit_defaults=True, tag="resume"):
    """Take back an operator's pause; the task goes on when no other reason is left.

    Attributes:
        raise_budget: for a task that is paused because its budget is used: its new limits, and those of the tasks that
            it draws from, where they are smaller.
    """

    raise_budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.raise_budget is not None and not self.raise_budget:
            raise ValueError("raise_budget names no limit: give tokens, money, steps or seconds")


class Cancel(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """Start nothing more. The final event lists what happened, what is unknown and what was never started.

    Attributes:
        reason: why, for people.
        compensate: true: then undo what the task did, newest first, by the compensators of its tools (and pass that on
            to its children). false: stop undoing; what is not undone yet stays. Left out: undo nothing.
    """

    reason: Text | None = None
    compensate: bool | None = None


class Signal(Command, frozen=True, kw_only=True, omit_defaults=True, tag="signal"):
    """Hand a value to ``task.wait_for(name)``; kept in order per name until it is taken. Up to 900 KiB."""

    name: SignalName
    value: Any = None


class _Consent(Command, frozen=True, kw_only=True, omit_defaults=True):
    """A person's word on an operation that waits for it.

    Attributes:
        operation_id: the step and its operation, the tail of the idempotency key: ``4:1``; ``4`` is the same.
        digest: of the arguments that the person has seen, as the reason shows it; another one is refused as ``stale``.
    """

    operation_id: OperationName
    digest: Digest | None = None
    reason: Text | None = None


class Approve(_Consent, frozen=True, kw_only=True, omit_defaults=True, tag="approve"):
    """Say yes to one operation with exactly its arguments. Used once; the first answer wins."""


class Reject(_Consent, frozen=True, kw_only=True, omit_defaults=True, tag="reject"):
    """Say no to an operation: its step fails with the reason, and nothing is sent."""


Verdict: TypeAlias = Literal["happened", "happened_result_lost", "did_not_happen", "give_up"]
"""What a person says of an effect: it happened (with its result, or that is lost), it did not, or stop asking."""


class Resolve(Command, frozen=True, kw_only=True, omit_defaults=True, tag="resolve"):
    """Say what became of an effect whose outcome nobody could find out.

    Attributes:
        operation_id: the step and its operation, the tail of the idempotency key: ``4:1``; ``4`` is the same.
        verdict: happened (the step completes with `result`) | happened_result_lost (it fails, and is not sent again) |
            did_not_happen (it is sent again) | give_up (the step fails, and nothing is sent).
        reason, reference: how the person knows: a sentence, a number in another system.
        result: what the effect returned, with ``happened``.
        new_operation: with ``did_not_happen``: send it under a new key, for remotes that repeat a stored error. The
            operation stays in the ledger as failed.
    """

    operation_id: OperationName
    verdict: Verdict
    reason: Text | None = None
    reference: Name | None = None
    result: Any = None
    new_operation: bool = False

    def __post_init__(self) -> None:
        if self.result is not None and self.verdict != "happened":
            raise ValueError(f"a result goes with the verdict happened, not with {self.verdict}")
        if self.new_operation and self.verdict != "did_not_happen":
            raise ValueError(f"new_operation goes with the verdict did_not_happen, not with {self.verdict}")


class Retry(Command, frozen=True, kw_only=True, omit_defaults=True, tag="retry"):
    """Let a failed task go on from its checkpoint; the failure of the step is forgotten.

    Attributes:
        step_id: the step that failed; without one the task's own function failed.
        args: all arguments by name, corrected: a new operation with a new key, shown to a person again where the tool
            wants a yes. The step stays what the code calls; only what is sent differs.
    """

    step_id: StepId | None = None
    args: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.args is not None and self.step_id is None:
            raise ValueError("args correct a step: name its step_id")


class Skip(Command, frozen=True, kw_only=True, omit_defaults=True, tag="skip"):
    """Give a step that failed, or that waits for a person, this result; it is not run."""

    step_id: StepId
    result: Any


class EditPlan(Command, frozen=True, kw_only=True, omit_defaults=True, tag="edit_plan"):
    """Give an agent another plan; it goes on by that plan from its next decision on.

    Attributes:
        plan_version: of the plan that the person has changed; another one by now is answered ``stale``. 0: none yet.
        items: all items of the new plan. One that keeps its id keeps its steps.
        reason: kept with the plan.
    """

    plan_version: Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
    items: list[Item]
    reason: Annotated[str, msgspec.Meta(max_length=1000, pattern=_NO_NUL)] | None = None

    def __post_init__(self) -> None:
        check(self.items)

    def plan(self, by: str | None) -> Plan:
        """Return the plan that it makes."""
        return Plan(self.plan_version + 1, self.items, self.reason or "", by or "a person")


AnyCommand: TypeAlias = Submit | Pause | Resume | Cancel | Signal | Approve | Reject | Resolve | Retry | Skip | EditPlan
"""What clients may send."""


class ChildEnded(Command, frozen=True, kw_only=True, omit_defaults=True, tag="child"):
    """A child task ended: written to its parent's mailbox by the system, never taken from a client.

    Attributes:
        child: the child's task id.
        status: succeeded, failed or cancelled.
        result: the child's result as JSON, where it succeeded.
        failure: why it failed or was cancelled, where that is known.
    """

    child: str
    status: Status
    result: msgspec.Raw = msgspec.Raw(b"null")
    failure: Failure | None = None


Internal: TypeAlias = ChildEnded
"""What only the system writes; such rows have command ids that begin with ``_``."""

VERBS: Final = frozenset({
    "submit", "pause", "resume", "cancel", "signal", "approve", "reject", "resolve", "retry", "skip", "edit_plan",
})  # fmt: skip
"""The verbs of this version; a subject with another verb is answered ``invalid``."""


def letter_name(command: AnyCommand) -> str | None:
    """Return what a command is kept under until a step takes it: a signal's name, or the step that it is about."""
    match command:
        case Signal():
            return command.name
        case Approve() | Reject() | Resolve():
            return keys.split_operation(command.operation_id)[0]
        case Retry() | Skip():
            return command.step_id
        case _:
            return None
