"""Crash-point exploration: a task is run undisturbed, then once per point that it passed, disturbed there, and compared.

::

    report = await explore("todo:app", "collect", {"folder": "src"}, count=count_mails)
    assert report.ok, report.text

`count` is the world's own word on what happened: a function of the user's that gives numbers by name (of the run whose
name it gets, where it takes one). Without it only what goes through tools is counted, and what a remote does with a key
that comes twice is not known.
"""

import asyncio
import inspect
import os
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import msgspec

from outlive.actors.app import App
from outlive.actors.chaoskit.forks import Forks
from outlive.actors.chaoskit.judge import Finding, Judge, grouped
from outlive.actors.chaoskit.lane import ANSWER, Lane, NotExplorable, Run, Wishes
from outlive.actors.chaoskit.points import FAULTS, Point, enumerate_points, in_order
from outlive.actors.chaoskit.specs import spec_of
from outlive.actors.chaoskit.testimony import Passed
from outlive.actors.testing.server import Server, server
from outlive.infra.bus import Bus
from outlive.protocol.tools import AnyKind

Counter: TypeAlias = Callable[..., Mapping[str, int] | Awaitable[Mapping[str, int]]]
"""Gives numbers by name; with a parameter it is given the name of the run, which is the task's id and tenant."""

SECONDS: Final = 60.0
"""How long is explored where nothing else is said."""

PATIENCE: Final = 30.0
"""Seconds that an undisturbed run may take; a disturbed one ten times as long as the undisturbed ones, and no less."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What was tried and found.

    Attributes:
        app, kind: what was explored.
        points: how many there are.
        tried: the points that were tried, in the order in which their runs ended.
        not_reached: of these, the ones that the run did not pass this time: nothing was disturbed there.
        violations: each with the points at which it was found.
        persons: points at which a person had to say whether a tool's effect had happened, by tool.
        resent: points at which an idempotent tool was called again under its key, by tool: rests on its remote.
        not_compared: what differs between two undisturbed runs.
        seed, seconds: of the order; how long it took from the first undisturbed run on.
        counted: the user's counter was asked.
        command: explores the same again.
    """

    app: str
    kind: str
    points: int = 0
    tried: list[Point] = field(default_factory=list[Point])
    not_reached: list[Point] = field(default_factory=list[Point])
    violations: dict[Finding, list[Point]] = field(default_factory=dict[Finding, list[Point]])
    persons: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    resent: dict[str, list[Point]] = field(default_factory=dict[str, list[Point]])
    not_compared: list[str] = field(default_factory=list[str])
    seed: int = 0
    seconds: float = 0.0
    counted: bool = False
    command: str = ""

    @property
    def ok(self) -> bool:
        """No violation was found, at one point at least."""
        return not self.violations and bool(self.disturbed)

    @property
    def disturbed(self) -> list[Point]:
        """The points at which a run was disturbed."""
        return [point for point in self.tried if point not in self.not_reached]

    @property
    def per_minute(self) -> float:
        """Points in a minute at which a run was disturbed."""
        return 60 * len(self.disturbed) / self.seconds if self.seconds else 0.0

    @property
    def json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "app": self.app, "kind": self.kind, "ok": self.ok, "seed": self.seed, "points": self.points,
            "tried": list(map(str, self.tried)), "not_reached": list(map(str, self.not_reached)),
            "seconds": round(self.seconds, 3), "per_minute": round(self.per_minute, 1), "counted": self.counted,
            "violations": [
                {
                    "violation": finding.violation, "message": finding.message, "points": list(map(str, points)),
                    "where": points[0].words, "repeat": f"{self.command} --only {points[0]}",
                }
                for finding, points in self.violations.items()
            ],
            "persons": {tool: list(map(str, points)) for tool, points in self.persons.items()},
            "resent": {tool: list(map(str, points)) for tool, points in self.resent.items()},
            "not_compared": self.not_compared,
        }  # fmt: skip

    @property
    def text(self) -> str:
        """The report for people."""
        return "\n".join(_lines(self))


