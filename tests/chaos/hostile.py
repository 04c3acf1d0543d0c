"""Kinds that do what no task should, and slow ones: ``WorkerProcess(server, "tests.chaos.hostile:app")``."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from outlive.actors import App, Operation, Task
from tests.chaos.remote import service

app = App("hostile")


@app.tool(read_only=True)
async def look(n: int, seconds: float = 0.0) -> int:
    """Change nothing, in `seconds`."""
    print("look begins", flush=True)
    await asyncio.sleep(seconds)
    return n


@app.tool(idempotent=True)
async def act(op: Operation, seconds: float) -> int:
    """One effect, at once, whose answer takes `seconds`."""
    n = await asyncio.to_thread(service().effect, "act", {}, key=op.key)
    await asyncio.sleep(seconds)
    return n


@app.tool(read_only=True)
def hang(seconds: float) -> float:
    """Keep a tool's thread."""
    print("hang begins", flush=True)
    time.sleep(seconds)
    return seconds


@app.tool(read_only=True)
async def spin() -> int:
    """Block the worker's event loop for ever."""
    while True:
        pass


@app.tool(read_only=True)
def eat(mended: str) -> int:
    """Take memory until somebody kills the process for it; nothing once the file `mended` is there."""
    eaten = list[bytearray]()
    while not Path(mended).exists():
        if len(eaten) == 64:
            raise RuntimeError("nobody minds: 1 GiB is taken")
        eaten.append(bytearray(b"x" * (16 << 20)))
        time.sleep(0.02)
    return len(eaten)


@app.tool(read_only=True)
def out_of_memory() -> int:
    """Ask for more than there can be: this one raises."""
    return len(bytearray(1 << 60))


@app.tool(read_only=True)
def exit_process() -> int:
    """Call sys.exit in a tool."""
    sys.exit(3)


@app.task
async def slow(task: Task, seconds: float, steps: int = 1) -> int:
    """`steps` read-only steps of `seconds` each."""
    return sum([await task.call(look, 1, seconds) for _ in range(steps)])


@app.task
async def slow_effect(task: Task, seconds: float) -> int:
    """One effect whose answer takes `seconds`."""
    return await task.call(act, seconds)


@app.task
async def poison(task: Task) -> int:
    """A durable step, then one that blocks the event loop for ever."""
    await task.call(look.with_options(durable="before_next"), 1)
    return await task.call(spin)


@app.task
async def poison_between(task: Task) -> int:
    """Block the event loop for ever outside of any step, from the first line on."""
    while True:
        pass


@app.task
async def hungry(task: Task, mended: str) -> int:
    """A durable step, then one that takes all memory."""
    await task.call(look.with_options(durable="before_next"), 1)
    return await task.call(eat, mended)


@app.task
async def raises(task: Task) -> int:
    """A step whose tool runs out of memory and says so."""
    return await task.call(out_of_memory)


@app.task
async def innocent(task: Task, steps: int, seconds: float) -> int:
    """Effects beside poison, each of them sent once."""
    return len({await task.call(act.with_options(step_id=f"s{n}"), seconds) for n in range(steps)})


@app.task
async def hung_thread(task: Task, seconds: float) -> float:
    """One step whose synchronous tool hangs."""
    return await task.call(hang, seconds)


@app.task
async def deaf(task: Task) -> int:
    """Swallow every cancellation."""
    await task.call(look, 1)
    print("deaf begins", flush=True)
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@app.task
async def quits(task: Task) -> int:
    """A tool calls sys.exit."""
    return await task.call(exit_process)


@app.task
async def gives_up(task: Task) -> int:
    """Cancel itself."""
    await task.call(look, 1)
    raise asyncio.CancelledError


@app.task
async def buggy(task: Task) -> int:
    """A step, then a bug."""
    await task.call(look, 1)
    return 1 // 0


@app.task
async def killer(task: Task, step: bool = True) -> int:
    """SIGKILL its own worker."""
    if step:
        await task.call(look, 1)
    os.kill(os.getpid(), signal.SIGKILL)
    return await task.call(look, 2)
