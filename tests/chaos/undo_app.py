"""Kinds whose effects can be undone, each in its own way; the fake service counts, and honours no key here."""

from outlive.actors import App, Operation, Outcome, PermissionDenied, Task
from tests.chaos.remote import found, send

app = App("undoing")
go = app.signal("go", str)


@app.tool(timeout=3, settle=0.2)
def book(op: Operation, what: str) -> int:
    """Can be asked about, and undone; the undoing too can be asked about."""
    return send("book", op.key, what)


@book.reconcile
def find_booking(op: Operation, what: str) -> Outcome[int]:
    """Ask for the booking of this operation."""
    return found(op)


@book.compensate(timeout=3, settle=0.2)
def unbook(op: Operation, what: str) -> int:
    """Undo the booking by its number."""
    return send("unbook", op.key, {"booking": op.undoes.result, "key": op.undoes.key, "what": what})


@unbook.reconcile
def find_unbooking(op: Operation, what: str) -> Outcome[int]:
    """Ask for the undoing of this operation."""
    return found(op)


@app.tool(timeout=3)
def charge(op: Operation, what: str) -> int:
    """Nobody can be asked about it, nor about its undoing."""
    return send("charge", op.key, what)


@charge.compensate(timeout=3)
def refund(op: Operation, what: str) -> int:
    """Give the money back."""
    return send("refund", op.key, {"charge": op.undoes.result})


@app.tool(timeout=3)
def post(op: Operation, what: str) -> int:
    """Cannot be undone."""
    return send("post", op.key, what)


@app.tool(timeout=3)
def hire(op: Operation, what: str) -> int:
    """Undone after a yes only."""
    return send("hire", op.key, what)


@hire.compensate(requires_approval=True, idempotent=True)
def dismiss(op: Operation, what: str) -> int:
    """Let go whom we hired."""
    return send("dismiss", op.key, {"hire": op.undoes.result})


@app.tool(timeout=3)
def open_door(op: Operation, what: str) -> int:
    """Its undoing is refused."""
    return send("open_door", op.key, what)


@open_door.compensate
def close_door(what: str) -> None:
    """We may not."""
    raise PermissionDenied(f"the door {what} is not ours")


TOOLS = {tool.name: tool for tool in (book, charge, post, hire, open_door)}


@app.task
async def trip(task: Task, calls: list[str]) -> str:
    """Make these calls one after the other, and wait."""
    for n, name in enumerate(calls):
        await task.call(TOOLS[name], f"{name} {n}")
    return await task.wait_for(go)


@app.task
async def two_runs(task: Task, run: int) -> str:
    """One booking, a second run with another one, and wait."""
    await task.call(book, f"run {run}")
    if run == 1:
        task.restart(run=2)
    return await task.wait_for(go)


@app.task
async def breaks(task: Task) -> None:
    """One booking, then a mistake that is no bug of ours."""
    await task.call(book, "one")
    await task.call(refused)


@app.tool(read_only=True)
def refused() -> None:
    """Never works."""
    raise PermissionDenied("no")


@app.task
async def family(task: Task) -> str:
    """Two children that book, and one booking of its own."""
    await task.call(book, "own")
    return (await task.gather(task.spawn(trip, ["book"]), task.spawn(trip, ["book", "book"])))[0]
