"""The soak's tasks: every way in which a task waits and touches the world; the service outside honours only keys of `post`."""

import functools
import os
import random
import time
from typing import Final

import httpx

from outlive.actors.app import App
from outlive.actors.task import Task
from outlive.actors.testing.fake_service import URL_VARIABLE, FakeClient
from outlive.protocol.errors import NotSent, OutcomeUnknown
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation, RetryPolicy

TIMEOUT: Final = 15.0
"""Longer than any freeze of the soak: what a process frozen right before its call does later is not promised."""
SETTLE: Final = 2.0
NAP: Final = 0.7
SLOW: Final = 0.15
"""Seconds at most before an effect, and after it."""
PATIENT: Final = RetryPolicy(max_attempts=50, base=0.05, cap=0.5)

app: Final = App("soak")
go: Final = app.signal("go", int)


@functools.cache
def world() -> FakeClient:
    """Return the connection to the service outside."""
    return FakeClient(os.environ[URL_VARIABLE])


def send(name: str, op: Operation, what: str, *, keys: bool = False) -> int:
    """Do one effect and return its number; a cut connection is an unknown outcome."""
    time.sleep(random.uniform(0, SLOW))  # a kill or a cut falls before the effect as often as after it
    try:
        number = world().effect(name, what, key=op.key, keys=keys)
    except httpx.ConnectError as error:
        raise NotSent(str(error)) from error
    except httpx.TransportError as error:
        raise OutcomeUnknown(f"the answer was lost: {type(error).__name__}") from error
    time.sleep(random.uniform(0, SLOW))
    return number


def find(op: Operation) -> Outcome[int]:
    """Ask for the effect of an operation."""
    found = world().effects(key=op.key)
    return Outcome.happened(found[0].id, matches=len(found)) if found else Outcome.did_not_happen()


@app.tool(read_only=True)
def look(what: str) -> str:
    """Change nothing."""
    return what.upper()


@app.tool(timeout=TIMEOUT, retries=PATIENT, idempotent=True)
def post(op: Operation, what: str) -> int:
    """Do something where the key is honoured."""
    return send("post", op, what, keys=True)


@app.tool(timeout=TIMEOUT, settle=SETTLE, retries=PATIENT)
def order(op: Operation, what: str) -> int:
    """Do something that can be asked about, and honours no key."""
    return send("order", op, what)


@order.reconcile
def find_order(op: Operation, what: str) -> Outcome[int]:  # noqa: ARG001  # a reconciler takes what its tool does
    """Ask for this order."""
    return find(op)


@app.tool(timeout=TIMEOUT, retries=PATIENT)
def phone(op: Operation, what: str) -> int:
    """Do something that nobody can be asked about."""
    return send("phone", op, what)


@app.tool(timeout=TIMEOUT, settle=SETTLE, requires_approval=True, retries=PATIENT)
def mail(op: Operation, to: str) -> int:
    """Do something after a yes."""
    return send("mail", op, to)


@mail.reconcile
def find_mail(op: Operation, to: str) -> Outcome[int]:  # noqa: ARG001  # a reconciler takes what its tool does
    """Ask for this mail."""
    return find(op)


@app.task
async def plain(task: Task, n: int) -> list[int]:
    """Look, and act three times."""
    what = await task.call(look, f"thing {n}")
    first = await task.call(order, what)
    await task.progress("half way", done=1, total=2)
    return [first, await task.call(post, what), await task.call(order, f"{what} again")]


@app.task
async def approved(task: Task, n: int) -> int:
    """Act after a yes."""
    await task.call(post, f"letter {n}")
    return await task.call(mail, f"{n}@example.com")


@app.task
async def called(task: Task, n: int) -> int:
    """Act where an outcome that is lost takes a person."""
    return await task.call(phone, f"number {n}")


@app.task
async def timed(task: Task, n: int) -> list[int]:
    """Act, wait a while, act."""
    first = await task.call(order, f"before {n}")
    await task.sleep(NAP)
    return [first, await task.call(order, f"after {n}")]


@app.task
async def child(task: Task, n: int) -> int:
    """Act for a parent."""
    return await task.call(order, f"child {n}")


@app.task
async def family(task: Task, n: int) -> list[int]:
    """Let two children act side by side."""
    return [*await task.gather(task.spawn(child, 2 * n), task.spawn(child, 2 * n + 1))]


@app.task
async def signalled(task: Task, n: int) -> list[int]:
    """Act once for each of three signals, in their order."""
    heard = []
    for _ in range(3):
        heard.append(await task.wait_for(go))
        await task.call(order, f"signal {n}-{heard[-1]}")
    return heard


@app.task
async def stopped(task: Task, n: int) -> int:
    """Act and wait, many times: somebody cancels it."""
    for turn in range(1000):
        await task.call(order, f"{n} turn {turn}")
        await task.sleep(NAP)
    return n
