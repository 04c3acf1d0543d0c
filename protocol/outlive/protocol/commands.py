"""Commands: instructions to a task, each a NATS message with a dedup id.

One tagged union (field ``type``), which later commands extend. Unknown fields are tolerated, so an older reader
understands a newer writer. What is checked against a task's state is in `outlive.protocol.lifecycle`.
"""

from typing import Any, Final, TypeAlias

import msgspec

from outlive.protocol.task import Status

INPUT_LIMIT: Final = 900 * 1024


class Command(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """What every command carries.

    Attributes:
        command_id: the dedup id. In the body it wins over the header ``Nats-Msg-Id``; without both the stream's
            generation and sequence name the message.
        by: who gives the command. Shown as *claimed* unless the subject's principal token says the same.
        note: free text for the audit trail.
    """

    command_id: str | None = None
    by: str | None = None
    note: str | None = None


class Submit(Command, frozen=True, kw_only=True, omit_defaults=True, tag="submit"):
    """Make a task. Identified by its task as well: the same kind and input again is a duplicate, else a conflict.

    Attributes:
        kind: the name of the code that runs the task.
        input: the arguments by name (or ``goal`` for kinds that take a goal). Up to 900 KiB.
        priority: -100 to 100, higher first.
        labels: names for finding the task again.
        policy: options that may only tighten the kind's own.
    """

    kind: str
    input: dict[str, Any] = {}
    goal: str | None = None
    priority: int = 0
    labels: dict[str, str] = {}
    policy: dict[str, Any] = {}


class Pause(Command, frozen=True, kw_only=True, omit_defaults=True, tag="pause"):
    """Stop before the next step, until `Resume`. An operation in flight ends first."""

    reason: str | None = None


class Resume(Command, frozen=True, kw_only=True, omit_defaults=True, tag="resume"):
    """Take back an operator's pause; the task goes on when no other reason is left."""


class Cancel(Command, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """Start nothing more. The final event lists what happened, what is unknown and what was never started."""

    reason: str | None = None


class Signal(Command, frozen=True, kw_only=True, omit_defaults=True, tag="signal"):
    """Hand a value to ``task.wait_for(name)``; kept in order per name until it is taken. Up to 900 KiB."""

    name: str
    value: Any = None


AnyCommand: TypeAlias = Submit | Pause | Resume | Cancel | Signal
"""What clients may send."""


class ChildEnded(Command, frozen=True, kw_only=True, omit_defaults=True, tag="child"):
    """A child task ended: written to its parent's mailbox by the system, never taken from a client.

    Attributes:
        child: the child's task id; its result or failure is read from its own facts.
        step_id: the parent's step that started it.
        status: succeeded, failed or cancelled.
    """

    child: str
    step_id: str
    status: Status


Internal: TypeAlias = ChildEnded
"""What only the system writes; their command ids begin with ``_``."""

Mail: TypeAlias = AnyCommand | Internal
"""What a mailbox may hold."""

VERBS: Final = frozenset({"submit", "pause", "resume", "cancel", "signal"})
"""The verbs of this version; a subject with another verb is answered ``invalid``."""
