"""Actors that stand still: their next tool is called only when they are let go on."""

import asyncio
from typing import Any

from outlive.actors.runnable import Runnable
from outlive.actors.step import ToolStep
from outlive.protocol.tools import Operation


class Holding:
    """Stands between the steps of held tasks and their tools, in this process."""

    def __init__(self) -> None:
        """Hold nobody."""
        self._held: dict[tuple[str, str], asyncio.Event] = {}
        self._installed = False

    def hold_only(self, keys: set[tuple[str, str]]) -> None:
        """Let the next tool of these tasks (tenant, id) wait, its intent durable by then; others go on."""
        self._install()
        for key in self._held.keys() - keys:
            self._held.pop(key).set()
        for key in keys - self._held.keys():
            self._held[key] = asyncio.Event()

    def _install(self) -> None:
        if self._installed:
            return
        self._installed = True
        original, held = ToolStep[Any].run, self._held

        async def run(step: ToolStep[Any], what: Runnable, operation: Operation | None = None) -> Any:
            claim = step.flow.claim
            if (event := held.get((claim.tenant, claim.task_id))) is not None:
                await event.wait()
            return await original(step, what, operation)

        ToolStep.run = run  # type: ignore[method-assign, assignment]  # only in a process that asked to be broken
