"""Tasks to be explored: one that is right, and ones with the mistakes that an explorer must find.

The world is a folder (``EXPLORED_WORLD``): each effect is one line in the file of its task.
"""

import os
from collections import Counter
from pathlib import Path

from outlive.actors import App, Operation, Outcome, Task

app = App("explored")
_WORLD = Path(os.environ.get("EXPLORED_WORLD", "."))


def counted(world: Path, run: str) -> dict[str, int]:
    """What has happened for one run in a world, by name."""
    path = world / run
    lines = path.read_text().splitlines() if path.exists() else []
    posts = len(list(world.glob(f"{run}.post.*")))
    return dict(Counter(line.partition(" ")[0] for line in lines) + Counter(post=posts))


def done(task_id: str) -> list[str]:
    """What has happened for a task, in order."""
    path = _WORLD / task_id
    return path.read_text().splitlines() if path.exists() else []


def do(task_id: str, what: str) -> str:
    """Let something happen."""
    with (_WORLD / task_id).open("a") as file:
        file.write(f"{what}\n")
    return what


def count(run: str) -> dict[str, int]:
    """What has happened for one run, by name."""
    return counted(_WORLD, run)


def _run(op: Operation) -> str:
    return op.key.partition("/")[0]


def _found(run: str, what: str) -> Outcome[str]:
    return Outcome.happened(what) if what in done(run) else Outcome.did_not_happen()


@app.tool(timeout=5, settle=1)
def send_mail(op: Operation, to: str) -> str:
    """Send one mail; it can be found again."""
    return do(_run(op), f"mail {op.uuid}")


@send_mail.reconcile
def find_mail(op: Operation, to: str) -> Outcome[str]:
    """Look for it."""
    return _found(_run(op), f"mail {op.uuid}")


@app.tool(idempotent=True)
def post(op: Operation, text: str) -> str:
    """Post once for each key."""
    (_WORLD / f"{_run(op)}.post.{op.uuid}").touch()
    return text


@app.tool(idempotent=True)
def post_without_key(op: Operation, text: str) -> str:
    """Post whenever it is called: the remote honours no key."""
    do(_run(op), "post")
    return text


@app.tool()
def charge(op: Operation, cents: int) -> int:
    """Nobody can be asked about it."""
    do(_run(op), "charge")
    return cents


@app.tool(read_only=True)
def look(what: str) -> str:
    """Look at something."""
    return what.upper()


@app.tool(read_only=True)
def look_and_count(run: str) -> str:
    """Look at something, and change it."""
    return do(run, "look")


@app.tool(requires_approval=True, timeout=5, settle=1)
def announce(op: Operation, what: str) -> str:
    """Announced after a yes."""
    return do(_run(op), f"announce {op.uuid}")


@announce.reconcile
def find_announcement(op: Operation, what: str) -> Outcome[str]:
    """Look for it."""
    return _found(_run(op), f"announce {op.uuid}")


@app.task
async def right(task: Task) -> list[str]:
    """Look, mail, post, announce, sleep: nothing is wrong with it."""
    looked = await task.call(look, "a")
    mail = await task.call(send_mail, "you@example.com")
    posted = await task.call(post, looked)
    await task.sleep(60)
    announced = await task.call(announce, "done")
    return [posted, mail, announced]


@app.task
async def paid(task: Task) -> int:
    """Charge a card: after a lost answer a person decides."""
    return await task.call(charge, 1200)


@app.task
async def wrongly_idempotent(task: Task) -> str:
    """Its remote honours no key."""
    return await task.call(post_without_key, await task.call(look, "a"))


@app.task
async def wrongly_read_only(task: Task) -> str:
    """Its reader changes something."""
    return await task.call(post, await task.call(look_and_count, task.task_id))


@app.task
async def outside_of_steps(task: Task) -> str:
    """It touches the world between its steps."""
    looked = await task.call(look, "a")
    do(task.task_id, "by the function itself")
    return await task.call(post, looked)


@app.task
async def branches(task: Task) -> str:
    """It branches on the world, which it has changed when it runs again."""
    if done(task.task_id):
        return await task.call(post, "again")
    await task.call(send_mail, "you@example.com")
    return await task.call(look, "first")
