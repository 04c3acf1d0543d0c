"""The load of a soak: submits at a pace, and the people around it who approve, answer, signal and cancel."""

import asyncio
import contextlib
from collections import Counter
from random import Random
from typing import Any, Final

import anyio
from anyio.abc import TaskGroup

from outlive.actors.chaos.soak.app import SETTLE, TIMEOUT
from outlive.actors.testing.fake_service import FakeService
from outlive.infra.bus import BusError
from outlive.infra.client import Client
from outlive.protocol.commands import Verdict
from outlive.protocol.errors import OutliveError
from outlive.protocol.operations import OperationStatus
from outlive.protocol.task import Reason, ReasonCode, Status, TaskRecord

WEIGHTS: Final = {"plain": 8, "approved": 2, "called": 2, "timed": 3, "family": 2, "signalled": 1, "stopped": 1}
"""How many tasks of each kind, in proportion."""
SIGNALS: Final = 3
_SENDERS: Final = 32
_PATIENT: Final = 120.0
_LOOK: Final = 0.5
_MARGIN: Final = 3.0


class Load:
    """Keeps a number of tasks going.

    Args:
        client: of the person who submits, approves, answers and cancels.
        service: the world outside, which that person can look at.
        count: tasks to submit (children come on top).
        rate: tasks a second.
        seed: chooses kinds and moments.
    """

    def __init__(self, client: Client, service: FakeService, count: int, rate: float, seed: int) -> None:
        self.submitted: list[str] = []
        """Tasks whose submit was answered."""
        self.helped: Final = Counter[str]()
        """What people did, by command."""
        self.failures: Final = Counter[str]()
        """What they were refused, or got no answer to, in words."""
        self._client = client
        self._service = service
        self._count = count
        self._rate = rate
        self._random = Random(seed)
        self._sending = anyio.Semaphore(_SENDERS)
        self._helping: set[tuple[str, str]] = set()

    async def submit_all(self) -> None:
        """Submit every task at the pace, with what belongs to it; returns when all are sent and answered."""
        began = anyio.current_time()
        kinds = self._random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=self._count)
        async with anyio.create_task_group() as group:
            for n, kind in enumerate(kinds):
                await anyio.sleep(max(began + n / self._rate - anyio.current_time(), 0))
                await self._sending.acquire()
                group.start_soon(self._begin, n, kind)

    async def help(self) -> None:
        """Do what tasks need of a person, until cancelled."""
        async with anyio.create_task_group() as group:
            while True:
                with contextlib.suppress(OutliveError, BusError, TimeoutError, OSError):
                    await self._look(group)
                await anyio.sleep(_LOOK)

    async def _begin(self, n: int, kind: str) -> None:
        task_id = f"{kind}-{n}"
        try:
            if await self._try("submit", self._client.submit(kind, {"n": n}, task_id=task_id)):
                self.submitted.append(task_id)
            if kind == "signalled":
                for number in range(SIGNALS):
                    await self._try("signal", self._client.signal(task_id, "go", number))
        finally:
            self._sending.release()
        if kind == "stopped":
            await anyio.sleep(self._random.uniform(0, 5))
            await self._try("cancel", self._client.cancel(task_id, reason="enough"))

    async def _look(self, group: TaskGroup) -> None:
        page = await self._client.waiting(limit=200)
        failed = await self._client.list(status=[Status.FAILED], limit=50)
        for task in [*page.tasks, *failed.tasks]:
            needs: list[Reason | None] = [*(task.reasons or [])]
            for reason in needs if task.status != Status.FAILED else [None]:
                key = task.task_id, f"{reason.reason}{reason.step_id}" if reason else "failed"
                if key not in self._helping:
                    self._helping.add(key)
                    group.start_soon(self._help, task, reason, key)

    async def _help(self, task: TaskRecord, reason: Reason | None, key: tuple[str, str]) -> None:
        try:
            if reason is None:
                await self._retry(task.task_id)
            elif reason.reason == ReasonCode.APPROVAL:
                operation = f"{reason.step_id}:{reason.operation_id}"
                await self._try("approve", self._client.approve(task.task_id, operation, digest=reason.digest))
            elif reason.reason == ReasonCode.OUTCOME_UNKNOWN:
                await self._resolve(task.task_id, f"{reason.step_id}:{reason.operation_id}")
            else:
                await self._try(f"resume ({reason.reason})", self._client.resume(task.task_id))
            await anyio.sleep(2 * _LOOK)  # the page that we read may be older than the answer
        finally:
            self._helping.discard(key)

    async def _retry(self, task_id: str) -> None:
        """Try the steps again that failed: a recorded failure stands until somebody does."""
        page = await self._client.operations(task_id)
        failed = [one.step_id for one in page.operations if one.status != OperationStatus.SUCCEEDED]
        for step_id in failed:
            await self._try("retry", self._client.retry(task_id, step_id))
        if not failed:
            await self._try("retry", self._client.retry(task_id))

    async def _resolve(self, task_id: str, operation: str) -> None:
        """Look outside before an answer is given, late enough for what is under way to have arrived."""
        await anyio.sleep(TIMEOUT + SETTLE + _MARGIN)
        done = await self._service.effects(key=f"{self._client.tenant}/{task_id}:{operation}")
        verdict: Verdict = "happened" if done else "did_not_happen"
        result = done[0].id if done else None
        await self._try(f"resolve {verdict}", self._client.resolve(task_id, operation, verdict, result))

    async def _try(self, verb: str, asked: Any) -> bool:
        try:
            async with asyncio.timeout(_PATIENT):
                await asked
        except (OutliveError, BusError, TimeoutError, OSError) as error:
            self.failures[f"{verb}: {type(error).__name__} {str(error)[:80]}"] += 1
            return False
        self.helped[verb] += 1
        return True