def _lines(report: Report) -> Iterator[str]:
    disturbed = report.disturbed
    faults = [f"{n} {fault}" for fault in FAULTS if (n := sum(point.fault == fault for point in disturbed))]
    yield (
        f"{report.kind} of {report.app}: {len(disturbed)} of {report.points} points tried ({', '.join(faults)}) in "
        f"{report.seconds:.1f} s, {report.per_minute:.0f} a minute, seed {report.seed}"
    )
    if report.not_reached:
        named = f"{', '.join(map(str, report.not_reached[:5]))}{_more(report.not_reached, 5)}"
        yield f"not tried, as the run did not pass there again: {named}"
    if report.not_compared:
        yield f"not compared, as it differs between undisturbed runs: {', '.join(report.not_compared)}"
    for tool, points in report.persons.items():
        yield f"a person decides about {tool} at {_places(points)}: it has no reconcile that can tell"
    for tool, points in report.resent.items():
        rests = "" if report.counted else "; whether its remote honours the key was not seen (give --count)"
        yield f"{tool} was called again with the same key at {_places(points)}{rests}"
    for finding, points in report.violations.items():
        yield f"VIOLATION ({finding.violation}): {finding.message}"
        yield f"  where {points[0].words}{_more(points, 1, ' points more')}"
        yield f"  to repeat it: {report.command} --only {points[0]}"
    if not report.violations:
        yield "no violation" if report.ok else "nothing was tried"


def _more(points: Sequence[Point], shown: int, what: str = " more") -> str:
    left = len(points) - shown
    return f" (and at {left}{what})" if left > 0 else ""


def _places(points: Sequence[Point]) -> str:
    return f"{len(points)} point{'s' if len(points) > 1 else ''}"


async def explore(
    app: App | str,
    kind: AnyKind | str,
    input: Mapping[str, Any] | None = None,  # noqa: A002  # the word of the contract
    *,
    count: Counter | None = None,
    points: int | None = None,
    seconds: float | None = SECONDS,
    seed: int = 0,
    only: Sequence[Point] = (),
    yes: bool = True,
    answer: str = ANSWER,
    signals: Sequence[tuple[str, Any]] = (),
    lanes: int | None = None,
    on: Server | None = None,
    path: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    said: Callable[[int, int, int], None] | None = None,
) -> Report:
    """Explore one task.

    Args:
        app: the app, or ``module:name``; imported by worker processes.
        kind: of the task, or its name.
        input: its arguments; ``{trial}`` in a text becomes the name of the run.
        count: see the module; one without a parameter has runs take turns.
        points: at most so many; None: all.
        seconds: no run begins later; None: as long as it takes.
        seed: of the order in which points are tried.
        only: these points, instead of those that the undisturbed run passed.
        yes: whether approvals are given.
        answer: to questions without choices.
        signals: names and values, sent to each run behind its submit.
        lanes: runs side by side; None: two for each processor. As many more where owners are frozen: such runs wait.
        on: running servers; None starts some, and throws them away.
        path: folders that the app is imported from.
        environment: variables of the worker processes.
        said: called after each run with points tried, points in all, violations.

    Raises:
        NotExplorable: the task does not end undisturbed, or cannot be submitted.
        ForkFailed: the app cannot be imported, or its worker does not serve.
        LookupError: the app stands in no module.
    """
    spec, kind = spec_of(app), kind if isinstance(kind, str) else kind.name
    wishes = Wishes(kind=kind, input=dict(input or {}), yes=yes, answer=answer, signals=signals)
    by_run = count is None or bool(inspect.signature(count).parameters)
    width = lanes or 2 * (os.cpu_count() or 1) if by_run else 1
    async with AsyncExitStack() as stack:
        servers = await stack.enter_async_context(nullcontext(on) if on is not None else server())
        forks = await stack.enter_async_context(Forks(spec, path=path, environment=environment, spare=2 * width + 1))
        bus = await stack.enter_async_context(Bus.of(servers.settings, name="outlive explorer"))
        stack.push_async_callback(_stop, asyncio.ensure_future(bus.run()))
        exploration = _Exploration(forks, servers, bus, wishes, count, seed, said)
        command = _command(spec, wishes, count)
        report = Report(app=spec, kind=kind, seed=seed, counted=count is not None, command=command)
        await exploration.run(report, width, list(only), points, seconds)
    return report


def _command(app: str, wishes: Wishes, count: Counter | None) -> str:
    words = ["outlive", "chaos", "explore", app, wishes.kind]
    words += ["--input", msgspec.json.encode(wishes.input).decode()] if wishes.input else []
    counter = "" if count is None else f"{count.__module__}:{count.__qualname__}"
    words += ["--count", counter] if counter and "<locals>" not in counter else []
    words += [] if wishes.yes else ["--no"]
    words += ["--answer", wishes.answer] if wishes.answer != ANSWER else []
    for name, value in wishes.signals:
        words += ["--signal", f"{name}={msgspec.json.encode(value).decode()}"]
    return shlex.join(words)


async def _stop(serving: asyncio.Future[None]) -> None:
    serving.cancel()
    await asyncio.wait([serving])


