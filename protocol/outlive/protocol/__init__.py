"""The contract of Outlive: types on the wire and pure rules, without any input or output.

The names here are what services need that submit and follow tasks. Two modules are used by their own names, since
theirs are short: ``outlive.protocol.api`` (questions and replies) and ``outlive.protocol.codec`` (bytes). The command
`commands.Signal` and the declaration `tools.Signal` share a name, so both stay in their modules.
"""

from typing import TYPE_CHECKING

from outlive.protocol import api, codec, commands, events, ids, lifecycle, paths, tools
from outlive.protocol.answers import Answer, Code
from outlive.protocol.bucket import Limit
from outlive.protocol.checkpoint import Checkpoint, CompletedStep, PendingStep
from outlive.protocol.codec import NotJson, NotStorable
from outlive.protocol.commands import (
    AnyCommand,
    Approve,
    Cancel,
    EditPlan,
    Pause,
    Reject,
    Resolve,
    Resume,
    Retry,
    Skip,
    Submit,
)
from outlive.protocol.errors import (
    CommandRefused,
    InvalidArguments,
    NoAnswer,
    NotSent,
    OutcomeUnknown,
    OutliveError,
    PermissionDenied,
    RateLimited,
    StepFailed,
    TaskCancelled,
    TaskFailed,
    ToolChanged,
    ToolError,
    Unavailable,
    Unreachable,
)
from outlive.protocol.events import (
    SEQ_HEADER,
    AnyEvent,
    ApprovalEvent,
    Attention,
    CommandEvent,
    NoteEvent,
    PlanEvent,
    ResumedEvent,
    StatusEvent,
    StepEvent,
)
from outlive.protocol.ids import InvalidId
from outlive.protocol.operations import AttemptRecord, ErrorClass, OperationRecord, OperationStatus, Outcome, WordRecord
from outlive.protocol.plan import Item, ItemStatus, Plan, PlanInvalid, PlannedItem, PlanRecord
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import Failure, Reason, ReasonCode, Status, TaskRecord
from outlive.protocol.tools import Kind, Operation, RetryPolicy, Tool

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "SEQ_HEADER",
    "Answer",
    "AnyCommand",
    "AnyEvent",
    "ApprovalEvent",
    "Approve",
    "AttemptRecord",
    "Attention",
    "Cancel",
    "Checkpoint",
    "Code",
    "CommandEvent",
    "CommandRefused",
    "CompletedStep",
    "EditPlan",
    "ErrorClass",
    "Failure",
    "InvalidArguments",
    "InvalidId",
    "Item",
    "ItemStatus",
    "Kind",
    "Limit",
    "NoAnswer",
    "NotJson",
    "NotSent",
    "NotStorable",
    "NoteEvent",
    "Operation",
    "OperationRecord",
    "OperationStatus",
    "Outcome",
    "OutcomeUnknown",
    "OutliveError",
    "Pause",
    "PendingStep",
    "PermissionDenied",
    "Plan",
    "PlanEvent",
    "PlanInvalid",
    "PlanRecord",
    "PlannedItem",
    "RateLimited",
    "Reason",
    "ReasonCode",
    "Reject",
    "Resolve",
    "Resume",
    "ResumedEvent",
    "Retry",
    "RetryPolicy",
    "Skip",
    "Status",
    "StatusEvent",
    "StepEvent",
    "StepFailed",
    "Subjects",
    "Submit",
    "TaskCancelled",
    "TaskFailed",
    "TaskRecord",
    "Tool",
    "ToolChanged",
    "ToolError",
    "Unavailable",
    "Unreachable",
    "WordRecord",
    "api",
    "codec",
    "commands",
    "events",
    "ids",
    "lifecycle",
    "paths",
    "tools",
]


def __getattr__(name: str) -> str:
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import version  # noqa: PLC0415  # reads a file: only for those who ask

    return version("outlive")
