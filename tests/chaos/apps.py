"""The kinds that chaos tests run, in worker processes: ``WorkerProcess(server, "tests.chaos.apps:app")``.

Effects go to the fake service whose URL is in ``FAKE_SERVICE_URL``, with the operation's key, so that what happened is
counted outside Outlive.
"""

import asyncio
import time

from outlive.actors import App, Operation, Task
from tests.chaos.remote import service

app = App("chaos")
go = app.signal("go", str)


@app.tool(read_only=True)
def look(n: int) -> int:
    """Change nothing, at once."""
    return n * n


@app.tool(read_only=True)
async def look_long(n: int, seconds: float) -> int:
    """Change nothing, in `seconds`."""
    await asyncio.sleep(seconds)
    return n * n


@app.tool(idempotent=True, title="post {name}")
def post(op: Operation, name: str, n: int) -> int:
    """Have an effect in the fake service; gives its number there."""
    return service().effect(name, {"n": n}, key=op.key)


@app.tool(read_only=True)
def block_thread(seconds: float) -> float:
    """Keep a tool's thread."""
    time.sleep(seconds)
    return seconds


@app.task
async def steps10(task: Task, seconds: float = 0.0) -> int:
    """Ten read-only steps of `seconds` each; returns 285."""
    return sum([await (task.call(look_long, n, seconds) if seconds else task.call(look, n)) for n in range(10)])


@app.task
async def effects10(task: Task) -> int:
    """Ten effects, one after the other; returns how many different ones."""
    return len({await task.call(post, "effects10", n) for n in range(10)})


@app.task
async def mixed(task: Task, seconds: float = 0.0) -> int:
    """Five times a read-only step, an effect and a note; returns the number of effects."""
    effects = set[int]()
    for n in range(5):
        await (task.call(look_long, n, seconds) if seconds else task.call(look, n))
        effects.add(await task.call(post, "mixed", n))
        await task.progress(f"{n + 1} of 5 posted", done=n + 1, total=5)
    return len(effects)


@app.task
async def waiter(task: Task) -> str:
    """Wait for the signal ``go``; return its value."""
    return await task.wait_for(go)


@app.task
async def collector(task: Task, count: int) -> list[str]:
    """Wait for the signal ``go`` `count` times; return the values in the order in which they were taken."""
    return [await task.wait_for(go) for _ in range(count)]


@app.task
async def sleeper(task: Task, seconds: float) -> str:
    """Sleep, then have one effect."""
    await task.sleep(seconds)
    await task.call(post, "sleeper", 1)
    return "awake"


@app.task
async def child(task: Task, n: int) -> int:
    """One effect; returns the square of `n`."""
    await task.call(post, "child", n)
    return await task.call(look, n)


@app.task
async def parent(task: Task, children: int = 3) -> int:
    """Spawn children side by side and sum their results."""
    return sum(await task.gather(*(task.spawn(child, n) for n in range(children))))


@app.task
async def blocker(task: Task, seconds: float) -> str:
    """Block the whole event loop of the worker between two steps: what the watchdog is for."""
    await task.call(look, 1)
    time.sleep(seconds)  # noqa: ASYNC251  # the point
    await task.call(look, 2)
    return "free"


@app.task
async def busy_thread(task: Task, seconds: float) -> float:
    """One step whose synchronous tool lasts `seconds`."""
    return await task.call(block_thread, seconds)


@app.task
async def long(task: Task, steps: int) -> int:
    """`steps` read-only steps."""
    total = 0
    for n in range(steps):
        total += await task.call(look, n)
    return total


@app.task
async def boom(task: Task, times: int = 1_000_000) -> str:
    """A step, then a bug."""
    await task.call(look, times)
    raise RuntimeError("a bug of the task")
