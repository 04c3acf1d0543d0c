"""What a task did before, as its durable function asks for it while it runs again.

Filled once from the stored facts; then each look-up is one dictionary access, so resuming costs the same per step
however long the history is.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

import msgspec

from outlive.infra.claims import Claimed, Mail, StoredAttempt, StoredFact, StoredOperation
from outlive.infra.records import OperationRow
from outlive.protocol import codec
from outlive.protocol.operations import ErrorClass
from outlive.protocol.plan import Plan
from outlive.protocol.policy import Policy, read_policy
from outlive.protocol.task import Versions

DONE = frozenset({"completed", "failed", "unknown"})
"""How a step ends for the function; an unknown one was given up by it."""

_TURNED_AWAY: Final = frozenset({ErrorClass.RATE_LIMITED, ErrorClass.UNAVAILABLE})

VALUE: Final = 40
LINE: Final = 90
"""Characters that are shown of an argument, and of all of them."""

CUT: Final = "..."

OPERATION: Final = "1"
"""An operation's id is its number within the step; the first one carries what the code calls, later ones a person's word."""

REJECTED: Final = "rejected: "
"""How the ledger's note of an operation begins to which a person has said no; their words follow."""

AGREED: Final = "yes of "
"""How the ledger's note of an operation begins that rests on an answer to several calls, or to which a no was taken back."""

OPEN: Final = frozenset({"awaiting_approval", "prepared"})
"""Statuses of operations of which nothing was sent."""

TRIED_AGAIN: Final = b'"tried again"'
"""Stored with the fact that a person has a step tried again."""


class _Stored(msgspec.Struct):
    policy: dict[str, Any] = {}


_policies: Final = msgspec.json.Decoder(_Stored)


def _policy(stored: bytes) -> Policy:
    """Read the policy of a submit; one that this version does not know wants more care, whatever it says."""
    try:
        return read_policy(_policies.decode(stored).policy)
    except ValueError:
        return Policy(every=True)


class Part(NamedTuple):
    """What a person's answer to several calls at once (`task.approve_all`) means for one of them."""

    digest: bytes  # of the call
    question: str  # the step that asked
    status: str  # given, refused or expired
    by: str | None
    message: str  # of a no


class Renewed(NamedTuple):
    """An operation that a person has begun: other arguments, or the same under a new key. Nothing of it was sent yet."""

    step_id: str
    operation_id: str
    name: str
    digest: bytes
    arguments: bytes
    status: str = "prepared"

    def row(self, at: datetime) -> OperationRow:
        """Return its row in the ledger."""
        return OperationRow(
            self.step_id, self.operation_id, self.name, self.status, 0, self.digest, codec.CODEC_JSON, self.arguments, at
        )  # fmt: skip


def call_text(name: str, arguments: bytes, order: Sequence[str] = ()) -> str:
    """Show a call as a person would write it, cut to a line; `arguments` as stored, `order` as declared."""
    values: dict[str, msgspec.Raw] = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
    names = sorted(values, key=lambda each: order.index(each) if each in order else len(order))
    shown = [_short(bytes(values[each]).decode()) for each in names]
    kept = len(shown)
    while kept > 1 and len(", ".join(shown[:kept])) > LINE:
        kept -= 1
    return f"{name}({', '.join([*shown[:kept], *[CUT] * (kept < len(shown))])})"


def _short(value: str) -> str:
    """Cut a JSON value so that it still looks like one."""
    if len(value) <= VALUE:
        return value
    end = {'"': '"', "[": "]", "{": "}"}.get(value[0], "")
    return f"{value[: VALUE - len(CUT) - len(end)]}{CUT}{end}"


