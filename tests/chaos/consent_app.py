"""Kinds whose effects are known by their business action, and asked for in several ways; the service honours no key."""

import os

from outlive.actors import App, Operation, Outcome, Task
from outlive.protocol.errors import StepFailed
from tests.chaos.remote import found, send

app = App("consent")


@app.tool(timeout=3, settle=0.2, unique=lambda order, cents: order, title="refund {cents} for {order}")
def refund(op: Operation, order: str, cents: int) -> int:
    """One refund an order."""
    return send("refund", op.key)


@refund.reconcile
def find_refund(op: Operation, order: str, cents: int) -> Outcome[int]:
    """Ask for the refund of this operation."""
    return found(op)


@app.tool(timeout=3, unique=lambda order: order, unique_within="task")
def charge(op: Operation, order: str) -> int:
    """One charge an order and task; the remote cannot be asked."""
    return send("charge", op.key)


@app.tool(timeout=3, settle=0.2, requires_approval=True, unique=lambda order, cents: order)
def pay(op: Operation, order: str, cents: int) -> int:
    """One payment an order, after a yes."""
    return send("pay", op.key)


@pay.reconcile
def find_payment(op: Operation, order: str, cents: int) -> Outcome[int]:
    """Ask for the payment of this operation."""
    return found(op)


@app.task
async def refunds(task: Task, order: str, cents: list[int]) -> list[int | str]:
    """Several refunds, one after the other; a failure is told in its place."""
    ends: list[int | str] = []
    for each in cents:
        try:
            ends.append(await task.call(refund, order, each))
        except StepFailed as error:
            ends.append(error.failure.type)
    return ends


@app.task
async def charges(task: Task, order: str) -> list[int]:
    """The same charge twice."""
    return [await task.call(charge, order), await task.call(charge, order)]


@app.task
async def payment(task: Task, order: str, cents: int = 500) -> str:
    """One payment; a no is no failure of the task."""
    try:
        return f"paid {await task.call(pay, order, cents)}"
    except StepFailed as error:
        return error.failure.message


@app.tool(
    timeout=3,
    settle=0.2,
    requires_approval=lambda to: to != "me",
    approval_ttl=float(os.environ.get("EFFECTS_TTL", "600")),
)
def mail(op: Operation, to: str) -> int:
    """One mail; those to myself need no yes."""
    return send("mail", op.key)


@mail.reconcile
def find_mail(op: Operation, to: str) -> Outcome[int]:
    """Ask for the mail of this operation."""
    return found(op)


@mail.prepare
def preview_mail(to: str) -> str:
    """What would be sent."""
    return f"one mail to {to}"


@app.tool(read_only=True)
def look_up(name: str) -> str:
    """Changes nothing."""
    return name


@app.task
async def mails(task: Task, people: list[str], others: list[str] | None = None) -> list[int | str]:
    """One question about all mails; the others ask for themselves."""
    calls = [task.call(mail, to) for to in people]
    rest = [task.call(mail, to) for to in others or []]
    looked = task.call(look_up, "all")
    ends: list[int | str] = [str(await task.approve_all([*calls, looked])), await looked]
    for call in (*calls, *rest):
        try:
            ends.append(await call)
        except StepFailed as error:
            ends.append(error.failure.type)
    return ends


@app.task
async def parent(task: Task, order: str) -> list[int | str]:
    """A child that refunds; what this one's submit wants, that one wants too."""
    return await task.spawn(refunds, order, [500])


@app.task
async def again(task: Task, order: str, runs: int = 1) -> int:
    """The same task begins anew before it refunds."""
    if runs:
        task.restart(order=order, runs=runs - 1)
    return await task.call(refund, order, 500)


@app.task
async def one_mail(task: Task, to: str) -> int:
    """One mail after a yes; a no fails the task."""
    return await task.call(mail, to)
