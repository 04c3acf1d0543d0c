"""The exam's tasks: each touches a shop outside (the fake service), which honours no keys, so that a repeat counts."""

import functools
import os
from typing import Final

import httpx

from outlive.actors.app import App
from outlive.actors.task import Task
from outlive.actors.testing.fake_service import URL_VARIABLE, FakeClient
from outlive.protocol.errors import OutcomeUnknown
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation, RetryPolicy

TIMEOUT: Final = 5.0
SETTLE: Final = 0.5
PATIENT: Final = RetryPolicy(base=0.05, cap=0.2)

app: Final = App("exam")
go: Final = app.signal("go", int)


@functools.cache
def shop() -> FakeClient:
    """Return the connection to the shop."""
    return FakeClient(os.environ[URL_VARIABLE])


def send(name: str, op: Operation, what: str) -> int:
    """Do one effect and return its number; a cut connection is an unknown outcome."""
    try:
        return shop().effect(name, what, key=op.key, keys=False)
    except httpx.TransportError as error:
        raise OutcomeUnknown(f"the answer was lost: {type(error).__name__}") from error


def find(op: Operation) -> Outcome[int]:
    """Ask the shop for the effect of an operation."""
    found = shop().effects(key=op.key)
    return Outcome.happened(found[0].id, matches=len(found)) if found else Outcome.did_not_happen()


@app.tool(read_only=True)
def look(item: str) -> str:
    """Read a price."""
    return f"{item}: 12 EUR"


@app.tool(timeout=TIMEOUT, settle=SETTLE, retries=PATIENT)
def order(op: Operation, item: str) -> int:
    """Order something; the shop can be asked."""
    return send("order", op, item)


@order.reconcile
def find_order(op: Operation, item: str) -> Outcome[int]:  # noqa: ARG001  # a reconciler takes what its tool does
    """Ask for this order."""
    return find(op)


@app.tool(timeout=TIMEOUT, retries=PATIENT)
def phone(op: Operation, item: str) -> int:
    """Order something where nobody can be asked afterwards."""
    return send("phone", op, item)


@app.tool(timeout=TIMEOUT, settle=SETTLE, requires_approval=True)
def wire(op: Operation, cents: int) -> int:
    """Send money: a risky action, which a person must agree to."""
    return send("wire", op, str(cents))


@wire.reconcile
def find_wire(op: Operation, cents: int) -> Outcome[int]:  # noqa: ARG001  # a reconciler takes what its tool does
    """Ask for this transfer."""
    return find(op)


@wire.prepare
def preview_wire(cents: int) -> str:
    """Say what would be sent."""
    return f"send {cents / 100:.2f} EUR; cannot be undone"


@app.task
async def purchase(task: Task, item: str, by_phone: bool = False) -> list[int]:
    """Look, order, order once more: what follows the fault must go on from the right place."""
    await task.call(look, item)
    first = await task.call(phone if by_phone else order, item)
    return [first, await task.call(order, f"wrapping for {item}")]


@app.task
async def errand(task: Task) -> list[int]:
    """Order, and once more after each of two signals: one that counts double would show."""
    orders = [await task.call(order, "paper")]
    for _ in range(2):
        sheet = await task.wait_for(go)
        orders.append(await task.call(order, f"sheet {sheet}"))
    return orders


@app.task
async def transfer(task: Task, cents: int) -> list[int]:
    """Order, then send the money."""
    return [await task.call(order, "a bill"), await task.call(wire, cents)]
