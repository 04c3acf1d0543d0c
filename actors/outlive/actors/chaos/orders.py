"""What can be broken, as data; and the requests and replies about it on ``{prefix}.{tenant}.chaos.{verb}``.

Every worker that was started with ``--chaos`` hears all of them; those that are meant obey and reply.
"""

from math import isfinite
from typing import Annotated, Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

KILL: Final = "kill"
"""Verb: SIGKILL for a worker, or the end of one actor. Asks with `Kill`, answered with `Killed`."""
BREAK: Final = "break"
"""Verb: a fault begins. Asks with `Fault`, answered with `Report`."""
CALM: Final = "calm"
"""Verb: all faults of a worker, or of all workers, end. Asks with `Calm`, answered with `Report`."""
LIST: Final = "list"
"""Verb: what is on. Asks with `Calm`, answered with `Report`."""

FaultKind: TypeAlias = Literal[
    "freeze-worker", "freeze-actor", "drop-commands", "duplicate-commands", "delay-commands", "lose-answers", "skew-clock",
    "cut-nats", "slow-nats", "cut-postgres", "slow-postgres",
]  # fmt: skip
"""What lasts for a time. Kills are moments, see `Kill`."""

KINDS: Final[tuple[FaultKind, ...]] = get_args(FaultKind)
LONGEST: Final = 3600.0
"""Seconds after which every fault ends."""

BY: Final[dict[str, float]] = {"delay-commands": 1.0, "slow-nats": 0.2, "slow-postgres": 0.2, "skew-clock": -3600.0}
"""Kinds with a measure, and their usual one in seconds."""

WORDS: Final[dict[FaultKind, str]] = {
    "freeze-worker": "frozen (SIGSTOP)",
    "freeze-actor": "the actor stands still before its next effect",
    "drop-commands": "commands from the stream are lost on the way",
    "duplicate-commands": "commands from the stream come twice",
    "delay-commands": "commands from the stream come late, behind later ones",
    "lose-answers": "answers of tools are lost after the effect",
    "skew-clock": "the wall clock is wrong",
    "cut-nats": "the link to NATS is cut",
    "slow-nats": "the link to NATS is slow",
    "cut-postgres": "the link to Postgres is cut",
    "slow-postgres": "the link to Postgres is slow",
}


def check_measure(kind: str, by: float | None) -> None:
    """Refuse a measure that means nothing. Raises `ValueError`."""
    if by is None:
        return
    if kind not in BY:
        raise ValueError(f"{kind} has no measure: leave `by` out (it is for {', '.join(BY)})")
    if not isfinite(by) or (by <= 0 and kind != "skew-clock"):
        raise ValueError(f"{kind} by {by:g} seconds: give {'seconds' if kind == 'skew-clock' else 'seconds above 0'}")


class Kill(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is to be killed: the worker with this incarnation, or with `task_id` only its actor of that task."""

    incarnation: str
    task_id: str | None = None


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """What was done. `ok` is false when the worker does not hold the task; `tasks` is how many it held."""

    ok: bool
    incarnation: str
    pid: int
    tasks: int
    message: str


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One fault that lasts.

    Attributes:
        fault: what is broken.
        incarnation: in which worker; None is every one that was started with ``--chaos``.
        task_id: the task of ``freeze-actor``.
        seconds: after so many it ends by itself.
        by: seconds of delay (``delay-commands``, ``slow-*``: for each piece that passes) or by which the clock is off
            (``skew-clock``, negative: behind); None is the usual one.
        share: of the commands that are hit, 0 to 1.
    """

    fault: FaultKind
    incarnation: str | None = None
    task_id: str | None = None
    seconds: Annotated[float, Meta(gt=0, le=LONGEST)] = 5.0
    by: float | None = None
    share: Annotated[float, Meta(gt=0, le=1)] = 1.0

    def __post_init__(self) -> None:
        """Refuse a measure that means nothing."""
        check_measure(self.fault, self.by)

    @property
    def measure(self) -> float:
        """`by`, or the usual one."""
        return BY.get(self.fault, 0.0) if self.by is None else self.by


class Calm(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Of which worker; None is all."""

    incarnation: str | None = None


class Active(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that is on, and the seconds that it will still last."""

    fault: Fault
    left: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker says: whether it obeyed, what is on in it by now, and where it runs."""

    ok: bool
    incarnation: str
    host: str
    pid: int
    message: str
    active: list[Active]
