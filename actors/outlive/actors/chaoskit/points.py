"""What is tried: each way in which a run can be disturbed, at each point that the undisturbed run has passed."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, TypeAlias, get_args

from outlive.actors.chaoskit.testimony import Passed
from outlive.infra import failpoints

Fault: TypeAlias = Literal["kill", "lose", "twice", "freeze"]
"""What is done at a point: SIGKILL; the tool's answer is lost; the submit is delivered again; the owner is frozen for
longer than its lease."""

FAULTS: Final = get_args(Fault)

_FROZEN: Final = frozenset(
    {
        "claim.after", "intent.before_commit", "intent.after_commit", "effect.before", "effect.after", "outcome.before_commit",
        "outcome.after_commit", "final.before_commit", "final.after_commit", "publish.before",
    }
)  # fmt: skip
_TWICE: Final = frozenset(
    {"ingest.before_commit", "ingest.after_commit", "claim.after", "effect.after", "final.after_commit"}
)
_BY_FAULT: Final[dict[Fault, frozenset[str]]] = {
    "kill": frozenset(failpoints.NAMES), "lose": frozenset({"effect.after"}), "twice": _TWICE, "freeze": _FROZEN,
}  # fmt: skip
_ACTIONS: Final[dict[Fault, str]] = {"kill": "kill", "lose": "lose", "twice": "", "freeze": "stop"}
_WRITTEN: Final = re.compile(rf"({'|'.join(FAULTS)}):([a-z_.]+)@([1-9]\d*)")

_WHERE: Final = {
    "ingest.before_commit": "while the submit was read from the stream and not taken in yet",
    "ingest.after_commit": "when the submit was taken in and no worker was woken",
    "claim.before": "before the task was claimed",
    "claim.after": "when the task was claimed and its function had not begun",
    "question.before_commit": "before the question about {about} was recorded",
    "question.after_commit": "when the question about {about} was recorded, and the task still lay in memory",
    "intent.before_commit": "before the intent to call {about} was recorded",
    "intent.after_commit": "when the intent to call {about} was recorded and it was not called yet",
    "effect.before": "right before {about} was called",
    "effect.after": "after {about} had happened and before that was recorded",
    "unknown.before_commit": "before it was recorded that the answer of {about} was lost",
    "unknown.after_commit": "when the lost answer of {about} was recorded and nobody was asked yet",
    "reconcile.before": "before the world was asked whether {about} had happened",
    "reconcile.after": "when the world had said whether {about} had happened, before that was recorded",
    "outcome.before_commit": "when {about} had returned and its outcome was not committed yet",
    "outcome.after_commit": "when the outcome of {about} was committed and the function did not know it yet",
    "wait.before_commit": "before it was recorded that the task waits ({about})",
    "wait.after_commit": "when it was recorded that the task waits ({about})",
    "child.before_commit": "before the child {about} was recorded",
    "child.after_commit": "when the child {about} was recorded and no worker was woken for it",
    "leave.before_commit": "before the task was let go to wait",
    "leave.after_commit": "when the task was let go to wait",
    "clerk.before_commit": "while a command was applied for the task that nobody had in memory",
    "clerk.after_commit": "when a command was applied and its answer was not sent",
    "tell.before_commit": "before the news of an end was told to its relatives",
    "tell.after_commit": "when the news of an end lay with its relatives and nobody was woken",
    "publish.before": "before {about} was published",
    "publish.after": "when {about} was published and that was not noted",
    "final.before_commit": "before the end of the task was recorded",
    "final.after_commit": "when the end of the task was recorded and not published",
}
_DONE: Final[dict[Fault, str]] = {
    "kill": "the worker was killed (SIGKILL)",
    "lose": "the answer was lost",
    "twice": "the submit was delivered a second time",
    "freeze": "the worker was frozen for longer than its lease",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One disturbance: `fault` at the `n`-th pass of the failpoint `name`. `about` is what the undisturbed run said of it."""

    fault: Fault
    name: str
    n: int
    about: str = ""

    def __str__(self) -> str:
        """As ``--only`` takes it: ``kill:effect.after@1``."""
        return f"{self.fault}:{self.name}@{self.n}"

    @classmethod
    def read(cls, text: str) -> "Point":
        """Read what `str` gives. Raises `ValueError`."""
        match = _WRITTEN.fullmatch(text)
        if match is None or match[2] not in failpoints.NAMES:
            raise ValueError(f"{text!r} is no point. Write FAULT:FAILPOINT@PASS, for instance kill:effect.after@1")
        return cls(match[1], match[2], int(match[3]))  # type: ignore[arg-type]  # one of FAULTS, by the pattern

    @property
    def armed(self) -> str:
        """As ``OUTLIVE_FAILPOINTS`` takes it."""
        return f"{self.name}={_ACTIONS[self.fault]}@{self.n}"

    @property
    def words(self) -> str:
        """What was done, and when."""
        return f"{_DONE[self.fault]} {_WHERE[self.name].format(about=self.about or 'a step')}"


def enumerate_points(passed: Iterable[Passed]) -> list[Point]:
    """Return every point of an undisturbed run, in the order of its passes."""
    return [
        Point(fault, each.point, each.n, each.about)
        for each in passed
        for fault in FAULTS
        if each.point in _BY_FAULT[fault]
    ]


def in_order(points: Sequence[Point], seed: int) -> list[Point]:
    """Return the points in the order in which they are tried: at random, one of each sort before the second of any."""
    random, sorts = Random(seed), dict[tuple[str, str], list[Point]]()
    for point in points:
        sorts.setdefault((point.fault, point.name), []).append(point)
    for each in sorts.values():
        random.shuffle(each)
    rounds = [
        [each[i] for each in sorts.values() if i < len(each)] for i in range(max(map(len, sorts.values()), default=0))
    ]
    for each in rounds:
        random.shuffle(each)
    return [point for each in rounds for point in each]
