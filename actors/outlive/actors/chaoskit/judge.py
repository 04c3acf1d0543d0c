"""Compares a disturbed run with undisturbed ones: effects, end, steps, progress; and says in words what is wrong."""

import functools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from outlive.actors.chaoskit.lane import Run
from outlive.actors.chaoskit.testimony import Called, Outside, Returned
from outlive.protocol import keys
from outlive.protocol.task import Status

Violation: TypeAlias = Literal["twice", "lost", "counter", "outside", "branch", "output", "steps", "progress", "hang"]
"""What is violated: an effect happened too often, or not at all; the user's counter says so; the function touches the
world outside of its steps; it takes another branch when it is run again; the task's end, its steps or its progress
differ; it does not end."""

_CALL: Final = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation in words. Equal ones at several points are one finding of the report."""

    violation: Violation
    message: str


@dataclass(frozen=True, slots=True)
class Deed:
    """Calls of one tool with the same arguments: how often it was called, returned, and under how many keys."""

    tool: str
    arguments: str
    nature: str
    reconciles: bool
    called: int
    returned: int
    keys: int

    @property
    def happened(self) -> int:
        """How many effects that is, as declared: the same key again is the same effect to an idempotent tool."""
        return self.keys if self.nature == "idempotent" else self.returned

    def __str__(self) -> str:
        """The call, as a person would write it."""
        text = f"{self.tool}({self.arguments.strip('{}')})"
        return text if len(text) <= _CALL else f"{text[: _CALL - 4]}...)"


class Seen:
    """A run without what differs between any two runs: names, keys, ids of children."""

    def __init__(self, run: Run) -> None:
        """Read it."""
        self.run = run
        self._called = [said for said in run.said if isinstance(said, Called)]
        self._returned = {(said.key, said.attempt) for said in run.said if isinstance(said, Returned)}
        self._paths = _paths(run)

    def neutral(self, text: str) -> str:
        """Return a text of this run as it would stand in any other."""
        for name, place in self._names:
            text = text.replace(name, place)
        return text

    @functools.cached_property
    def _names(self) -> list[tuple[str, str]]:
        uuids = {keys.operation_uuid(said.key): f"<uuid of {said.tool} {said.step_id}>" for said in self._called}
        paths = {task: f"<trial{path}>" for task, path in self._paths.items()}
        return [*uuids.items(), *sorted(paths.items(), key=lambda each: -len(each[0])), (self.run.name, "<trial>")]

    @functools.cached_property
    def deeds(self) -> dict[tuple[str, str], Deed]:
        """What was called, by tool and arguments."""
        groups: dict[tuple[str, str], list[Called]] = {}
        for said in self._called:
            groups.setdefault((said.tool, self.neutral(said.arguments)), []).append(said)
        return {
            (tool, arguments): Deed(
                tool, arguments, calls[0].nature, calls[0].reconciles, len(calls),
                sum((said.key, said.attempt) in self._returned for said in calls),
                len({said.key for said in calls if (said.key, said.attempt) in self._returned}),
            )
            for (tool, arguments), calls in groups.items()
        }  # fmt: skip

    @functools.cached_property
    def end(self) -> tuple[str, str]:
        """Status and result (or failure) of the task itself."""
        status = next((row["status"] for row in self.run.tasks if row["task_id"] == self.run.name), "missing")
        bodies = [
            fact["body"] for fact in self.run.facts if fact["task_id"] == self.run.name and fact["type"] == "status"
        ]
        body = bodies[-1] if bodies and bodies[-1] is not None else b""
        return status, self.neutral(bytes(body).decode()) if status == Status.SUCCEEDED else ""

    @functools.cached_property
    def steps(self) -> dict[tuple[str, str], str]:
        """The name of each completed step, by task and step id."""
        return {
            (self._paths.get(fact["task_id"], "?"), fact["step_id"]): fact["name"]
            for fact in self.run.facts
            if fact["type"] == "step" and fact["status"] == "completed"
        }

    @property
    def outside(self) -> Counter[tuple[str, str, str]]:
        """What functions of tasks touched by themselves: kind, line, deed."""
        return Counter((o.kind, o.where, self.neutral(o.what)) for o in self.run.said if isinstance(o, Outside))


def _paths(run: Run) -> dict[str, str]:
    """Return where each task stands below the first one: by the steps that made them."""
    parents = {row["task_id"]: (row["parent"], row["parent_step"]) for row in run.tasks}

    def path(task: str) -> str:
        parent, step = parents.get(task, (None, None))
        return "" if parent is None else f"{path(parent)}/{step}"

    return {task: path(task) for task in parents}


class Judge:
    """Knows what undisturbed runs look like; what differs between two of them is not compared."""

    def __init__(self, first: Run, second: Run) -> None:
        """Take two undisturbed runs."""
        self.usual, other = Seen(first), Seen(second)
        self._stable_deeds = set(self.usual.deeds) == set(other.deeds)
        self._stable_end = self.usual.end == other.end
        self._stable_steps = self.usual.steps == other.steps
        self._stable_counts = first.counts == second.counts
        self.not_compared = [
            what
            for what, stable in (
                ("arguments of effects", self._stable_deeds), ("the result", self._stable_end), ("the steps", self._stable_steps),
                ("the counter", self._stable_counts),
            )
            if not stable
        ]  # fmt: skip

    def findings(self, run: Run) -> list[Finding]:
        """Return what is wrong with a disturbed run."""
        if run.stuck:
            return [self._stuck(run)]
        seen = Seen(run)
        return [
            *self._effects(seen),
            *self._outside(seen),
            *self._counts(seen),
            *self._ends(seen),
            *self._progress(seen),
        ]

    def resent(self, run: Run) -> list[str]:
        """Return the idempotent tools that were called again under the same key: this rests on their remotes."""
        return sorted(
            {deed.tool for deed in Seen(run).deeds.values() if deed.nature == "idempotent" and deed.called > deed.keys}
        )

    def _stuck(self, run: Run) -> Finding:
        if run.mismatch:
            text = Seen(run).neutral(run.stuck.removeprefix("it is paused: "))
            return Finding(
                "branch",
                f"the function took another branch when it was run again. {text.partition(' Nothing was')[0]} Let it "
                "branch on results of steps, task.now() and task.random() alone",
            )
        return Finding("hang", Seen(run).neutral(run.stuck))

    # --- effects

    def _effects(self, seen: Seen) -> Iterable[Finding]:
        if not self._stable_deeds:
            yield from self._by_tool(seen)
            return
        for which in sorted({*self.usual.deeds, *seen.deeds}):
            usual, deed = self.usual.deeds.get(which), seen.deeds.get(which)
            yield from _compare(usual, deed)

    def _by_tool(self, seen: Seen) -> Iterable[Finding]:
        """The arguments differ from run to run: only the numbers of each tool are compared."""
        usual, now = _sums(self.usual.deeds.values()), _sums(seen.deeds.values())
        for tool in sorted({*usual, *now}):
            if now[tool] > usual[tool]:
                yield Finding("twice", f"{tool} happened {now[tool]} times, undisturbed {usual[tool]}")

    def _outside(self, seen: Seen) -> Iterable[Finding]:
        usual = self.usual.outside
        for (kind, where, what), count in sorted(seen.outside.items()):
            if count > usual[kind, where, what]:
                yield Finding(
                    "outside",
                    f"the function {kind} itself ({where}) {what}, outside of a step: it does so again on every resume. "
                    "Make it a tool, and call it by task.call",
                )

    def _counts(self, seen: Seen) -> Iterable[Finding]:
        if not self._stable_counts:
            return
        usual, now = self.usual.run.counts, seen.run.counts
        for name in sorted({*usual, *now}):
            if (was := usual.get(name, 0)) != (got := now.get(name, 0)):
                yield Finding(
                    "counter", f"the counter says {name}: {got}, undisturbed {was}. {self._why(seen, got > was)}"
                )

    def _why(self, seen: Seen, more: bool) -> str:
        """Name who may be the cause: whoever was called more often than undisturbed."""
        if not more:
            return "It is taken to have happened and has not: see the reconcilers, and what a person was asked"
        again = [
            deed for which, deed in sorted(seen.deeds.items()) if deed.called > _called(self.usual.deeds.get(which))
        ]
        suspects = [
            f"{deed} is declared idempotent and was called again with the same key: its remote does not honour it"
            if deed.nature == "idempotent"
            else f"{deed} is declared read_only and was called again: it changes something"
            if deed.nature == "read_only"
            else f"{deed} was sent again: its reconciler did not find what had happened, or found it too late (settle)"
            for deed in again
        ]
        return "; ".join(suspects) or (
            "No tool was called again: code of the function outside of its steps runs on every resume. Make it a tool"
        )

    # --- the rest

    def _ends(self, seen: Seen) -> Iterable[Finding]:
        (was, output), (status, result) = self.usual.end, seen.end
        if status != was:
            yield Finding("output", f"the task is {status}, undisturbed {was}")
        elif self._stable_end and result != output:
            yield Finding("output", f"the result is {_short(result)}, undisturbed {_short(output)}")
        if self._stable_steps and seen.steps != self.usual.steps:
            differing = set(seen.steps.items()) ^ set(self.usual.steps.items())
            names = ", ".join(sorted({name for _, name in differing}))
            yield Finding("steps", f"the completed steps differ from the undisturbed ones: {names}")

    def _progress(self, seen: Seen) -> Iterable[Finding]:
        numbers: dict[str, list[int]] = {}
        for fact in seen.run.facts:
            numbers.setdefault(fact["task_id"], []).append(fact["seq"])
        for task, found in numbers.items():
            if found != list(range(1, len(found) + 1)):
                yield Finding("progress", f"the numbers of its events are {found}")
            elif seen.run.told.get(task) != len(found):
                told = seen.run.told.get(task, 0)
                yield Finding("progress", f"it has {len(found)} events, and the stream {told}")


def _compare(usual: Deed | None, deed: Deed | None) -> Iterable[Finding]:
    some = deed or usual
    assert some is not None
    if some.nature == "read_only":
        return
    was, now = usual.happened if usual else 0, deed.happened if deed else 0
    if now > was:
        declared = "idempotent, and had more than one key" if some.nature == "idempotent" else "sent once"
        hint = "" if not some.reconciles else ". Its reconciler did not find the first one, or its settle is too short"
        yield Finding("twice", f"{some} happened {now} times, undisturbed {was}; it is declared as {declared}{hint}")
    elif (deed.called if deed else 0) < was:
        yield Finding("lost", f"{some} happened {now} times, undisturbed {was}")


def _called(deed: Deed | None) -> int:
    return deed.called if deed is not None else 0


def _sums(deeds: Iterable[Deed]) -> Counter[str]:
    found: Counter[str] = Counter()
    for deed in deeds:
        if deed.nature != "read_only":
            found[deed.tool] += deed.happened
    return found


def _short(text: str) -> str:
    return text if len(text) <= _CALL else f"{text[: _CALL - 3]}..."


def grouped(found: Sequence[tuple[Any, Finding]]) -> dict[Finding, list[Any]]:
    """Return the points at which each finding was made."""
    groups: dict[Finding, list[Any]] = {}
    for point, finding in found:
        groups.setdefault(finding, []).append(point)
    return groups
