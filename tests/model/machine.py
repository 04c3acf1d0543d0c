"""The protocol as a state machine: its workers do their duty, the rules are whatever can happen to them.

Each rule is one indivisible thing: one transaction, one request, one message, one death. Hypothesis chooses which comes
next. Workers are small here: a task pays twice, the first time after a person's yes, at a remote without keys that can be
asked; that takes every kind of record that the protocol has.
"""

import re
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from outlive.infra.claims import Mail
from outlive.infra.clerk import read_command
from outlive.protocol import lifecycle
from outlive.protocol.lifecycle import Facts
from outlive.protocol.task import Reason, ReasonCode, Status
from tests.model.store import KIND, NOW, OVER, CommandStream, Letter, Operation, ProgressStream, Store, Task, World

TASKS: Final = ("a", "b")
STEPS: Final = 2
DEATHS: Final = 3
"""Deaths of a worker within one step after which a person is asked."""

worker_number = st.integers(0, 2)
task_name = st.sampled_from(TASKS)


@dataclass
class Actor:
    """A task in a worker's memory."""

    epoch: int
    version: int
    applied: int
    steps: int
    phase: str = "idle"
    asked: bool = False
    """A person must look: too many deaths."""


@dataclass
class Flow:
    """What a worker knows of a task's events in the stream."""

    epoch: int
    number: int
    at: int
    wanted: int
    doubt: bool = False


@dataclass
class Worker:
    """A process."""

    me: uuid.UUID
    kinds: frozenset[str]
    alive: bool = True
    frozen: bool = False
    expired: bool = False
    """Its lease is over."""
    stopped: set[str] = field(default_factory=set)
    """Tasks of which it ran nothing when it died, because a person must look first."""
    cursor: tuple[int, int] | None = None
    """Epoch and position of the cursor that it believes to hold."""
    actors: dict[str, Actor] = field(default_factory=dict)
    flows: dict[str, Flow] = field(default_factory=dict)

    @property
    def acts(self) -> bool:
        """Whether it can do anything."""
        return self.alive and not self.frozen


