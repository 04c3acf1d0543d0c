"""`Task`: what a durable function may do. Every method takes its place when it is *called*, not when it is awaited."""

import asyncio
import hashlib
import random as randoms
import uuid as uuids
from collections.abc import Awaitable, Generator, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn, ParamSpec, TypeVar, overload

import anyio

from outlive.actors import planning
from outlive.actors.agreement import ApproveAll
from outlive.actors.effect import Effect
from outlive.actors.failures import printable
from outlive.actors.flow import Flow, Stopped
from outlive.actors.places import Branch, branch
from outlive.actors.question import Question
from outlive.actors.step import ToolStep
from outlive.actors.waiting import Child, SignalWait, Sleep
from outlive.infra import happenings
from outlive.infra.records import Record, State
from outlive.protocol import codec, keys
from outlive.protocol.plan import Item
from outlive.protocol.task import Versions
from outlive.protocol.tools import Kind, Signal, Tool

P = ParamSpec("P")
R = TypeVar("R")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")

NOTE_LENGTH: Final = 10_000
"""Characters of a progress note; longer ones are cut."""


class Restart(BaseException):
    """Leaves the function: the task begins a new run. Control flow of our own, so ``except Exception`` lets it pass."""

    def __init__(self, body: bytes) -> None:
        """Carry the new input."""
        super().__init__("the task begins a new run")
        self.body = body


class Ready(Awaitable[None]):
    """An awaitable that only waits for room in the journal."""

    def __init__(self, flow: Flow) -> None:
        """Belong to a flow."""
        self._flow = flow

    def __await__(self) -> Generator[Any, None, None]:
        """Let the journal catch up where too much is handed in."""
        return self._flow.room().__await__()


