"""What the actors of one worker share."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from outlive.actors.threads import Threads
from outlive.infra.announcer import Announcer
from outlive.infra.buckets import Buckets
from outlive.infra.budgets import Budgets
from outlive.infra.claims import Attempt, Claims
from outlive.infra.clock import Clock
from outlive.infra.identities import Identities
from outlive.infra.liveness import Heartbeat
from outlive.infra.settings import Settings
from outlive.protocol import paths
from outlive.protocol.tools import AnyTool, Signal


@dataclass(frozen=True, slots=True)
class World:
    """What the actors of one worker share."""

    clock: Clock
    threads: Threads
    settings: Settings
    heartbeat: Heartbeat
    claims: Claims
    identities: Identities
    announcer: Announcer
    budgets: Budgets
    buckets: Buckets
    worker: str
    signals: Mapping[str, Signal[Any]] = field(default_factory=dict[str, Signal[Any]])
    tools: Mapping[str, AnyTool] = field(default_factory=dict[str, AnyTool])
    waived: frozenset[str] = frozenset()  # tools whose yes the operator has switched off
    random: Random = field(default_factory=Random)
    freed: asyncio.Event = field(default_factory=asyncio.Event)  # an actor ended or began to wait: its slot is free
    turned_out: Callable[[Attempt], None] = lambda _: None  # an effect succeeded, and it may have been judged otherwise
    pid: int = field(default_factory=os.getpid)

    def path(self, name: str) -> str:
        """What follows a lost answer of a tool, in a word: ``send_again``, or who is asked."""
        tool = self.tools.get(name)
        path = "person" if tool is None else paths.after_lost_answer(tool)
        return tool.reconciler.name if path == "ask" and tool is not None and tool.reconciler is not None else path