class Protocol(RuleBasedStateMachine):
    """See the module."""

    bugs: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        """Three workers, one of which lacks the code."""
        super().__init__()
        self.store, self.world = Store(self.bugs), World()
        self.commands, self.progress = CommandStream(), ProgressStream()
        self.born = 0
        self.workers = [self._born({KIND}), self._born({KIND}), self._born({"other"})]
        self.believed: list[str] = []
        """Whoever was taken for the owner and was not."""
        self.deaths: Counter[tuple[str, int]] = Counter()
        self.cut: set[str] = set()
        """Tasks of whose events the stream has lost some."""
        self.graves: list[Worker] = []
        """Workers that died and were started again: what they owned is still theirs by the table."""

    def _born(self, kinds: set[str] | frozenset[str]) -> Worker:
        self.born += 1
        return Worker(uuid.UUID(int=self.born), frozenset(kinds))

    @initialize(rounds=st.integers(0, 9))
    def begin(self, rounds: int) -> None:
        """Somewhere in the middle: both tasks are submitted, and have got as far as they get in so many quiet rounds."""
        for name in TASKS:
            self.submit(name)
        for number in range(rounds):
            self.quiet_round()
            for name, task in self.store.tasks.items():
                if any(reason.reason is ReasonCode.APPROVAL for reason in task.reasons):
                    self.approve(name, number % 8)

    # --- clients

    @rule(task=task_name)
    def submit(self, task: str) -> None:
        """Also again: a client that heard nothing."""
        self.commands.publish(task, "submit", command_id=f"submit-{task}", kind=KIND)

    @rule(task=task_name, number=st.integers(0, 7))
    def approve(self, task: str, number: int) -> None:
        self.commands.publish(task, "approve", command_id=f"approve-{task}-{number}", operation_id="1")

    @rule(task=task_name, verb=st.sampled_from(["pause", "resume", "cancel"]), number=st.integers(0, 1))
    def command(self, task: str, verb: str, number: int) -> None:
        self.commands.publish(task, verb, command_id=f"{verb}-{task}-{number}")

    # --- what may happen to streams and processes

    @rule(count=st.integers(1, 3))
    def commands_lose_their_end(self, count: int) -> None:
        del self.commands.messages[-count:]

    @rule()
    def commands_are_made_anew(self) -> None:
        self.commands.created, self.commands.messages = f"{self.commands.created}+", []

    @rule(count=st.integers(1, 3))
    def progress_loses_its_end(self, count: int) -> None:
        """Noticed with the task's next event; until then readers have the table."""
        before = {name: len(events) for name, events in self.progress.events.items()}
        self.progress.lose(count)
        self.cut |= {name for name, events in self.progress.events.items() if len(events) < before[name]}

    @rule(number=worker_number)
    def crash(self, number: int) -> None:
        worker = self.workers[number]
        if not worker.alive:
            return
        worker.alive, worker.cursor = False, None
        worker.stopped = {name for name, actor in worker.actors.items() if actor.asked}
        worker.actors, worker.flows = {}, {}

    @rule(name=task_name)
    def kill_its_worker(self, name: str) -> None:
        """A task that takes the memory of its whole process, or somebody's bad luck."""
        for number, worker in enumerate(self.workers):
            if worker.alive and name in worker.actors:
                self.crash(number)

    @rule(number=worker_number)
    def start(self, number: int) -> None:
        if not self.workers[number].alive:
            self.graves.append(self.workers[number])
            self.workers[number] = self._born(self.workers[number].kinds)

    @rule(number=worker_number, expires=st.booleans())
    def freeze(self, number: int, expires: bool) -> None:
        self.workers[number].frozen = True
        self.workers[number].expired |= expires

    @rule(number=worker_number)
    def thaw(self, number: int) -> None:
        self.workers[number].frozen = False

    @rule(number=worker_number)
    def beat(self, number: int) -> None:
        """A heartbeat: refused where it was declared dead, and then the process ends."""
        worker = self.workers[number]
        if worker.acts:
            worker.expired = False
            if worker.me in self.store.fenced:
                self.crash(number)

    @rule()
    def requests_arrive(self) -> None:
        """Whatever travels to the remote arrives now."""
        for key, _ in self.world.travelling:
            self._happen(key)
        self.world.travelling = []

    @rule()
    def requests_are_lost(self) -> None:
        self.world.travelling = []

    def _happen(self, key: str) -> None:
        self.world.happened[key] += 1

    # --- the ingester

    @rule(number=worker_number, count=st.integers(1, 3), gap=st.booleans(), lost=st.booleans())
    def ingest(self, number: int, count: int, *, gap: bool = False, lost: bool = False) -> None:
        """Take the cursor, or a batch; a cut link may have swallowed a message (`gap`), or the answer (`lost`)."""
        worker, store = self.workers[number], self.store
        if not worker.acts:
            return
        if worker.cursor is None:
            epoch = store.take_cursor(worker.me, free=self._is_gone(store.cursor.owner))
            worker.cursor = None if epoch is None else (epoch, store.cursor.seq)
            return
        epoch, seq = worker.cursor
        if self._is_another_stream():
            kept = store.restart_cursor(worker.me, epoch, self.commands.created)
            worker.cursor = (epoch, 0) if kept else None
            return
        batch = self.commands.messages[seq : seq + count]
        if gap and batch:
            if "no consumer sequence" not in self.bugs:
                return  # the next message is not the expected one: a new consumer is made
            batch = batch[1:]
        if batch:
            held = (store.cursor.owner, store.cursor.epoch) == (worker.me, epoch)
            admitted = store.admit(worker.me, epoch, seq, batch, self.commands.created)
            if admitted and not held:
                self.believed.append(f"{worker.me} took commands in with epoch {epoch}, it is {store.cursor.epoch}")
            worker.cursor = (epoch, batch[-1].seq) if admitted and not lost else None

    def _is_another_stream(self) -> bool:
        cursor, messages = self.store.cursor, self.commands.messages
        if "no generation check" in self.bugs and cursor.created:
            return False
        if cursor.created != self.commands.created or len(messages) < cursor.seq:
            return True
        last = messages[cursor.seq - 1] if cursor.seq else None
        return last is not None and (last.at, last.digest) != (cursor.at, cursor.digest)

    # --- claims

    def _is_gone(self, owner: uuid.UUID | None) -> bool:
        worker = next((w for w in (*self.workers, *self.graves) if w.me == owner), None)
        return worker is not None and (not worker.alive or worker.expired)

    @rule(number=worker_number)
    def fence(self, number: int) -> None:
        """A worker declares dead who is gone; it must be alive itself."""
        worker = self.workers[number]
        if worker.acts and not worker.expired and worker.me not in self.store.fenced:
            gone = [w.me for w in (*self.workers, *self.graves) if w is not worker and self._is_gone(w.me)]
            self.store.fenced.update(gone)

    @rule(number=worker_number, name=task_name)
    def claim(self, number: int, name: str) -> None:
        """Take what is due, or what somebody declared dead has left."""
        worker, task = self.workers[number], self.store.tasks.get(name)
        if task is None or not worker.acts or (KIND not in worker.kinds and "any kind" not in self.bugs):
            return
        former = task.owner if task.owner in self.store.fenced else None
        if task.owner == worker.me or not self.store.claim(worker.me, task, former):
            return
        if any(w.me == former and name not in w.stopped and not w.alive for w in (*self.workers, *self.graves)):
            self.deaths[name, task.steps] += 1
        asked = task.deaths[task.steps] >= DEATHS and "deaths do not count" not in self.bugs
        worker.actors[name] = Actor(task.epoch, task.version, task.applied, task.steps, asked=asked)
        worker.flows[name] = Flow(task.epoch, task.published, task.published_at, len(task.facts))
        if any(one.status == "started" for one in task.operations.values()):
            worker.actors[name].phase = "asking"

    # --- the actor

    @rule(number=worker_number, name=task_name, lost=st.booleans(), answer=st.booleans())
    def act(self, number: int, name: str, *, lost: bool = False, answer: bool = True) -> None:
        """One thing that an actor does. The answer of the store (`lost`) or of the remote (not `answer`) may be lost."""
        worker = self.workers[number]
        actor = worker.actors.get(name)
        if not worker.acts or actor is None:
            return
        task, turn = self.store.tasks[name], _Turn(self, worker, actor, name, lost=lost)
        if actor.asked and actor.applied == task.inbox_head:
            reason = Reason(reason=ReasonCode.QUARANTINED, since=NOW, do="look")
            turn.leave(Status.PAUSED, "quarantined", reasons=(*task.reasons, reason))
            return
        match "stopped" if actor.asked else actor.phase:
            case "sending" if worker.expired:
                return  # the send would not be covered by the lease
            case "sending":
                self.world.travelling.append((turn.key, True))
                actor.phase = "waiting"
            case "waiting" if answer and (turn.key, True) in self.world.travelling:
                self.world.travelling.remove((turn.key, True))
                self._happen(turn.key)
                turn.complete()
            case "waiting":
                actor.phase = "asking"
            case "asking":
                self._ask(turn)
            case "idle":
                turn.go_on()
            case _:
                turn.read_mail()

    def _ask(self, turn: "_Turn") -> None:
        """Find out about an attempt whose end nobody knows."""
        if "no reconcile" in self.bugs:
            turn.intend()
        elif self.world.happened[turn.key]:
            turn.complete()
        elif "no settle" in self.bugs or all(key != turn.key for key, _ in self.world.travelling):
            turn.did_not_happen()

    # --- the clerk

    @rule(number=worker_number, name=task_name)
    def clerk(self, number: int, name: str) -> None:
        """Apply the mail of a task that has no owner."""
        worker, task = self.workers[number], self.store.tasks.get(name)
        if task is None or not worker.acts or not task.mail or task.owner is not None:
            return
        task.epoch += 1
        before, wake = task.status, task.due
        for letter in letters(self.store, task, task.applied):
            decision = decide(task, letter, owned=False)
            lifecycle.check_transition(task.status, decision.status)
            task.status, task.reasons, task.cancelling = decision.status, decision.reasons, decision.cancelling
            wake |= decision.wake and decision.ok
            task.facts.append(f"command {letter.command_id}: {letter.code}")
        if task.status is not before:
            task.facts.append(status_fact(task))
        task.version, task.applied = task.version + 1, task.inbox_head
        task.mail, task.sweep = False, True
        task.due = wake and task.status in {Status.QUEUED, Status.RUNNING}

    # --- the relay

    @rule(number=worker_number, name=task_name, lost=st.booleans())
    def relay(self, number: int, name: str, *, lost: bool = False) -> None:
        """Publish the next event, or ask the stream where it is in doubt."""
        worker = self.workers[number]
        flow, task = worker.flows.get(name), self.store.tasks.get(name)
        if not worker.acts or flow is None or task is None:
            return
        if flow.doubt:
            number_there, at = self.progress.end(name)
            if number_there < flow.number and task.epoch == flow.epoch and task.published > number_there:
                task.published, task.published_at = number_there, at
            flow.number, flow.at, flow.doubt = min(number_there, flow.wanted), at, False
        elif flow.number < flow.wanted:
            expected = None if "no expected last" in self.bugs else flow.at
            at_now = self.progress.publish(name, flow.number + 1, expected)
            if at_now is None or lost:
                flow.doubt = True
            else:
                flow.number, flow.at = flow.number + 1, at_now
        elif task.owner is None:
            self.store.mark(task, flow.epoch, flow.number, flow.at)
            del worker.flows[name]

    @rule(number=worker_number, name=task_name)
    def sweep(self, number: int, name: str) -> None:
        """Take up the events of a task that was left before all were published."""
        worker, task = self.workers[number], self.store.tasks.get(name)
        if task is not None and worker.acts and task.sweep and task.owner is None and "no sweep" not in self.bugs:
            worker.flows[name] = Flow(task.epoch, task.published, task.published_at, len(task.facts))

    @rule(number=worker_number, name=task_name, moves=st.integers(1, 12))
    def work(self, number: int, name: str, moves: int) -> None:
        """A while in which nothing goes wrong: without it few schedules would get far."""
        for _ in range(moves):
            self.ingest(number, 3)
            self.claim(number, name)
            self.act(number, name)
            self.clerk(number, name)
            self.sweep(number, name)
            self.relay(number, name)

    # --- what must hold at every moment

    @invariant()
    def i1_one_writer(self) -> None:
        """Whoever writes owns the task at that epoch, and no step is completed twice."""
        assert not self.believed, self.believed
        for task in self.store.tasks.values():
            done = Counter(fact for fact in task.facts if fact.startswith("completed"))
            assert all(times == 1 for times in done.values()), done

    @invariant()
    def i2_no_command_twice(self) -> None:
        """A command id is in the inbox once, and a task's letters have the places 1 to n."""
        ids = Counter(letter.command_id for letter in self.store.inbox)
        assert all(times == 1 for times in ids.values()), ids
        for name, task in self.store.tasks.items():
            places = [letter.pos for letter in self.store.inbox if letter.task_id == name and letter.pos]
            assert places == list(range(1, task.inbox_head + 1))

    @invariant()
    def i3_intent_before_effect(self) -> None:
        """Nothing happens in the world, and nothing travels there, that is not in the ledger."""
        for key in [*self.world.happened, *(key for key, _ in self.world.travelling)]:
            name, _, step = key.partition(":")
            assert step in self.store.tasks[name].operations, key

    @invariant()
    def i4_unknown_is_not_failed(self) -> None:
        """Nothing happens twice, and what is recorded as done was done."""
        assert all(times == 1 for times in self.world.happened.values()), self.world.happened
        for name, task in self.store.tasks.items():
            for step, operation in task.operations.items():
                assert operation.status != "succeeded" or self.world.happened[f"{name}:{step}"], step

    @invariant()
    def i5_progress_is_gapless(self) -> None:
        """In the stream, the events of a task are 1 to n, in order, each once."""
        for name, events in self.progress.events.items():
            numbers = [number for number, _ in events]
            assert numbers == list(range(1, len(numbers) + 1)), (name, numbers)

    @invariant()
    def i6_cancel_is_honest(self) -> None:
        """After a cancel nothing is recorded any more, and it lists all that happened or may have."""
        for name, task in self.store.tasks.items():
            ends = [n for n, fact in enumerate(task.facts) if fact.startswith("cancelled")]
            if ends:
                assert len(ends) == 1
                assert all(fact.startswith("command") for fact in task.facts[ends[0] + 1 :])
                done = {key for key in self.world.happened if key.startswith(f"{name}:")}
                assert done <= set(task.facts[ends[0]].split()[1:]), (done, task.facts[ends[0]])

    @invariant()
    def i7_nobody_owns_what_it_cannot_run(self) -> None:
        """A worker without a task's code never owns it."""
        owners = {task.owner for task in self.store.tasks.values()}
        assert all(KIND in worker.kinds or worker.me not in owners for worker in self.workers)

    @invariant()
    def a_yes_comes_first(self) -> None:
        """What needs a yes does not happen without one."""
        for name in TASKS:
            yes = any(
                one.verb == "approve" and one.code == "applied" for one in self.store.inbox if one.task_id == name
            )
            assert yes or not self.world.happened[f"{name}:1"]

    @invariant()
    def a_poison_task_is_stopped(self) -> None:
        """Within one step, workers die for a task a few times and no more."""
        assert all(times <= DEATHS for times in self.deaths.values()), self.deaths

    # --- what must hold in the end

    def teardown(self) -> None:
        """Leave everything in peace for long enough: whatever was sent is answered, done, and told."""
        for _ in range(60):
            self.quiet_round()
            self.check()
        for message in self.commands.messages:
            known = {letter.command_id: letter for letter in self.store.inbox}
            read = msgspec.json.decode(message.body)["command_id"]
            assert read in known, f"I2: {read} was lost"
            assert known[read].code is not None, f"I2: {read} was not answered"
        for name, task in self.store.tasks.items():
            told = len(self.progress.events.get(name, []))
            assert told == len(task.facts) or name in self.cut, (
                f"I5: {told} of {len(task.facts)} events of {name} are told"
            )
            waits = task.status is Status.PAUSED or task.status in OVER
            assert waits, f"{name} is {task.status} for ever"

    def check(self) -> None:
        """Check every invariant; an error names the one that is broken."""
        for name, held in INVARIANTS.items():
            try:
                held(self)
            except AssertionError as broken:
                raise AssertionError(f"{name}: {broken}") from broken

    def quiet_round(self) -> None:
        """Everybody lives, and does the next thing that is to be done."""
        for number in range(len(self.workers)):
            self.start(number)
            self.thaw(number)
            self.beat(number)
        for number in range(len(self.workers)):
            self.fence(number)
            self.ingest(number, 3)
            for name in TASKS:
                self.claim(number, name)
                self.act(number, name)
                self.clerk(number, name)
                self.sweep(number, name)
                for _ in range(4):
                    self.relay(number, name)
        self.requests_arrive()


