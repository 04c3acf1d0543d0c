"""Kinds that grow: one long task, and many that wait. For worker processes: ``tests.guarantees.growing:app``."""

import random
from typing import Final

from outlive.actors import App, Task

app: Final = App("growing")
go: Final = app.signal("go", int)


@app.tool(read_only=True)
async def read_page(number: int, size: int) -> str:
    """`size` characters that hardly compress, the same each time."""
    return random.Random(number).randbytes(size // 2).hex()


@app.tool(idempotent=True)
async def send_page(number: int, text: str) -> int:
    """Stand for an effect that takes a payload."""
    return number + len(text)


@app.task
async def grow(task: Task, steps: int, size: int) -> int:
    """`steps` steps, by turns a result and an argument of `size` characters; then wait for ``go``, and one step more."""
    text = ""
    for number in range(steps // 2):
        text = await task.call(read_page.with_options(durable="before_next"), number, size)
        await task.call(send_page, number, text)
    return await task.call(send_page, await task.wait_for(go), text)


@app.task
async def wait(task: Task) -> int:
    """Wait for ``go``, then one step."""
    return len(await task.call(read_page, await task.wait_for(go), 10))
