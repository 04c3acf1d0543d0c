"""Schedules by the thousand: the same machine, with a die instead of a search. A seed is a schedule."""

from random import Random
from typing import Any, Final

from tests.model.machine import TASKS, Protocol

_MOVES: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "submit": (1, ("task",)),
    "approve": (4, ("task", "many")),
    "command": (2, ("task", "verb", "one")),
    "commands_lose_their_end": (1, ("few",)),
    "commands_are_made_anew": (1, ()),
    "progress_loses_its_end": (1, ("few",)),
    "crash": (3, ("worker",)),
    "kill_its_worker": (2, ("task",)),
    "start": (4, ("worker",)),
    "freeze": (3, ("worker", "coin")),
    "thaw": (5, ("worker",)),
    "beat": (2, ("worker",)),
    "requests_arrive": (2, ()),
    "requests_are_lost": (1, ()),
    "ingest": (6, ("worker", "few", "rarely", "rarely")),
    "fence": (4, ("worker",)),
    "claim": (10, ("worker", "task")),
    "act": (24, ("worker", "task", "rarely", "often")),
    "clerk": (4, ("worker", "task")),
    "relay": (10, ("worker", "task", "rarely")),
    "sweep": (3, ("worker", "task")),
    "work": (1, ("worker", "task", "few")),
}
"""By rule: how often, and what its arguments are."""

_MOODS: Final[tuple[dict[str, int], ...]] = (
    {},
    {"kill_its_worker": 14, "start": 12, "fence": 12, "claim": 20},
    {"freeze": 10, "thaw": 10, "fence": 12, "claim": 20, "act": 30},
)
"""Of a third of the schedules each: a bit of everything, deaths, and processes that stand still."""


def walk(machine: type[Protocol], seed: int, steps: int = 120) -> None:
    """Play one schedule and leave it in peace at its end. Raises `AssertionError`, with the moves, where something breaks."""
    random = Random(seed)
    model, played = machine(), list[str]()
    mood = _MOODS[seed % len(_MOODS)]
    names, weights = list(_MOVES), [mood.get(name, weight) for name, (weight, _) in _MOVES.items()]
    model.begin(random.randint(0, 9))
    try:
        for name in random.choices(names, weights, k=steps):
            arguments = [_argument(random, kind) for kind in _MOVES[name][1]]
            played.append(f"{name}{tuple(arguments)}")
            _call(model, name, arguments)
            model.check()
        model.teardown()
    except AssertionError as broken:
        raise AssertionError(f"schedule {seed}: {broken}\n" + "\n".join(played)) from broken


def _call(model: Protocol, name: str, arguments: list[Any]) -> None:
    match name, arguments:
        case "ingest", [worker, count, gap, lost]:
            model.ingest(worker, count, gap=gap, lost=lost)
        case "act", [worker, task, lost, answer]:
            model.act(worker, task, lost=lost, answer=answer)
        case "relay", [worker, task, lost]:
            model.relay(worker, task, lost=lost)
        case _:
            getattr(model, name)(*arguments)


def _argument(random: Random, kind: str) -> Any:
    match kind:
        case "task":
            return random.choice(TASKS)
        case "worker":
            return random.choice((0, 0, 0, 1, 1, 1, 2))
        case "verb":
            return random.choice(("pause", "resume", "resume", "cancel"))
        case "few":
            return random.randint(1, 3)
        case "many":
            return random.randint(0, 7)
        case "one":
            return random.randint(0, 1)
        case "coin":
            return random.random() < 0.5
        case "rarely":
            return random.random() < 0.15
        case _:
            return random.random() < 0.7