INVARIANTS: Final[dict[str, Callable[[Protocol], None]]] = {
    name: getattr(Protocol, name) for name in vars(Protocol) if re.match(r"i\d_|a_", name)
}


class _Turn:
    """One move of one actor: what it records, and what it learns when the record is refused."""

    def __init__(self, model: Protocol, worker: Worker, actor: Actor, name: str, *, lost: bool) -> None:
        self._model, self._worker, self._actor, self._name, self._lost = model, worker, actor, name, lost
        self._task = model.store.tasks[name]
        self.step = str(actor.steps + 1)
        self.key = f"{name}:{self.step}"

    def go_on(self) -> None:
        """Read the mail; then the next step, a question, or the end."""
        task, actor, store = self._task, self._actor, self._model.store
        if actor.applied < task.inbox_head:
            self.read_mail()
        elif task.cancelling:
            effects = " ".join(f"{self._name}:{step}" for step in task.operations)
            self.leave(Status.CANCELLED, f"cancelled {effects}".strip(), reasons=())
        elif task.reasons:
            self.leave(Status.PAUSED, "paused", reasons=task.reasons)
        elif actor.steps == STEPS:
            self.leave(Status.SUCCEEDED, "succeeded", reasons=())
        elif self.step == "1" and "approval is not asked" not in store.bugs and not self._has_yes():
            reason = Reason(reason=ReasonCode.APPROVAL, since=NOW, do="say", step_id="1", operation_id="1")
            self.leave(Status.PAUSED, "asked", reasons=(reason,))
        else:
            self.intend()

    def _has_yes(self) -> bool:
        return any(
            row.task_id == self._name and row.verb == "approve" and row.code == "applied"
            for row in self._model.store.inbox
        )

    def read_mail(self) -> None:
        """Decide all letters that came meanwhile."""
        head = self._task.inbox_head

        def write(task: Task) -> list[str]:
            facts: list[str] = []
            for letter in letters(self._model.store, task, self._actor.applied):
                decision = decide(task, letter, owned=True)
                task.reasons, task.cancelling = decision.reasons, decision.cancelling
                facts.append(f"command {letter.command_id}: {letter.code}")
            task.applied = head
            return facts

        if self._commit(write):
            self._actor.applied = head

    def intend(self) -> None:
        """The operation is durable as started before anything is sent."""

        def write(task: Task) -> list[str]:
            task.operations[self.step] = Operation("started", task.epoch)
            task.status = Status.RUNNING
            return [f"started {self.step}"]

        if "effect before intent" in self._model.bugs:
            self._model.world.travelling.append((self.key, True))
            if self._lost:
                return  # it dies before it has written down what it did
        if self._commit(write):
            self._actor.phase = "sending"

    def complete(self) -> None:
        """Result, ledger and event in one record."""

        def write(task: Task) -> list[str]:
            task.operations[self.step] = Operation("succeeded", task.epoch)
            task.steps = int(self.step)
            return [f"completed {self.step}"]

        if self._commit(write):
            self._actor.phase, self._actor.steps = "idle", int(self.step)

    def did_not_happen(self) -> None:
        """It is known not to have happened, and cannot any more."""

        def write(task: Task) -> list[str]:
            task.operations[self.step] = Operation("failed", task.epoch)
            return [f"not happened {self.step}"]

        if self._commit(write):
            self._actor.phase = "idle"

    def leave(self, status: Status, fact: str, *, reasons: tuple[Reason, ...]) -> None:
        """End, or wait without a process; never past a letter that was not read, unless the task ends."""

        def write(task: Task) -> list[str]:
            lifecycle.check_transition(task.status if task.version > 1 else Status.RUNNING, status)
            task.status, task.reasons, task.owner, task.sweep = status, reasons, None, True
            task.cancelling = task.cancelling and status is not Status.CANCELLED
            task.mail = task.inbox_head > self._actor.applied
            return [fact]

        if self._commit(write, drained_at=self._actor.applied):
            self._worker.actors.pop(self._name, None)

    def _commit(self, write: Callable[[Task], list[str]], *, drained_at: int | None = None) -> bool:
        model, task, actor = self._model, self._task, self._actor
        where = (self._worker.me, actor.epoch, actor.version, task)
        before = (task.owner, task.epoch)
        written = self._write(where, write, drained_at)
        if written and before != (self._worker.me, actor.epoch):
            model.believed.append(f"{before} is the owner of {self._name}, {where[:2]} wrote")
        if written and self._lost and not self._write(where, write, drained_at):
            # As the journal judges: the version is where this record leads to.
            written = task.epoch == actor.epoch and task.version == actor.version + 1
        if not written:
            if (task.owner, task.epoch, task.version) != (self._worker.me, actor.epoch, actor.version):
                self._worker.actors.pop(self._name, None)  # fenced
                self._worker.flows.pop(self._name, None)
            return False
        actor.version += 1
        if (flow := self._worker.flows.get(self._name)) is not None:
            flow.wanted = len(task.facts)
            task.published, task.published_at = max((task.published, task.published_at), (flow.number, flow.at))
        return True

    def _write(
        self, where: tuple[uuid.UUID, int, int, Task], write: Callable[[Task], list[str]], drained_at: int | None
    ) -> bool:
        if not self._model.store.write(*where, drained_at=drained_at):
            return False
        self._task.facts.extend(write(self._task))
        return True


def letters(store: Store, task: Task, after: int) -> list[Letter]:
    """Letters of a task that nobody has decided."""
    return [row for row in store.inbox if row.task_id == task.task_id and row.pos is not None and row.pos > after]


def decide(task: Task, letter: Letter, *, owned: bool) -> lifecycle.Decision:
    """Decide as the product does, and write the answer down."""
    mail = Mail(letter.pos or 0, letter.verb, None, letter.command_id, None, NOW, letter.body)
    command = read_command(mail)
    assert not isinstance(command, str), command
    facts = Facts(
        task_id=task.task_id, status=task.status, reasons=task.reasons, owned=owned, started=bool(task.operations),
        cancelling=task.cancelling,
    )  # fmt: skip
    decision = lifecycle.apply(facts, command, now=NOW)
    letter.code = letter.code or str(decision.code)
    return decision


def status_fact(task: Task) -> str:
    """Say a status; a cancel lists what may have happened."""
    effects = " ".join(f"{task.task_id}:{step}" for step in task.operations)
    return f"cancelled {effects}".strip() if task.status is Status.CANCELLED else str(task.status)
