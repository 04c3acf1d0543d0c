"""A kind and tools with marked secrets, written by somebody who lets them slip wherever that is possible."""

import contextlib

from outlive.actors import App, Operation, RetryPolicy, Secret, StepFailed, Task, TaskFailed
from outlive.protocol.errors import Unavailable

app = App("secrets")


@app.tool(read_only=True, title="look for {user} with {password}")
def look(user: str, password: Secret[str]) -> bool:
    """Reads something."""
    return bool(user and password)


@app.tool(
    requires_approval=True, title="log in {user} with {password}", idempotent=True,
    retries=RetryPolicy(max_attempts=2, base=0.01),
)  # fmt: skip
def log_in(op: Operation, user: str, password: Secret[str], pins: list[Secret[str]]) -> None:
    """Tells its password in its progress and its errors."""
    op.progress(f"knocking with {password}")
    raise Unavailable(f"no entry for {user} with {password!r} and {pins}")


@log_in.prepare
def preview(user: str, password: Secret[str], pins: list[Secret[str]]) -> str:
    """Tells its password to the person who is asked."""
    return f"{user} comes in with {password}"


@app.task(title="{user} with {password}")
async def inner(task: Task, user: str, password: Secret[str]) -> None:
    """Has a bug that tells it."""
    raise RuntimeError(f"{user} has {password}")


@app.task(title="{user} with {password}")
async def vault(task: Task, user: str, password: Secret[str]) -> int:
    """Reads, is refused, asks a child, fails with a traceback."""
    await task.call(look, user, password)
    with contextlib.suppress(StepFailed):
        await task.call(log_in, user, password, [password])
    with contextlib.suppress(TaskFailed):
        await task.spawn(inner, user, password)
    raise RuntimeError(f"the last word is {password}")
