"""What a durable function runs in: its history, its one way to write, and the flags that stop it.

Rules that hold here:
- A call takes its place when it is made (see `places`).
- All writes go through one line. A refusal stops the actor at once.
- Once `stop` is set no new step begins, in ``finally`` blocks too; what is in flight may end.
- While `depart` is decided nothing begins, no wait ends and no mail is applied: either the task is let go as it
  stands, or all goes on.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Final, Literal, NamedTuple, get_args

from outlive.actors.alarm import Alarm
from outlive.actors.history import OPERATION, History, call_text
from outlive.actors.places import Places
from outlive.actors.world import World
from outlive.infra import happenings
from outlive.infra.claims import Attempt, Claimed, Mail, StoredFact, StoredOperation
from outlive.infra.clerk import read_reasons
from outlive.infra.journal import Line, Refused
from outlive.infra.records import Fact, Record, State
from outlive.protocol import codec
from outlive.protocol.events import Asked
from outlive.protocol.plan import Plan, progress_text
from outlive.protocol.task import Reason, ReasonCode, Status
from outlive.protocol.tools import AnyKind

Stop = Literal["", "leave", "ended", "pause", "drain", "cancel", "unstorable", "fenced"]
"""Why no step begins any more, a later one outranks an earlier one. ``leave`` is a wish only: steps go on until it is
carried out; after ``ended`` the function has returned."""

_PLAIN: Final = {"note": "progress(...)", "now": "now()"}
_RANK: Final = get_args(Stop)


class Stopped(asyncio.CancelledError):
    """A step was to begin in an actor that is cancelled, pausing, being drained or fenced. Nothing was run."""


class Skipped(Exception):
    """A person has given a result to the step that waits for them: it ends with what is stored."""


class Wait(NamedTuple):
    """A step that waits: for what, until when by itself, and what ends it."""

    what: str
    deadline: datetime | None
    event: "asyncio.Future[bool]"
    person: bool = False  # only a person ends it (or the deadline)


class Flow(Places):
    """The running state of one task's function. Only its own event loop touches it."""

    def __init__(self, claimed: Claimed, kind: AnyKind, line: Line, world: World) -> None:
        """Begin where the history ends."""
        self.claimed = claimed
        self.kind = kind
        self.claim = claimed.claim
        self.line = line
        self.world = world
        self.history = History(claimed)
        super().__init__(claimed.claim.task_id, claimed.run)
        self.reasons: tuple[Reason, ...] = ()  # found by this incarnation, to be written with the pause
        self.status = Status(claimed.status)
        self.cancelling = claimed.cancelling
        self.compensating = claimed.compensating  # the cancel wants undone what the task did
        self.undoing = False  # the function runs no more: what it did is being undone
        self.touched = bool(self.history.operations)  # the ledger has something of this task
        self.cancelled_by: str | None = None
        self.standing: tuple[Reason, ...] = read_reasons(claimed.reasons)  # in the task's row
        self.plan: Plan | None = None  # the one that the function has reached
        self.plan_version = self.history.plan.version if self.history.plan else 0  # of the last one recorded
        self.returned: dict[str, Attempt] = {}  # effects whose success may not be durable yet, by step id
        self.outlived: set[str] = set()  # keys of effects whose threads outlived their timeouts
        self.stop: Stop = ""
        self.struck = False  # a step was refused because of `stop`: the function cannot go on in this incarnation
        self.in_flight = 0
        self.children: dict[str, str] = {}  # by task id: the step that spawned it
        self.waits: dict[str, Wait] = {}
        self.news = asyncio.Event()  # something changed that the actor should look at
        self.idle_since: float | None = None
        self._entered: dict[str, tuple[str, bytes]] = {}  # the same: name and digest of the call
        self._steps: dict[str, asyncio.Task[object] | None] = {}  # begun and not ended: who awaits them
        self._open = asyncio.Event()
        self._open.set()
        self._waiting_shown = claimed.waiting_for is not None
        self._fresh = claimed.status != "queued" and claimed.waiting_for is None  # left in the middle: say `resumed`
        self._signal_waiters: dict[str, list[asyncio.Future[bool]]] = {}
        self._child_waiters: dict[str, asyncio.Future[bool]] = {}
        self._letter_waiters: dict[str, asyncio.Future[bool]] = {}

    # --- what was before

    def told(self, item: str | None, message: str) -> str:
        """Say where in the plan something happens: ``step 2 of 3: ...``."""
        return message if item is None else progress_text(self.plan, item, message)

    def recall(
        self, step_id: str, name: str, digest: bytes | None, show: Callable[[bytes | None], str]
    ) -> StoredFact | None:
        """Return the stored end of a step, if there is one. Pauses when this place belonged to another call.

        Args:
            step_id: the place.
            name: of what is called now.
            digest: of what is called now; None for notes.
            show: puts into words what is called now, or (given arguments as stored) was called by this name before.
        """
        history = self.history
        history.unvisited.discard(step_id)
        done = history.done.get(step_id)
        was = (
            done
            or history.waits.get(step_id)
            or history.begun.get(step_id)
            or history.operations.get((step_id, OPERATION))
        )
        if was is not None and (was.name != name or was.digest != digest):
            raise self._mismatch(step_id, was, name, show)
        return done

    # --- writing

    def write(self, record: Record) -> None:
        """Hand a record in without waiting. Raises `Stopped` when the task is no longer ours, or is being let go."""
        if self.departing or self.claim.left:
            raise self._strike("it is being let go")
        if self._waiting_shown and not (record.state and record.state.waiting_for):
            self._waiting_shown = False
            record.state = record.state or State()
            record.state.waiting_for = ""
        elif record.state is not None and record.state.waiting_for:
            self._waiting_shown = True
        try:
            self.line.hand_in(record)
        except Refused as refused:
            raise self._refused(refused) from None

    async def commit(self, record: Record) -> bool:
        """Hand a record in and wait until it is durable (see `Line.commit`)."""
        self.write(record)
        return await self.flushed()

    async def depart(self, record: Record) -> bool:
        """Hand in the record that lets the task go, and wait. False: mail came first, and all goes on."""
        self.write(record)
        self._open.clear()
        try:
            return await self.flushed() and self.claim.left
        finally:
            self._open.set()

    @property
    def departing(self) -> bool:
        """True while it is decided whether the task is let go: mail must wait."""
        return not self._open.is_set()

    async def flushed(self) -> bool:
        """Wait until all that was handed in is durable."""
        try:
            return await self.line.flushed()
        except Refused as refused:
            raise self._refused(refused) from None

    async def room(self) -> None:
        """Wait while too much is handed in and not durable."""
        try:
            await self.line.room()
        except Refused as refused:
            raise self._refused(refused) from None

    def _refused(self, refused: Refused) -> Stopped:
        self.halt("fenced" if refused.refusal == "fenced" else "unstorable")
        return Stopped(str(refused))

    # --- stopping

    def halt(self, stop: Stop) -> None:
        """Begin no new step from here on, for this reason or a graver one that is set already."""
        if _RANK.index(stop) > _RANK.index(self.stop):
            self.stop = stop
        self.news.set()

    def relent(self) -> bool:
        """Take a pause back. False when it has struck already."""
        if self.stop == "pause" and not self.struck:
            self.stop = ""
            return True
        return self.stop == ""

    @property
    def stopping(self) -> bool:
        """True when no step may begin."""
        return self.stop not in {"", "leave"} or self.claim.left

    def check(self) -> None:
        """Raise `Stopped` when no step may begin."""
        if self.stopping:
            raise self._strike(self.stop)

    def _strike(self, why: str) -> Stopped:
        self.struck = True
        self.news.set()
        return Stopped(f"task {self.claim.task_id} is stopping ({why}): no further step begins")

    def suspend(self, reason: Reason) -> Stopped:
        """Pause for a person; returns what the step must raise."""
        self.reasons = (*self.reasons, reason)
        self.struck = True
        self.halt("pause")
        return Stopped(reason.message)

    @property
    def begins(self) -> bool:
        """True while a step may begin at once."""
        return not self.stop and self._open.is_set() and not self._fresh

    # --- steps

    async def enter(self, step_id: str, name: str, digest: bytes, *, read_only: bool = False) -> None:
        """Wait for a leave to be decided, refuse when stopping, and say where a resumed task goes on."""
        if not self._open.is_set():
            await self._open.wait()
        if self.stopping:
            await asyncio.sleep(0)  # code that catches everything and tries again must not keep the event loop
            self.check()
        if self._fresh:
            self._fresh = False
            self._say_resumed(step_id, name, read_only=read_only)
        self._steps[step_id] = asyncio.current_task()
        self._entered[step_id] = (name, digest)
        self.in_flight += 1
        self.idle_since = None

    def leave(self, step_id: str) -> None:
        """A step that entered has ended."""
        del self._steps[step_id], self._entered[step_id]
        self.in_flight -= 1
        self._settle()

    def known(self, step_id: str) -> StoredFact | None:
        """What is stored of a step, or known of one that runs: its name and digest tell what it was called with."""
        if (stored := self.history.known(step_id)) is not None or step_id not in self._entered:
            return stored
        name, digest = self._entered[step_id]
        return StoredFact(0, "step", step_id, name, "started", digest, 1, None, None, None)

    async def abandon(self) -> None:
        """Give up steps that the function has left behind (in an `asyncio.gather` of which one call failed)."""
        if strays := {task for task in self._steps.values() if task is not None}:
            for task in strays:
                task.cancel()
            await asyncio.wait(strays)

    def gave_up(self, error: BaseException) -> bool:
        """True when the function itself gave a step up that was in flight (``asyncio.timeout``), and goes on."""
        return self.stop in {"", "leave"} and not self.claim.left and not isinstance(error, Stopped)

    def _settle(self) -> None:
        if self.in_flight == 0:
            self.idle_since = asyncio.get_running_loop().time() if self.waits else None
            if self.waits and not self._waiting_shown:  # another branch has written since this wait began
                with suppress(Stopped):
                    self.write(Record(state=self.waiting()))
            self.news.set()
            if self.waits:
                self.world.freed.set()

    def _say_resumed(self, step_id: str, name: str, *, read_only: bool) -> None:
        history, world = self.history, self.world
        sent_again = [o for o in history.open_operations if world.path(o.name) == "send_again"]
        asked = [
            Asked(operation_id=o.operation_id, step_id=o.step_id, answer=f"not known: {world.path(o.name)} is asked")
            for o in history.open_operations if o not in sent_again
        ]  # fmt: skip
        repeated = [o.step_id for o in sent_again] + [s for s in history.begun if history.latest(s) is None]
        if self.claimed.died is not None and read_only and step_id not in repeated:
            repeated.append(step_id)
        counted = [f"{history.kept} steps kept"]
        counted += [f"{len(repeated)} run again"] if repeated else []
        counted += [f"{len(asked)} to be found out"] if asked else []
        message = f"Resumed by worker {world.pid}: {', '.join(counted)}, next: {name}."
        fact = happenings.resumed(
            self.claim, world.clock.now(), world.worker, message, kept=history.kept, asked=asked, repeated=repeated,
            next_step=name,
        )  # fmt: skip
        self.write(Record(facts=(fact,), current_step=step_id))

    def _mismatch(
        self, step_id: str, was: StoredFact | StoredOperation, name: str, show: Callable[[bytes | None], str]
    ) -> Stopped:
        operation = self.history.operations.get((step_id, OPERATION))
        arguments = operation.arguments if operation is not None else was.arguments
        if arguments is not None:
            before = show(arguments) if was.name == name else call_text(was.name, arguments)
        else:
            before = _PLAIN.get(was.name, was.name) if was.name != name else f"{was.name} with other arguments"
        return self.outdated(
            step_id,
            f"Step {step_id} was {before} when this task ran before; the code now calls {show(None)}. Nothing was run. "
            f"Deploy the old code, or: outlive cancel {self.claim.task_id}",
        )

    def left_out(self) -> bool:
        """True when the function has ended without a step that it once made: then it pauses."""
        history = self.history
        for step_id in sorted(history.unvisited):
            was = history.done.get(step_id) or history.waits.get(step_id) or history.begun[step_id]
            self.outdated(
                step_id,
                f"Step {step_id} was {was.name} when this task ran before; the code now ends without it. "
                f"Deploy the old code, or: outlive cancel {self.claim.task_id}",
            )
            return True
        return False

    def outdated(self, step_id: str, message: str) -> Stopped:
        """Pause because code and history differ; returns what the step must raise."""
        return self.suspend(
            Reason(
                reason=ReasonCode.VERSION_MISMATCH, since=self.world.clock.now(), do=f"outlive resume {self.claim.task_id}",
                message=message, step_id=step_id,
            )
        )  # fmt: skip

    # --- waiting

    async def wait(
        self,
        step_id: str,
        what: str,
        deadline: datetime | None,
        event: "asyncio.Future[bool]",
        *,
        person: bool = False,
    ) -> bool:
        """Wait for an event or a time. Returns whether the event came. Only between `enter` and `leave`."""
        alarm = Alarm(self.world.clock, deadline, event) if deadline is not None else None
        self.waits[step_id] = Wait(what, deadline, event, person)
        self.in_flight -= 1
        self._settle()
        try:
            came = await event
            if not self._open.is_set():
                await self._open.wait()
        finally:
            if alarm is not None:
                alarm.cancel()
            event.cancel()  # nobody is woken by it any more
            del self.waits[step_id]
            self.in_flight += 1
            self.idle_since = None
        self.check()
        return came

    @property
    def needs_person(self) -> bool:
        """True when nothing goes on until a person acts (or a deadline comes)."""
        return self.in_flight == 0 and bool(self.waits) and all(wait.person for wait in self.waits.values())

    async def consult(
        self, step_id: str, reason: Reason, asked: Callable[[], Record], *, kept_as: str | None = None
    ) -> Mail | None:
        """Wait for a person's word on a step. None: `reason.until` came first. Only between `enter` and `leave`.

        Raises `Skipped` where the word is the step's result.

        Args:
            step_id: the step.
            reason: why the task waits; stays in its row until a command takes it away.
            asked: makes what is told when it begins to wait; not called when it goes on waiting or an answer is there,
                for a fact that has a number must be written.
            kept_as: the name under which the history keeps the word; else the step's id.
        """
        self.heed(step_id)
        name = kept_as or step_id
        letters = self.history.letters
        if not letters[name] and not self.stands(reason):
            self.standing = (*self.standing, reason)
            record = asked()
            record.state = State(
                reasons=codec.encode(list(self.standing)),
                waiting_for=f"a person: {reason.reason}",
                wait_until=reason.until,
            )
            self.write(record)
        until = next((r.until for r in self.standing if _same(r, reason)), reason.until)
        while not letters[name]:
            event = self._letter_waiters[name] = asyncio.get_running_loop().create_future()
            what = f"a person: {reason.reason}"
            came = await self.wait(step_id, what, until, event, person=True)
            self.heed(step_id)
            if not came and not letters[name]:
                return None
        return letters[name].popleft()

    def heed(self, step_id: str) -> None:
        """Raise `Skipped` when a person has ended this step that runs."""
        if step_id in self.history.done:
            raise Skipped(step_id)

    def skipped(self, step_id: str) -> None:
        """A step was given its result: wake it, if it waits."""
        wait = self.waits.get(step_id)
        if wait is not None and not wait.event.done():
            wait.event.set_result(True)

    def stands(self, reason: Reason) -> bool:
        """True when the task's row says already that it waits for this."""
        return any(_same(standing, reason) for standing in self.standing)

    def withdraw(self, step_id: str, state: State | None = None) -> State | None:
        """Take the reasons of a step away; the state to write with what ended them, added to what else is to be written."""
        left = tuple(reason for reason in self.standing if reason.step_id != step_id)
        if left == self.standing:
            return state
        self.standing = left
        state = state or State()
        state.reasons = codec.encode(list(left))
        return state

    def lettered(self, name: str) -> None:
        """A letter was put into the history under this name."""
        waiter = self._letter_waiters.pop(name, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    @property
    def asleep(self) -> bool:
        """True while all that runs are waits, and none of them has what it waits for: then the task may be let go."""
        return self.idle_since is not None and not any(wait.event.done() for wait in self.waits.values())

    def waiting(self) -> State:
        """Say what the task waits for, and until when by itself."""
        what = ", ".join(dict.fromkeys(wait.what for wait in self.waits.values()))
        return State(waiting_for=what or "nothing", wait_until=self.next_deadline)

    def signal_waiter(self, name: str) -> "asyncio.Future[bool]":
        """A future that ends when mail for this signal is there."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._signal_waiters.setdefault(name, []).append(waiter)
        return waiter

    def child_waiter(self, child: str) -> "asyncio.Future[bool]":
        """A future that ends when the child's end is known."""
        return self._child_waiters.setdefault(child, asyncio.get_running_loop().create_future())

    def signalled(self, name: str) -> None:
        """Mail for a signal was put into the history: wake the first that waits for it."""
        waiters = self._signal_waiters.get(name, [])
        while waiters:
            waiter = waiters.pop(0)
            if not waiter.done():
                waiter.set_result(True)
                return

    def child_ended(self, child: str) -> None:
        """The end of a child was put into the history."""
        waiter = self._child_waiters.pop(child, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(True)

    def begin_run(self, fact: Fact) -> None:
        """Forget the history of the run that ended with `fact`; signals that nobody took stay."""
        self.next_run()
        self.claimed.run, self.claimed.run_from = self.run, fact.seq
        self.history.begin_run()
        self.plan, self.plan_version = None, 0
        self.children.clear()
        self.stop = "" if self.stop == "ended" else self.stop
        self.claim.steps = 0

    @property
    def next_deadline(self) -> datetime | None:
        """The least time at which a wait ends by itself."""
        return min((w.deadline for w in self.waits.values() if w.deadline is not None), default=None)


def _same(one: Reason, other: Reason) -> bool:
    return (one.reason, one.step_id, one.operation_id) == (other.reason, other.step_id, other.operation_id)
