"""`outlive chaos exam`: eight faults, and for each four questions that are answered from evidence."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from outlive.actors.chaoskit import evidence
from outlive.actors.chaoskit.evidence import Answer, Expected, Question, TakeOver
from outlive.actors.chaoskit.scene import Scene, scene
from outlive.actors.testing.server import Server
from outlive.protocol.errors import OutliveError

AT_ONCE: Final = 3
"""Faults that are played side by side: more of them only wait for the processor."""
LIMIT: Final = 180.0
"""Seconds for one fault."""
_SAID: Final = 3000


@dataclass(frozen=True, kw_only=True)
class Played:
    """What came of playing a fault.

    Attributes:
        happened: that the fault really struck, with what shows it.
        struck: whether it did.
        tasks: those that met it; the one that a person took over among them.
        take_over: what a person did.
    """

    happened: Mapping[str, Any]
    struck: bool
    tasks: Sequence[Expected]
    take_over: TakeOver


@dataclass(frozen=True)
class Fault:
    """One of the eight.

    Attributes:
        name: for ``--only``.
        title: for people.
        play: plays it in a scene of its own.
        needs_agents: its task is an agent, so pydantic-ai must be there.
    """

    name: str
    title: str
    play: Callable[[Scene], Awaitable[Played]]
    needs_agents: bool = False


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What the exam found about one fault.

    Attributes:
        ok: the fault struck, and all four answers are as they should be.
        happened: what shows that the fault really struck.
        answers: by question; empty where the fault could not be played to its end.
        problem: why not, with the ends of the workers' logs.
    """

    fault: str
    title: str
    ok: bool
    seconds: float
    happened: dict[str, Any] = {}
    answers: dict[Question, Answer] = {}
    problem: str | None = None


async def examine(fault: Fault, where: Scene) -> Result:
    """Play a fault and answer the four questions about it; what goes wrong is part of the result."""
    began = time.monotonic()
    try:
        async with asyncio.timeout(LIMIT):
            played = await fault.play(where)
            answers = await _answers(where, played)
    except (OutliveError, TimeoutError, ExceptionGroup) as error:
        return Result(
            fault=fault.name, title=fault.title, ok=False, seconds=_since(began), problem=await _problem(where, error)
        )
    ok = played.struck and all(answer.ok for answer in answers.values())
    return Result(
        fault=fault.name, title=fault.title, ok=ok, seconds=_since(began), happened=dict(played.happened),
        answers=answers, problem=None if played.struck else "the fault did not strike: nothing is proven",
    )  # fmt: skip


async def _answers(where: Scene, played: Played) -> dict[Question, Answer]:
    seen = {task.task_id: await evidence.read(where, task.task_id) for task in played.tasks}
    take_over = played.take_over
    return {
        Question.REPEATED: await evidence.repeated(where, played.tasks, seen),
        Question.CONSISTENT: evidence.consistent(played.tasks, seen),
        Question.REAL: await evidence.shown(where, played.tasks, seen),
        Question.TAKE_OVER: await evidence.taken_over(where, take_over, seen[take_over.task.task_id]),
    }


async def _problem(where: Scene, error: BaseException) -> str:
    logs = [f"--- a worker's log ends with\n{worker.log[-_SAID:]}" for worker in where.workers]
    return "\n".join([str(error) or type(error).__name__, *logs])


def _since(began: float) -> float:
    return round(time.monotonic() - began, 1)


async def exam(faults: Sequence[Fault], server: Server, tell: Callable[[Result], None]) -> list[Result]:
    """Play faults side by side, each in a scene of its own; `tell` hears each result as it comes."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def sit(fault: Fault) -> Result:
        async with turns, scene(server) as where:
            result = await examine(fault, where)
        tell(result)
        return result

    async with asyncio.TaskGroup() as group:
        sitting = [group.create_task(sit(fault)) for fault in faults]
    return [each.result() for each in sitting]
