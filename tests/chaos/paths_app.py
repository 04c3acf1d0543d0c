"""An order, a charge, a mail, a deletion and a change of rights, each declared as its remote allows."""

import os
from email.message import EmailMessage
from mailbox import Maildir
from pathlib import Path

from outlive.actors import App, Operation, Outcome, Task, http
from outlive.actors.recipes import lookup, mail, payments
from outlive.protocol.errors import InvalidArguments, Unavailable

app = App("paths")
go = app.signal("go", bool)
URL = os.environ.get("PATHS_URL", "")
OUTBOX = os.environ.get("PATHS_OUTBOX", "")
KEY_TTL = float(os.environ.get("PATHS_KEY_TTL", payments.KEY_TTL))


# --- an order: it has an address of its own, so the same order twice is one order


@app.tool(idempotent=True, timeout=5)
async def place_order(op: Operation, item: str, count: int) -> str:
    """Put the order to an address that follows from the key."""
    await http.send(op, "PUT", f"{URL}/orders/{op.uuid}", json={"item": item, "count": count})
    return op.uuid


@app.task
async def order(task: Task) -> str:
    """Place one order."""
    return await task.call(place_order, "lamp", 2)


# --- a charge: the remote honours keys for a day; after that it can be asked


@app.tool(idempotent=True, key_ttl=KEY_TTL, timeout=5, settle=1)
async def charge(op: Operation, cents: int) -> str:
    """Charge a card under the operation's key."""
    body = {"amount": cents, "metadata": payments.metadata(op)}
    made = await http.send(op, "POST", f"{URL}/charges", json=body)
    return str(made["id"])


@charge.reconcile
async def find_charge(op: Operation, cents: int) -> Outcome[str]:
    """Look for the key in the metadata of the charges made since."""
    found = await payments.payment(op, f"{URL}/charges", headers={})
    if found.verdict != "happened" or found.result is None:
        return found
    return Outcome.happened(str(found.result["id"]), matches=found.matches)


@app.task
async def pay(task: Task) -> str:
    """Make one charge."""
    return await task.call(charge, 1200)


# --- a mail: no key, no way back, but a Message-ID to look for


@app.tool(requires_approval=True, timeout=5, settle=0)
def send_mail(op: Operation, to: str, body: str) -> str:
    """Put a mail into the outbox; it is there as a whole or not at all."""
    message = EmailMessage()
    message["To"], message["Message-ID"] = to, mail.message_id(op, "shop.example")
    message.set_content(body)
    Maildir(OUTBOX).add(message)
    return mail.message_id(op, "shop.example")


@send_mail.prepare
def preview_mail(to: str, body: str) -> str:
    """Say to whom."""
    return f"{len(body)} characters to {to}; it cannot be called back"


@send_mail.reconcile
def find_mail(op: Operation, to: str, body: str) -> Outcome[str]:
    """Look for the Message-ID."""
    return mail.in_maildir(op, Path(OUTBOX), domain="shop.example")


@app.task
async def write(task: Task) -> str:
    """Send one mail."""
    return await task.call(send_mail, "you@example.com", "It is on its way.")


# --- a deletion: twice is once, and what is gone needs no second look


@app.tool(idempotent=True, requires_approval=True, timeout=5)
async def delete_document(document: str) -> str:
    """Delete a document; that it is not there (any more) is what was wanted."""
    answer = await http.ask("DELETE", f"{URL}/documents/{document}")
    if answer.ok or answer.status in {404, 410}:
        return "gone"
    if answer.status < 500:
        raise InvalidArguments(f"{document}: {answer.status} {answer.text}")
    raise Unavailable(f"{document}: {answer.status} {answer.text}")


@delete_document.prepare
async def preview_deletion(document: str) -> str:
    """Say what would be lost."""
    there = await http.ask("GET", f"{URL}/documents/{document}")
    return f"{document} ({'exists' if there.ok else 'does not exist'}) would be gone for good"


@app.task
async def clear(task: Task) -> str:
    """Delete one document."""
    return await task.call(delete_document, "draft")


# --- a change of rights: told to people each time, so sent once; it can be read back


@app.tool(requires_approval=True, timeout=1, settle=0.5)
async def grant(op: Operation, user: str, role: str) -> str:
    """Give a role to a user, who gets a notice."""
    await http.send(op, "PUT", f"{URL}/rights/{user}", json={"role": role})
    return role


@grant.reconcile
async def read_back(op: Operation, user: str, role: str) -> Outcome[str]:
    """See which role the user has now. Who else changes roles meanwhile is not told apart."""
    found = await lookup.by_key(f"{URL}/rights/{user}", result=lambda rights: rights["role"])
    return found if found.verdict != "happened" or found.result == role else Outcome.did_not_happen()


@grant.compensate(idempotent=True, timeout=5)
async def take_back(op: Operation, user: str, role: str) -> None:
    """Make the user a reader again: the same state, however often."""
    await http.send(op, "PUT", f"{URL}/rights/{user}", json={"role": "reader"})


@app.task
async def promote_for_now(task: Task) -> bool:
    """Make one user an admin, and wait."""
    await task.call(grant, "ann", "admin")
    return await task.wait_for(go)


@app.task
async def promote(task: Task) -> str:
    """Make one user an admin."""
    return await task.call(grant, "ann", "admin")
