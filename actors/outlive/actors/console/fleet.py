"""The workers of ``up`` and ``run``: processes of their own, started again when they die, drained at the end."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final

import anyio
import click
from anyio.abc import TaskGroup

from outlive.protocol.backoff import delay

SOON: Final = 5.0
"""Seconds that a worker must have served for the next start not to wait longer than the last one."""

_MARGIN: Final = 10.0  # seconds beyond the grace before a worker that drains is killed
_CAP: Final = 15.0


class WorkerFailed(click.ClickException):
    """No worker has ever served with this code; it has told the reason itself."""


class Member:
    """One worker process."""

    def __init__(self, process: asyncio.subprocess.Process, ready: int) -> None:
        """Wrap a process that was started; `ready` is the end of the pipe on which it tells that it serves."""
        self.process: Final = process
        self.asked = False
        """It was told to stop, so its end is no failure."""
        self._ready = ready

    async def served(self) -> bool:
        """Wait until it serves (True) or has ended before that."""
        try:
            await anyio.wait_readable(self._ready)
            return bool(os.read(self._ready, 16))
        finally:
            os.close(self._ready)

    def stop(self) -> None:
        """SIGTERM: the first lets it drain, the second ends it at once."""
        self.asked = True
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()

    def kill(self) -> None:
        """SIGKILL."""
        self.asked = True
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()


class Fleet:
    """A number of workers for one app.

    Args:
        app: ``module:name``.
        count: how many.
        environment: variables that name the servers.
        options: further options of the command ``worker``.
        grace: seconds that steps in flight may take at the end.
        hurry: when set, workers that drain end at once.
        say: is told what a person should know.
        on_line: takes what workers write; None lets them write to our stderr.
        patient: code that does not start is waited for to change (see `renew`), instead of raising.
    """

    def __init__(
        self,
        app: str,
        count: int,
        environment: Mapping[str, str],
        *,
        grace: float,
        hurry: anyio.Event,
        say: Callable[[str], None],
        options: Sequence[str] = (),
        on_line: Callable[[str], None] | None = None,
        patient: bool = False,
    ) -> None:
        self._command = (sys.executable, "-m", "outlive", "worker", app, *options)
        self._environment = {**os.environ, **environment}
        self._count = count
        self._grace = grace
        self._hurry = hurry
        self._say = say
        self._on_line = on_line
        self._patient = patient
        self._members: dict[int, Member] = {}  # by slot
        self._serving: set[int] = set()
        self._proven = False  # a worker has served with the code as it is
        self._renewed = anyio.Event()
        self._random = Random()
        self.ready: Final = anyio.Event()
        """Set once all workers serve for the first time."""

    @property
    def pids(self) -> list[int]:
        """Process ids, by slot."""
        return [self._members[slot].process.pid for slot in sorted(self._members)]

    async def run(self) -> None:
        """Keep the workers running until cancelled, then drain them; without any, return.

        Raises:
            WorkerFailed: the code does not start.
        """
        if not self._count:
            self.ready.set()
        try:
            async with anyio.create_task_group() as group:
                for slot in range(self._count):
                    group.start_soon(self._keep, slot, group)
        finally:
            with anyio.CancelScope(shield=True):
                await self._drain()

    def renew(self) -> None:
        """Start all workers anew with changed code: those that run drain first."""
        self._proven = False
        self._renewed.set()
        self._renewed = anyio.Event()
        for member in self._members.values():
            member.stop()

    async def _keep(self, slot: int, group: TaskGroup) -> None:
        failures = 0
        while True:
            renewed, began = self._renewed, anyio.current_time()
            member = await self._start(slot)
            group.start_soon(self._hand_on, member)
            served = await member.served()
            if served:
                self._count_in(slot)
            code = await member.process.wait()
            if member.asked:
                continue
            if not served and not self._proven:
                await self._broken(code, renewed)
                continue
            failures = failures + 1 if anyio.current_time() - began < SOON else 0
            pause = delay(failures, cap=_CAP, random=self._random) if failures else 0.0
            again = f"again in {pause:.1f} s" if pause >= 0.1 else "again"
            self._say(f"worker {member.process.pid} {_ended(code)}; started {again}")
            await anyio.sleep(pause)

    def _count_in(self, slot: int) -> None:
        self._proven = True
        self._serving.add(slot)
        if len(self._serving) == self._count:
            self.ready.set()

    async def _broken(self, code: int, renewed: anyio.Event) -> None:
        if not self._patient:
            raise WorkerFailed(f"the worker {_ended(code)} before it served")
        self._say(f"the worker {_ended(code)} before it served; waiting for a change")
        await renewed.wait()

    async def _start(self, slot: int) -> Member:
        with anyio.CancelScope(shield=True):  # what was started is never forgotten
            self._members[slot] = await self._spawn()
        return self._members[slot]

    async def _spawn(self) -> Member:
        ours, theirs = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, "--crew", str(os.getpid()), str(theirs),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno() if self._on_line is None else subprocess.PIPE,
                stderr=None if self._on_line is None else subprocess.STDOUT,
                env=self._environment,
                pass_fds=[theirs],
                start_new_session=True,  # the terminal's Ctrl-C is for us: we stop them in order
            )  # fmt: skip
        finally:
            os.close(theirs)
        return Member(process, ours)

    async def _hand_on(self, member: Member) -> None:
        if member.process.stdout is not None and self._on_line is not None:
            async for line in member.process.stdout:
                self._on_line(line.decode(errors="replace").rstrip("\n"))

    async def _drain(self) -> None:
        for member in self._members.values():
            member.stop()
        with anyio.move_on_after(self._grace + _MARGIN):
            async with anyio.create_task_group() as group:
                group.start_soon(self._hasten)
                for member in self._members.values():
                    group.start_soon(self._hand_on, member)
                for member in self._members.values():
                    await member.process.wait()
                group.cancel_scope.cancel()
        for member in self._members.values():
            member.kill()
            await member.process.wait()

    async def _hasten(self) -> None:
        await self._hurry.wait()
        for member in self._members.values():
            member.stop()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with code {code}"
    return f"was killed by {signal.Signals(-code).name}"
