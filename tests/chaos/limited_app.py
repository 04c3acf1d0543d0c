"""Tools whose remote has a limit, or wants to be left alone. They are async: a call begins at their first line."""

import os
import time

import httpx

from outlive.actors import App, Limit, Operation, RetryPolicy, Task

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
