"""Following tasks to their end, or to where a person must act."""

import sys
from collections.abc import Mapping
from contextlib import aclosing

import anyio

from outlive.actors.console import codes
from outlive.actors.console.screen import Screen
from outlive.infra.client import Client
from outlive.protocol import api
from outlive.protocol.events import StatusEvent
from outlive.protocol.task import FINAL, Status, TaskRecord


class Follower:
    """Shows tasks on a screen.

    Args:
        client: connected.
        screen: where to show them.
        stay: go on watching a task that waits for a person (somebody looks, and may act elsewhere).

    Attributes:
        seen: the last event shown, by task, of those that have not ended.
    """

    def __init__(self, client: Client, screen: Screen, *, stay: bool) -> None:
        self._client = client
        self._screen = screen
        self._stay = stay
        self.seen: dict[str, int] = {}

    async def follow(self, tasks: Mapping[str, int]) -> int:
        """Show tasks from an event's number on; return the exit code: 0, 1 if one failed, 3 if one waits for a person.

        Raises:
            QuestionRefused: there is no such task.
        """
        ends: list[int] = []

        async def follow_one(task_id: str, from_seq: int) -> None:
            ends.append(await self._one(task_id, from_seq))
            del self.seen[task_id]

        async with anyio.create_task_group() as group:
            for task_id, from_seq in tasks.items():
                self.seen[task_id] = from_seq - 1
                group.start_soon(follow_one, task_id, from_seq)
        return next((code for code in (codes.FAILED, codes.PERSON) if code in ends), codes.DONE)

    async def _one(self, task_id: str, from_seq: int) -> int:
        waits = False
        async with aclosing(self._client.events(task_id, from_seq)) as events:
            async for item in events:
                self._screen.event(task_id, item)
                seq = getattr(item, "seq", None)
                self.seen[task_id] = seq if seq is not None else getattr(item, "to_seq", 0)
                if isinstance(item, StatusEvent):
                    waits = item.status is Status.PAUSED
                if waits and not self._stay and (task := await self._stands_still(task_id)):
                    self._screen.end(task)
                    return codes.PERSON
        task = await self._client.get(task_id)
        self._screen.end(task)
        return codes.FAILED if task.status in FINAL - {Status.SUCCEEDED} else codes.DONE

    async def _stands_still(self, task_id: str) -> TaskRecord | None:
        """Return the task if nothing has happened to it since the event just shown: it waits now, not in its past."""
        question = api.Get(task_id=task_id, with_input=False, with_result=False)
        task = await self._client.questions.ask("get", question, TaskRecord)
        return task if task.status is Status.PAUSED and task.last_seq == self.seen[task_id] else None


def somebody_looks() -> bool:
    """Tell whether a person watches in a terminal, and can act in another one."""
    return sys.stderr.isatty()
