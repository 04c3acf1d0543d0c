"""Kinds whose tools touch the world in each way that can be declared; the fake service honours no key here."""

import os
import time
from pathlib import Path

from outlive.actors import App, Operation, Outcome, Task
from outlive.protocol.errors import StepFailed
from tests.chaos.remote import found, send, service

app = App("effects")
go = app.signal("go", bool)
TIMEOUT = float(os.environ.get("EFFECTS_TIMEOUT", "3"))
STUCK = float(os.environ.get("EFFECTS_STUCK", "60"))
SETTLE = float(os.environ.get("EFFECTS_SETTLE", "1"))


@app.tool(timeout=TIMEOUT, settle=SETTLE)
def open_ticket(op: Operation, title: str) -> int:
    """The remote can be asked."""
    return send("open_ticket", op.key)


@open_ticket.reconcile
def find_ticket(op: Operation, title: str) -> Outcome[int]:
    """Ask for the ticket of this operation."""
    return found(op)


@app.tool(timeout=3)
def charge_card(op: Operation, cents: int) -> int:
    """The remote has no keys and cannot be asked."""
    return send("charge_card", op.key)


@app.tool(timeout=3, settle=SETTLE, requires_approval=True, approval_ttl=float(os.environ.get("EFFECTS_TTL", "600")))
def send_mail(op: Operation, to: str) -> int:
    """Shown to a person first."""
    return send("send_mail", op.key)


@send_mail.reconcile
def find_mail(op: Operation, to: str) -> Outcome[int]:
    """Ask for the mail of this operation."""
    return found(op)


@send_mail.prepare
def preview_mail(to: str) -> str:
    """What would be sent."""
    return f"one mail to {to}"


@app.task
async def ticket(task: Task) -> int:
    """Open one ticket."""
    return await task.call(open_ticket, "broken")


@app.task
async def told(task: Task) -> int:
    """Open one ticket when told."""
    await task.wait_for(go)
    return await task.call(open_ticket, "at last")


@app.task
async def charge(task: Task) -> int:
    """Charge one card."""
    return await task.call(charge_card, 1200)


@app.task
async def mail(task: Task) -> str:
    """Send one mail after a yes; a no is no failure of the task."""
    try:
        return f"sent {await task.call(send_mail, 'you@example.com')}"
    except StepFailed as error:
        return error.failure.type


@app.task
async def two_mails(task: Task) -> int:
    """Two questions at once."""
    first, second = await task.gather(task.call(send_mail, "a@example.com"), task.call(send_mail, "b@example.com"))
    return len({first, second})


@app.tool(timeout=0.5, settle=0.2)
def slow_ticket(op: Operation, seconds: float) -> int:
    """Outlives its timeout in its thread, and sends only then."""
    time.sleep(seconds or STUCK)
    return send("slow_ticket", op.key)


@slow_ticket.reconcile
def find_slow_ticket(op: Operation, seconds: float) -> Outcome[int]:
    """Ask for the ticket of this operation."""
    return found(op)


@app.tool(idempotent=True)
def post(op: Operation, text: str) -> int:
    """The service refuses or takes it, by its status."""
    return service().effect("post", text, key=op.key)


@app.task
async def everything(task: Task) -> list[int]:
    """Pass every await of the flow: an effect, a question, a wait, a sleep, a child."""
    first = await task.call(open_ticket, "broken")
    mail = await task.call(send_mail, "you@example.com")
    await task.sleep(0.05)
    await task.wait_for(go)
    return [first, mail, await task.spawn(ticket)]


@app.task
async def slow(task: Task) -> int:
    """One ticket by a slow thread."""
    return await task.call(slow_ticket, 2.0)


@app.task
async def stuck(task: Task) -> int:
    """One ticket by a thread that may hang."""
    return await task.call(slow_ticket, 0.0)


@app.task
async def mail_and_post(task: Task) -> int:
    """An approved mail, and a post behind it."""
    await task.call(send_mail, "you@example.com")
    return await task.call(post, "one")


@app.task
async def posts(task: Task) -> list[int]:
    """Two posts, one after the other."""
    return [await task.call(post, "one"), await task.call(post, "two")]


@app.tool(read_only=True)
def read_address(path: str) -> str:
    """What stands in a file."""
    return Path(path).read_text()


@app.task
async def letter(task: Task, to: str) -> int:
    """One mail after a yes; whatever fails ends the task."""
    return await task.call(send_mail, to)


@app.task
async def look_up(task: Task, path: str) -> str:
    """Read an address, and post it."""
    address = await task.call(read_address, path)
    return f"{address}: {await task.call(post, address)}"


@app.task
async def tickets(task: Task, count: int) -> list[int]:
    """Many tickets, one after the other."""
    return [await task.call(open_ticket, f"ticket {n}") for n in range(count)]


@app.task
async def brood(task: Task) -> list[int]:
    """Five children that sleep before their ticket."""
    return [*await task.gather(*(task.spawn(later) for _ in range(5)))]


@app.task
async def later(task: Task) -> int:
    """Sleep long, then one ticket."""
    await task.sleep(3600)
    return await task.call(open_ticket, "late")
