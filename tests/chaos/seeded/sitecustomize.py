"""Puts one bug into a worker process: Python imports this at its start where PYTHONPATH names this folder.

``SEEDED_BUG`` names the bug; only workers get it, never the process that examines them.
"""

import asyncio
import os
import sys
from typing import Any


def no_reconcile() -> None:
    """A lost answer is sent again without asking."""
    from outlive.actors.effect import Effect

    find_out = Effect._find_out

    async def finding(self: Any, lost: Any) -> Any:
        return None if self.tool.reconciler is not None else await find_out(self, lost)

    Effect._find_out = finding  # type: ignore[method-assign]


def yes_not_used_up() -> None:
    """The intent does not record that it uses the yes."""
    from outlive.actors.consent import Consented

    approval = Consented._approval

    def told(self: Any, status: Any, *arguments: Any, **more: Any) -> Any:
        return approval(self, "given" if status == "used" else status, *arguments, **more)

    Consented._approval = told  # type: ignore[method-assign]


def stale_epoch() -> None:
    """A worker takes a refused write for a good one, looks at no lease, and hears late that it was fenced."""
    from outlive.infra.journal import Journal
    from outlive.infra.liveness import Heartbeat

    async def judge(self: Any, _link: Any, refused: Any) -> list[Any]:
        for batch in refused:
            self._applied(batch)
        return []

    renew = Heartbeat._renew

    async def renewing(self: Any, connection: Any) -> None:
        await renew(self, connection)
        if self.fenced.is_set():
            self.fenced.clear()
            await asyncio.sleep(3)
            self.fenced.set()

    Journal._judge = judge  # type: ignore[assignment,method-assign]
    Heartbeat._renew = renewing  # type: ignore[method-assign]
    Heartbeat.covered = property(lambda _: 60.0)  # type: ignore[method-assign,assignment]


def cancel_tells_nothing() -> None:
    """A cancel says of every effect that it did not happen."""
    from outlive.protocol import effects

    effects.outcome_of = lambda *_, **__: "did_not_happen"


if (bug := os.environ.get("SEEDED_BUG")) and "worker" in sys.orig_argv:
    globals()[bug]()
