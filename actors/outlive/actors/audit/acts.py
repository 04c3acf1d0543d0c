"""The demo's three acts, played on a task that runs: a kill, a lost answer with a kill, and a question to a person.

Nothing waits for a time here. The first kill follows the task's own progress, the second the tracker's word that it has
made a ticket and will not answer, and the person's answer follows the question.
"""

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import anyio

from outlive.actors.audit.findings import Audit
from outlive.actors.audit.screen import Answered, Crash, Found, Question, Screen
from outlive.actors.audit.tracker import Tracker
from outlive.actors.chaoskit.processes import WorkerProcess
from outlive.infra.client import Client
from outlive.infra.handle import Handle
from outlive.infra.reader import Item
from outlive.protocol.events import ApprovalEvent, NoteEvent, ResumedEvent, StepEvent
from outlive.protocol.task import ReasonCode

READ: Final = "read_package"


@dataclass(slots=True, kw_only=True)
class Kill:
    """A worker that was killed, and what followed; ``at`` is where the task was, once that is known for sure."""

    worker: WorkerProcess
    moment: float
    at: str
    resumed: ResumedEvent | None = None
    after: float = 0.0


class Acts:
    """Follows one task and plays the acts.

    Attributes:
        crashes: what was measured, one for each kill.
        thought: seconds that a person took to answer.
        unanswered: the command to type, where nobody was there to be asked.
    """

    def __init__(self, screen: Screen, client: Client, workers: dict[str, WorkerProcess], *, yes: bool) -> None:
        """Play with these workers (by incarnation); ``yes`` answers the question."""
        self._screen = screen
        self._client = client
        self._workers = workers
        self._yes = yes
        self._limit = anyio.CancelScope()
        self._kills: list[Kill] = []
        self._names: dict[str, str] = {}
        self._lost: set[str] = set()
        self._progress = (0, 0)
        self.crashes: Final[list[Crash]] = []
        self.thought = 0.0
        self.unanswered: str | None = None

    async def play(self, handle: Handle[Audit], tracker: Tracker, limit: float) -> None:
        """Show every event of the task until its last one, or until nobody is there to be asked.

        Raises:
            TimeoutError: it does not end within ``limit`` seconds, a person's time not counted.
        """
        with anyio.fail_after(limit) as self._limit:
            async with asyncio.TaskGroup() as group:
                losing = group.create_task(self._lose_an_answer(handle.task_id, tracker))
                await self._follow(handle)
                losing.cancel()

    async def _follow(self, handle: Handle[Audit]) -> None:
        async with aclosing(handle.events()) as events:
            async for event in events:
                self._screen.event(event)
                await self._see(event, handle.task_id)
                if self.unanswered:
                    return

    async def _see(self, event: Item, task_id: str) -> None:
        match event:
            case StepEvent(status="unknown"):
                self._lost.add(event.step_id)
            case StepEvent(status="completed"):
                self._names[event.step_id] = event.name
                self._tell_crashes()
                if event.step_id in self._lost:
                    await self._tell_found(event, task_id)
            case NoteEvent(done=int(done), total=int(total)):
                await self._one_third(done, total, task_id)
            case ResumedEvent():
                self._resumed(event)
            case ApprovalEvent(status="asked"):
                await self._ask(event, task_id)
            case ApprovalEvent(status="given" | "refused" | "expired"):
                self._screen.tell(Answered(message=event.message))
            case _:
                pass

    # --- the kills

    async def _one_third(self, done: int, total: int, task_id: str) -> None:
        """Act 1: the worker is killed when it has read a third. Notes that arrive later tell how far it really came."""
        if not self._kills:
            self._progress = (done, total)
            if done * 3 >= total:
                await self._kill(task_id, "")
        elif not self._kills[0].resumed:
            self._progress = (done, total)

    async def _lose_an_answer(self, task_id: str, tracker: Tracker) -> None:
        """Act 2: the tracker has made a ticket and stays silent; its caller is killed while it waits for the answer."""
        if (number := await tracker.lost()) is not None:
            while not await self._kill(task_id, f"at ticket {number}, which was made and not answered"):
                pass

    async def _kill(self, task_id: str, at: str) -> bool:
        """Kill the worker that runs the task, if there is one right now."""
        owner = (await self._client.get(task_id)).owner
        if owner not in self._workers:  # None between two steps, for a moment
            return False
        kill = Kill(worker=self._workers[owner], moment=asyncio.get_running_loop().time(), at=at)
        self._kills.append(kill)
        kill.worker.kill()
        await kill.worker.exited()
        return True

    def _resumed(self, event: ResumedEvent) -> None:
        for kill in self._kills:
            if kill.resumed is None:
                kill.after = asyncio.get_running_loop().time() - kill.moment
                kill.at = kill.at or f"at {self._progress[0]} of {self._progress[1]} packages"
                kill.resumed = event
                break
        self._tell_crashes()

    def _tell_crashes(self) -> None:
        """Tell of each crash once the names of all its repeated steps are known."""
        for kill in self._kills[len(self.crashes) :]:
            resumed = kill.resumed
            if resumed is None or not self._names.keys() >= set(resumed.steps_repeated):
                return
            crash = Crash(
                killed=kill.worker.pid,
                successor=self._workers[resumed.worker].pid,
                at=kill.at,
                after=kill.after,
                kept=resumed.steps_kept,
                repeated=sum(self._names[step_id] == READ for step_id in resumed.steps_repeated),
            )
            self.crashes.append(crash)
            self._screen.tell(crash)

    async def _tell_found(self, event: StepEvent, task_id: str) -> None:
        """Say what the worker has just recorded: the number is the step's result, which nobody has sent twice."""
        results = (await self._client.checkpoint(task_id)).tool_results
        self._screen.tell(Found(tool=event.name, ticket=results[event.step_id]))

    # --- the person

    async def _ask(self, event: ApprovalEvent, task_id: str) -> None:
        """Act 3: show what waits for a yes, and send the answer."""
        reasons = (await self._client.get(task_id)).reasons
        (reason,) = [each for each in reasons if each.reason is ReasonCode.APPROVAL]
        self._screen.tell(Question(message=event.message))
        answer = True if self._yes else await self._asked()
        if answer is None:
            self.unanswered = reason.do
        elif answer:
            await self._client.approve(task_id, event.operation_id, digest=reason.digest)
        else:
            await self._client.reject(task_id, event.operation_id, digest=reason.digest)

    async def _asked(self) -> bool | None:
        """Ask the person, who has all the time in the world."""
        asked_at, left = anyio.current_time(), self._limit.deadline - anyio.current_time()
        self._limit.deadline = float("inf")
        try:
            return await self._screen.ask("Send it?")
        finally:
            self.thought = anyio.current_time() - asked_at
            self._limit.deadline = anyio.current_time() + left
