"""Kinds whose promises do not hold, each for a reason of its own; the fake service honours no key here."""

import os
import signal
from pathlib import Path

from outlive.actors import App, Operation, Outcome, Task
from tests.chaos.remote import found, send

app = App("defeats")
go = app.signal("go", bool)
FROZEN = "DEFEATS_FROZEN"
"""Names a file that the first call makes before it freezes its process."""


@app.tool(timeout=0.5, settle=0.2)
def freezing(op: Operation) -> int:
    """Stands still with its whole process right before it sends, the first time."""
    frozen = Path(os.environ[FROZEN])
    if not frozen.exists():
        frozen.touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return send("freezing", op.key)


@freezing.reconcile
def find_freezing(op: Operation) -> Outcome[int]:
    """Ask for the effect of this operation."""
    return found(op)


@app.tool(idempotent=True)
def keyless(op: Operation) -> int:
    """Said to honour its key, and does not."""
    return send("keyless", op.key)


@app.tool(timeout=1, settle=0)
def unseen(op: Operation) -> int:
    """Happens where its reconciler does not look."""
    return send("unseen", op.key)


@unseen.reconcile
def look_elsewhere() -> Outcome[int]:
    """Find nothing, whatever happened."""
    return Outcome.did_not_happen()


@app.tool(read_only=True)
def writing() -> int:
    """Said to change nothing, and does."""
    return send("writing", "writing")


@app.task
async def freezes(task: Task) -> int:
    """One effect whose process stands still."""
    return await task.call(freezing)


@app.task
async def trusts_a_key(task: Task) -> int:
    """One effect whose key nobody honours."""
    return await task.call(keyless)


@app.task
async def trusts_a_look(task: Task) -> int:
    """One effect that is looked for in the wrong place."""
    return await task.call(unseen)


@app.task
async def trusts_a_flag(task: Task) -> int:
    """One effect that is declared as none."""
    return await task.call(writing)


@app.task
async def acts_between(task: Task) -> bool:
    """One effect of the function itself, outside of any step, and a wait behind it."""
    send("between", "between")
    return await task.wait_for(go)


@app.task
async def waits_after(task: Task) -> int:
    """One effect, then a wait."""
    number = await task.call(unseen)
    await task.wait_for(go)
    return number
