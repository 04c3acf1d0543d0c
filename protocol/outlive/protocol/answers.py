"""Answers: every command has exactly one, stored with it and sent on the answer subject."""

import enum
from datetime import datetime

import msgspec


class Code(enum.StrEnum):
    """How a command ended. Only ``applied`` and ``duplicate`` are a yes."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"
    UNKNOWN_TASK = "unknown_task"
    UNKNOWN_KIND = "unknown_kind"
    ILLEGAL_TRANSITION = "illegal_transition"
    STALE = "stale"
    TOO_LATE = "too_late"
    INVALID = "invalid"
    NOT_ALLOWED = "not_allowed"


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to one command.

    Attributes:
        ok: true when the command (or its first copy) was applied.
        code: the machine's word for it.
        message: a sentence for people; where the answer is a no, it says what to do.
        at: when it was decided, by the database's clock.
    """

    command_id: str
    task_id: str
    ok: bool
    code: Code
    message: str
    at: datetime