class _Exploration:
    def __init__(
        self, forks: Forks, servers: Server, bus: Bus, wishes: Wishes, count: Counter | None, seed: int,
        said: Callable[[int, int, int], None] | None,
    ) -> None:  # fmt: skip
        self._forks, self._servers, self._bus, self._wishes = forks, servers, bus, wishes
        self._count = count
        self._seed = seed
        self._said = said
        self._patience = PATIENCE
        self._runs = 0
        self._mark = secrets.token_hex(4)  # the user's world may know the runs of an earlier exploration
        self._found: list[tuple[Point, Finding]] = []

    async def run(
        self, report: Report, width: int, only: list[Point], points: int | None, seconds: float | None
    ) -> None:
        began = time.monotonic()
        async with self._lane() as lane:
            judge, passed = await self._undisturbed(lane)
            known = enumerate_points(passed)
            ordered = [_named(point, known) for point in only] or in_order(known, self._seed)
            report.points, report.not_compared = len(ordered), judge.not_compared
            until = None if seconds is None else began + seconds
            async with asyncio.TaskGroup() as group:
                own: Lane | None = lane
                for some in _queues(ordered[:points], width):
                    waiting = iter(some)
                    for _ in range(min(width, len(some))):
                        group.create_task(self._work(own, waiting, judge, report, until))
                        own = None
        report.violations = grouped(self._found)
        report.seconds = time.monotonic() - began

    def _lane(self) -> Lane:
        return Lane(self._forks, self._servers, self._bus, self._wishes, patience=self._patience)

    async def _undisturbed(self, lane: Lane) -> tuple[Judge, list[Passed]]:
        """Run it twice (what differs is not compared), and a first time for what is only made once."""
        runs = [await self._counted(lane, None) for _ in range(3)]
        for run in runs:
            if run.stuck or lane.broken:
                raise NotExplorable(
                    f"undisturbed, {self._wishes.kind} does not come to its end: {run.stuck}. Approvals and questions are "
                    "answered here; a signal that it waits for is given with --signal name=value"
                )
        self._patience = lane.patience = max(PATIENCE, 10 * max(run.seconds for run in runs))
        return Judge(*runs[1:]), [said for said in runs[2].heard[0] if isinstance(said, Passed)]

    async def _work(
        self, lane: Lane | None, waiting: Iterator[Point], judge: Judge, report: Report, until: float | None
    ) -> None:
        while True:
            async with nullcontext(lane) if lane is not None else self._lane() as own:
                for point in waiting:
                    if until is not None and time.monotonic() > until:
                        return
                    self._note(await self._counted(own, point), point, judge, report)
                    if own.broken:
                        lane = None
                        break
                else:
                    return

    def _note(self, run: Run, point: Point, judge: Judge, report: Report) -> None:
        report.tried.append(point)
        if not run.reached:
            report.not_reached.append(point)
        self._found += [(point, finding) for finding in judge.findings(run)]
        for tool, _ in dict.fromkeys(run.persons):
            report.persons.setdefault(tool, []).append(point)
        for tool in judge.resent(run):
            report.resent.setdefault(tool, []).append(point)
        if self._said is not None:
            self._said(len(report.tried), report.points, len(self._found))

    async def _counted(self, lane: Lane, point: Point | None) -> Run:
        self._runs += 1
        name = f"x{self._mark}-{self._runs}"
        before = await self._ask(name)
        run = await lane.run(name, point)
        after = await self._ask(name)
        run.counts = {what: after[what] - before.get(what, 0) for what in after}
        return run

    async def _ask(self, name: str) -> Mapping[str, int]:
        count = self._count
        if count is None:
            return {}
        arguments = (name,) if inspect.signature(count).parameters else ()
        if inspect.iscoroutinefunction(count):
            counts: Mapping[str, int] = await count(*arguments)
            return counts
        return await asyncio.to_thread(count, *arguments)  # type: ignore[arg-type]  # it is no coroutine function


def _queues(points: Sequence[Point], width: int) -> list[Sequence[Point]]:
    """Return what is worked off side by side: a frozen owner costs seconds and no processor, so these have lanes of their own.

    Where runs take turns (`width` is 1) there is one queue.
    """
    if width == 1:
        return [points]
    frozen = [point for point in points if point.fault == "freeze"]
    return [[point for point in points if point.fault != "freeze"], frozen]


def _named(point: Point, known: Sequence[Point]) -> Point:
    """Return a point with what the undisturbed run says of it."""
    return next((each for each in known if str(each) == str(point)), point)
