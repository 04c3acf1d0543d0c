"""A kind that asks a person and then touches the world with the answer."""

from outlive.actors import App, Operation, Task
from tests.chaos.remote import service

app = App("questions")


@app.tool(idempotent=True)
def book(op: Operation, month: str) -> int:
    """One booking, with the answer in it."""
    return service().effect("book", month, key=op.key)


@app.task
async def trip(task: Task) -> str:
    """Ask when, book it, ask whether it is right."""
    month = await task.ask("In which month?")
    await task.call(book, month)
    return f"{month}: {await task.ask('Is that right?', choices=['yes', 'no'])}"