class History:
    """The current run's facts, ledger and untaken mail."""

    __slots__ = (
        "_attempts",
        "_latest",
        "_tried_again",
        "begun",
        "child_ends",
        "done",
        "edits",
        "letters",
        "operations",
        "parts",
        "plan",
        "policy",
        "refusals",
        "signals",
        "throttled",
        "unvisited",
        "versions",
        "waits",
        "yeses",
    )

    def __init__(self, claimed: Claimed) -> None:
        """Sort what was loaded."""
        self.done: dict[str, StoredFact] = {}
        self.waits: dict[str, StoredFact] = {}  # began to wait, not known to have ended
        self.begun: dict[str, StoredFact] = {}  # reported as started, not known to have ended
        self.operations: dict[tuple[str, str], StoredOperation] = {
            (operation.step_id, operation.operation_id): operation for operation in claimed.operations
        }
        self._latest: dict[str, StoredOperation | Renewed] = {}
        self._attempts: dict[tuple[str, str], StoredAttempt] = {}
        self._tried_again: dict[str, float] = {}  # by step: the inbox row in which a person wanted it last
        self.yeses: dict[
            tuple[str, str], int
        ] = {}  # by step and operation: the inbox row of the last yes that was used
        self.signals: defaultdict[str, deque[Mail]] = defaultdict(deque)
        self.child_ends: dict[str, Mail] = {}
        self.edits: deque[tuple[Mail, Plan]] = deque()  # plans of people that the function has not taken
        self.plan: Plan | None = None  # the last one recorded
        self.versions = Versions()  # model and prompt that the last incarnation worked with
        self.letters: defaultdict[str, deque[Mail]] = defaultdict(deque)  # people's words, by the inbox row's name
        self.policy = _policy(claimed.input)
        self.parts: dict[str, Part] = {}  # of answers to several calls at once, not used yet; by step
        self.refusals: dict[bytes, tuple[str, str]] = {  # by digest: the step that asked, and a person's no
            operation.digest: (operation.step_id, operation.note.removeprefix(REJECTED))
            for operation in reversed(claimed.operations)
            if operation.note is not None and operation.note.startswith(REJECTED)
        }
        self._sort(claimed.facts)
        self.unvisited = {
            step_id
            for step_id, fact in (*self.done.items(), *self.waits.items(), *self.begun.items())
            if fact.type in {"step", "plan"}
        }
        for operation in sorted(claimed.operations, key=_number):
            self._latest[operation.step_id] = operation
        for attempt in claimed.attempts:
            self._attempts[attempt.step_id, attempt.operation_id] = attempt  # in order: the last one stays
        self.throttled = self._throttled()

    def _throttled(self) -> set[str]:
        """Steps whose remote let nobody in: their task was paused for it (else there would be a time to wait for)."""
        turned_away = {
            attempt.step_id
            for attempt in self._attempts.values()
            if attempt.wait_until is None and attempt.error_class in _TURNED_AWAY
        }
        return turned_away | {step_id for step_id, fact in self.waits.items() if fact.wait_until is None}

    def _sort(self, facts: Iterable[StoredFact]) -> None:
        for fact in facts:
            if fact.type == "plan":
                self.plan = codec.decode(fact.body or b"", Plan)
            elif fact.type == "note" and fact.name == "versions":
                self.versions = codec.decode(fact.body or b"{}", Versions)
            if not fact.step_id:
                continue
            if fact.status == "unknown" and fact.body is None:
                self.begun[fact.step_id] = fact  # an attempt's outcome; the step goes on
            elif fact.status in DONE:
                self.done[fact.step_id] = fact
                self.waits.pop(fact.step_id, None)
                self.begun.pop(fact.step_id, None)
            elif fact.status == "waiting":
                self._wait(fact)
            elif fact.status == "started":
                self.begun[fact.step_id] = fact

    def _wait(self, fact: StoredFact) -> None:
        if fact.inbox_pos is not None and fact.arguments is not None:  # given by a person
            self.renew(fact.step_id, fact.name, fact.arguments)  # (those of an effect stand in the ledger too)
        if fact.body is not None:
            self._tried_again[fact.step_id] = math.inf if fact.inbox_pos is None else fact.inbox_pos
        self.waits[fact.step_id] = fact
        self.done.pop(fact.step_id, None)  # a person has it tried again

    def replace(self, fact: StoredFact) -> None:
        """Put a newer fact of a step in the place of what is stored."""
        for stored in (self.done, self.waits, self.begun):
            stored.pop(fact.step_id, None)
        self._sort((fact,))

    def known(self, step_id: str) -> StoredFact | None:
        """What is stored of a step, ended or not: its name and digest tell what it was called with."""
        fact = self.done.get(step_id) or self.waits.get(step_id) or self.begun.get(step_id)
        if fact is None and (asked := self.operations.get((step_id, OPERATION))) is not None:
            return StoredFact(
                0, "step", step_id, asked.name, asked.status, asked.digest, asked.attempt, None, None, asked.arguments
            )
        return fact

    def knows(self, step_id: str) -> bool:
        """True when anything is stored of the step at this place."""
        return self.known(step_id) is not None

    @property
    def kept(self) -> int:
        """How many steps are done."""
        return sum(fact.type == "step" for fact in self.done.values())

    @property
    def open_operations(self) -> list[StoredOperation]:
        """Operations that were begun and are not known to have ended; their steps run again."""
        latest = (operation for operation in self._latest.values() if isinstance(operation, StoredOperation))
        return [o for o in latest if o.status in {"started", "unknown"} and o.step_id not in self.done]

    def latest(self, step_id: str) -> StoredOperation | Renewed | None:
        """A step's operation with the greatest number: what is, or was last, to be sent. Of a read-only one: a person's."""
        return self._latest.get(step_id)

    def tried_again(self, step_id: str) -> bool:
        """True when a person has the step tried again that had ended."""
        return step_id in self.waits and self.waits[step_id].body is not None

    def agreed(self, step_id: str, operation_id: str) -> bool:
        """True when an intent of the operation has used a yes, and no person has had the step tried again since."""
        wanted = self._tried_again.get(step_id, 0)
        if self.yeses.get((step_id, operation_id), 0) > wanted:
            return True
        one = self.operations.get((step_id, operation_id))
        part = one is not None and one.status not in OPEN and (one.note or "").startswith(AGREED)
        return part and not wanted

    def waits_itself(self, step_id: str) -> bool:
        """True when the step is known to wait, and no person has it tried again."""
        return step_id in self.waits and self.waits[step_id].body is None

    def renew(self, step_id: str, name: str, arguments: bytes) -> Renewed:
        """Begin a step's next operation."""
        before = self._latest.get(step_id)
        number = 2 if before is None else _number(before) + 1
        digest = codec.digest(name.encode(), arguments)
        renewed = self._latest[step_id] = Renewed(step_id, str(number), name, digest, arguments)
        return renewed

    def attempt(self, step_id: str, operation_id: str) -> tuple[int, datetime | None]:
        """The number of an operation's last attempt that ended badly (0: none), and until when its step waits."""
        last = self._attempts.get((step_id, operation_id))
        return (last.attempt, last.wait_until) if last is not None else (0, None)

    def begin_run(self) -> None:
        """Forget the steps of the run that has ended; mail that nobody took stays."""
        self.done, self.waits, self.begun = {}, {}, {}
        self.plan = None
        self.unvisited.clear()


def _number(operation: StoredOperation | Renewed) -> int:
    return int(operation.operation_id) if operation.operation_id.isdecimal() else 0


def refused(operation: StoredOperation, at: datetime) -> OperationRow:
    """The row of an operation that will never be sent."""
    return OperationRow(
        operation.step_id, operation.operation_id, operation.name, "failed", operation.attempt, operation.digest, 0,
        operation.arguments, operation.started_at, None, at,
    )  # fmt: skip