class Task:
    """The running task, handed to its durable function as the first argument.

    On resume the function runs again from its first line; what is recorded is answered from the record, so the same
    calls must come in the same order. Anything that could differ (time, randomness, the world) goes through here.
    """

    def __init__(self, flow: Flow) -> None:
        """Made by the actor."""
        self._flow = flow

    @property
    def task_id(self) -> str:
        """Its id."""
        return self._flow.claim.task_id

    @property
    def tenant(self) -> str:
        """Its tenant."""
        return self._flow.claim.tenant

    @property
    def kind(self) -> str:
        """The name of its kind."""
        return self._flow.claim.kind

    @property
    def run(self) -> int:
        """1, or how many times `restart` began it anew plus 1."""
        return self._flow.run

    def call(self, tool: Tool[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Call a tool as a step; awaited, gives its result.

        Raises:
            StepFailed: for good, the same one on every run.
            TypeError: the arguments do not fit the tool.
            outlive.protocol.codec.NotStorable: an argument cannot be stored; names its path.
        """
        kind: type[ToolStep[R]] = ToolStep if tool.read_only else Effect
        return kind(self._flow, self._flow.place(tool.step_id), tool, tool.bind(args, kwargs))

    def approve_all(self, calls: Sequence[Awaitable[Any]]) -> Awaitable[bool]:
        """Ask a person once about several calls, before they are awaited: one question, with a preview of each.

        ::

            calls = [task.call(send_mail, to, body) for to in people]
            await task.approve_all(calls)
            for call in calls:
                await call

        Gives True when the answer is yes, and then each call uses its part of it once. After a no, also by silence,
        each call is refused (`StepFailed`, class ``rejected``). Calls that need no yes are let pass; a call that is not
        in the list asks for itself.

        Raises:
            TypeError, ValueError: it is no list of 1 to 1000 calls, or one of them was awaited already.
        """
        return ApproveAll(self._flow, self._flow.place(), calls)

    def progress(self, message: str, *, done: int | None = None, total: int | None = None) -> Awaitable[None]:
        """Tell people how far the task is: a fact, numbered like all others, made once."""
        flow, step_id = self._flow, self._flow.place()
        if any(number is not None and not 0 <= number < 1 << 63 for number in (done, total)):
            raise ValueError(f"progress(done={done}, total={total}): give numbers from 0 to 2**63 - 1")
        if flow.recall(step_id, "note", None, lambda _: "progress(...)") is None:
            flow.check()
            message = (
                printable(message) if len(message) <= NOTE_LENGTH else printable(message[: NOTE_LENGTH - 3]) + "..."
            )
            fact = happenings.note(
                flow.claim,
                flow.world.clock.now(),
                step_id,
                flow.told(flow.item, message),
                done=done,
                total=total,
                item=flow.item,
            )
            state = State(note_done=done, note_total=total) if done is not None or total is not None else None
            flow.write(Record(facts=(fact,), state=state))
        return Ready(flow)

    def plan(self, *items: str | Item, note: str = "") -> Awaitable[None]:
        """Say what the task means to do, item by item; another call replaces the plan (its next version).

        An item is a text that is its own id (``"read"``; other characters than those of ids become ``-``), or an `Item`.

        Raises:
            PlanInvalid: two items have one id, an item comes after itself, there are more than 200 ...
        """
        planning.adopt(self._flow, planning.items_of(items), note=note)
        return Ready(self._flow)

    def phase(self, item: str) -> Awaitable[None]:
        """Say which item of the plan comes now: the steps that follow belong to it, in branches begun here as well.

        Raises:
            ValueError: the plan has no such item (by its id or text).
        """
        planning.phase(self._flow, item)
        return Ready(self._flow)

    def versions(self, *, model: str | None = None, prompt: str | None = None) -> Awaitable[None]:
        """Record which model and prompt the function works with from here on; another one on a later run is told.

        Args:
            model: as the model reports itself, with its version.
            prompt: the version of the instructions, for instance a digest.
        """
        planning.use(self._flow, Versions(model=model, prompt=prompt))
        return Ready(self._flow)

    def sleep(self, seconds: float) -> Awaitable[None]:
        """Wait so many seconds from the first time this line is reached, by the database's clock, across crashes."""
        if not 0 <= seconds < 10 * 365 * 86400:
            raise ValueError(f"sleep({seconds}): give seconds from 0 to ten years")
        return Sleep(self._flow, self._flow.place(), seconds)

    def wait_for(self, signal: Signal[R], timeout: float | None = None) -> Awaitable[R]:
        """Wait for a signal; signals sent before count, each is taken once, in order per name.

        Raises:
            TimeoutError: it did not come within `timeout` seconds; the same on every run.
        """
        return SignalWait[R](self._flow, self._flow.place(), signal, timeout)

    def ask(self, question: str, *, choices: Sequence[str] = (), timeout: float | None = None) -> Awaitable[str]:
        """Ask a person; awaited, gives the answer's text. The first answer counts, and no process is needed meanwhile.

        Args:
            question: what to show, up to 2,000 characters.
            choices: the answers that are allowed; empty = any text.
            timeout: seconds for which the question stands; None = for ever.

        Raises:
            TimeoutError: nobody answered within `timeout` seconds; the same on every run.
        """
        return Question(self._flow, self._flow.place(), question, choices, timeout)

    def spawn(self, kind: Kind[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Awaitable[R]:
        """Start a child task now; awaited, gives its result. Its id is the same after every crash.

        Raises:
            TaskFailed, TaskCancelled: the child did not succeed.
        """
        child = Child[R](self._flow, self._flow.place(), kind, kind.bind(args, kwargs))
        child.begin()
        return child

    @overload
    def gather(self, one: Awaitable[T1], two: Awaitable[T2], /) -> Awaitable[tuple[T1, T2]]: ...
    @overload
    def gather(
        self, one: Awaitable[T1], two: Awaitable[T2], three: Awaitable[T3], /
    ) -> Awaitable[tuple[T1, T2, T3]]: ...
    @overload
    def gather(self, *branches: Awaitable[R]) -> Awaitable[tuple[R, ...]]: ...
    def gather(self, *branches: Awaitable[Any]) -> Awaitable[tuple[Any, ...]]:
        """Run coroutines (or calls) side by side, each a branch with places of its own; gives their results in order.

        All of them end before it is done. If some raise, the error of the first in the order given is raised: the
        same one on every run, whichever was faster.
        """
        return self._gather(self._flow.place(), self._flow.item, branches)

    async def _gather(self, path: str, item: str | None, branches: Sequence[Awaitable[Any]]) -> tuple[Any, ...]:
        results: list[Any] = [None] * len(branches)
        errors: list[BaseException | None] = [None] * len(branches)

        async def run(number: int, awaitable: Awaitable[Any]) -> None:
            branch.set(Branch(f"{path}-{number + 1}-", asyncio.current_task(), item=item))
            try:
                results[number] = await awaitable
            except (Exception, Stopped, Restart) as error:  # noqa: BLE001  # raised below; what is in flight beside it may end
                errors[number] = error
            finally:
                branch.get().owner = None  # the context of this asyncio task leads back to it

        async with anyio.create_task_group() as group:
            for number, awaitable in enumerate(branches):
                group.start_soon(run, number, awaitable)
        stopped = (error for error in errors if isinstance(error, Stopped))
        for error in (*stopped, *errors):
            if error is not None:
                raise error
        return tuple(results)

    def now(self) -> datetime:
        """Return the database's time when this line was first reached (aware, UTC): the same on every run."""
        flow, step_id = self._flow, self._flow.place()
        digest = codec.digest(b"now")
        stored = flow.recall(step_id, "now", digest, lambda _: "now()")
        if stored is not None:
            moment: datetime = codec.decode(stored.body or b"", datetime)
            return moment
        flow.check()
        at = flow.world.clock.now()
        fact = happenings.step(
            flow.claim,
            at,
            step_id,
            "now",
            "completed",
            "Noted the time",
            digest=digest,
            body=codec.encode(at),
            item=flow.item,
        )
        flow.write(Record(facts=(fact,), steps=1))
        return at

    def uuid(self) -> uuids.UUID:
        """Return a UUID that belongs to this place: random to others, the same on every run."""
        return uuids.UUID(keys.operation_uuid(self._place_key()))

    def random(self) -> float:
        """Return a number from 0 up to 1 that belongs to this place: the same on every run."""
        return randoms.Random(hashlib.sha256(self._place_key().encode()).digest()).random()

    def _place_key(self) -> str:
        # The creation of the id is random enough: a task id names one task for ever.
        return keys.operation_key(self.tenant, self.task_id, self._flow.place(), "0")

    def restart(self, **input: Any) -> NoReturn:  # noqa: A002  # reason: the field's name on the wire
        """End this run and begin a new one of the same task with another input and an empty history (for loops).

        Signals that were not taken stay. What this run did stays in the ledger; its steps are not looked at again.
        """
        raise Restart(self._flow.kind.encode_input(self._flow.kind.bind((), input)))


def flow_of(task: Task) -> Flow:
    """Return what a task's function runs in, for kinds of our own that are built on it."""
    return task._flow  # noqa: SLF001  # of this module
