"""Tools whose remote has a limit, or wants to be left alone. They are async: a call begins at their first line."""

import os
import time

import httpx

from outlive.actors import App, Limit, Operation, RetryPolicy, Task, Unavailable

URL = "LIMITED_URL"
"""Environment variable: where the remote listens."""

app = App("limited")
LIMIT = Limit(
    calls=float(os.environ.get("LIMITED_CALLS", "20")),
    per=float(os.environ.get("LIMITED_PER", "1")),
    burst=int(os.environ.get("LIMITED_BURST", "3")),
)
PATIENT = RetryPolicy(max_attempts=8, base=0.05, cap=0.2)


async def _post(name: str, key: str | None = None) -> int:
    began = time.time()
    async with httpx.AsyncClient(base_url=os.environ[URL], timeout=20, trust_env=False) as client:
        headers = {"Idempotency-Key": key} if key else {}
        answer = await client.post(f"/effect/{name}", json={"began": began}, headers=headers)
        answer.raise_for_status()
        return int(answer.json()["effect"])


@app.tool(idempotent=True, rate_limit=LIMIT, retries=PATIENT)
async def write(op: Operation) -> int:
    """An effect that is limited."""
    return await _post("write", op.key)


@app.tool(read_only=True, rate_limit=LIMIT, retries=PATIENT)
async def read() -> int:
    """A look that is limited."""
    return await _post("read")


@app.tool(idempotent=True, retries=PATIENT)
async def free(op: Operation) -> int:
    """No limit is declared."""
    return await _post("free", op.key)


@app.task
async def writes(task: Task) -> int:
    """One effect."""
    return await task.call(write)


@app.task
async def reads(task: Task) -> int:
    """Two looks."""
    return await task.call(read) + await task.call(read)


@app.task
async def frees(task: Task) -> int:
    """One effect without a limit."""
    return await task.call(free)


@app.tool(retries=PATIENT)
async def charge(op: Operation) -> int:
    """No key, nobody to ask."""
    return await _post("charge")


@app.tool(idempotent=True, retries=RetryPolicy(max_attempts=1000, base=8, cap=60, max_elapsed=600))
async def persist(op: Operation) -> int:
    """Tried for ten minutes."""
    return await _post("persist", op.key)


@app.tool(read_only=True, retries=RetryPolicy(base=7200, cap=7200))
async def down() -> None:
    """Never works; tried again within two hours."""
    raise Unavailable("no service")


@app.task
async def charges(task: Task) -> int:
    """One effect without key and query."""
    return await task.call(charge)


@app.task
async def persists(task: Task) -> int:
    """One effect, patiently."""
    return await task.call(persist)


@app.task
async def downs(task: Task) -> None:
    """Backs off for long."""
    await task.call(down)
