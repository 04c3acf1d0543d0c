# ruff: noqa: PGH003  # the two checkers have different codes for one mistake
# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What users write, with the types they get. Never run: `test_api` has mypy and pyright check it, both strict.

A line marked ``type: ignore`` is a mistake that both must report.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, assert_type

from outlive.actors import App, Client, Operation, Outcome, Task
from outlive.protocol.tools import AnyKind, AnyTool, Kind, Signal, Tool

app = App("todo")


@dataclass
class Report:
    lines: list[str]


@app.tool(read_only=True)
def find_todos(path: str, limit: int = 10) -> list[str]:
    return [path] * limit


@app.tool(read_only=True, timeout=5, title="fetch {url}")
async def fetch(url: str) -> bytes:
    return url.encode()


@app.tool(idempotent=True)
def send_mail(op: Operation, to: str, *, body: str = "") -> str:
    return f"{op.uuid} {to} {body}"


@app.tool(idempotent=True)
async def post(op: Operation, report: Report) -> None:
    op.progress(report.lines[0], done=1, total=2)


@app.tool
def unmarked(path: str) -> int:
    return len(path)


@app.tool
async def unmarked_effect(op: Operation, n: int) -> float:
    return n / op.attempt


def is_large(amount: int) -> bool:
    return amount > 100


def shown(amount: int) -> str:
    return f"pay {amount}"


@app.tool(requires_approval=is_large, approval_ttl=3600, settle=5, prepare=shown)
async def pay(amount: int) -> None:
    """Sent once, after a yes where it is large."""


@app.tool(read_only=True)
def no_parameters() -> dict[str, Any]:
    return {}


@send_mail.reconcile
def find_mail(op: Operation, to: str, *, body: str = "") -> Outcome[str]:
    return Outcome.happened(op.key) if to else Outcome.did_not_happen()


@pay.reconcile
async def find_payment(op: Operation, amount: int) -> Outcome[None]:
    if op.attempt > amount:
        return Outcome.refused("too often")
    return Outcome.happened(None, matches=2) if amount else Outcome.unknown("nobody answers")


@unmarked.reconcile
def find_unmarked(path: str) -> Outcome[int]:
    return Outcome.happened_result_lost() if path else Outcome.happened(3)


@send_mail.prepare
def preview(to: str, *, body: str = "") -> str:
    return f"{len(body)} characters to {to}"


@unmarked_effect.prepare
async def preview_effect(op: Operation, n: int) -> str:
    return f"{op.key} {n}"


@send_mail.compensate
def unsend(op: Operation, to: str, *, body: str = "") -> None:
    """Write a mail that takes it back."""


@unmarked_effect.compensate(idempotent=True, timeout=3)
async def undo_effect(op: Operation, n: int) -> str:
    return f"{op.undoes.key} {n}"


assert_type(find_unmarked("a"), Outcome[int])
assert_type(preview("a", body="b"), str)
assert_type(Outcome.happened(3), Outcome[int])


go = app.signal("go", Report)


@app.task
async def count(task: Task, path: str) -> int:
    return len(await task.call(find_todos, path))


@app.task(name="collect-todos", title="collect {folder}")
async def collect(task: Task, folder: str, to: str = "me") -> Report:
    assert_type(await task.call(find_todos, folder), list[str])
    assert_type(await task.call(find_todos, folder, limit=3), list[str])
    assert_type(await task.call(fetch, url=folder), bytes)
    assert_type(await task.call(send_mail, to, body="x"), str)
    assert_type(await task.call(send_mail.with_options(step_id="mail", timeout=3), to), str)
    assert_type(await task.call(no_parameters), dict[str, Any])
    await task.call(post, Report([]))

    assert_type(await task.spawn(count, folder), int)
    assert_type(await task.spawn(count.with_options(task_id="child"), path=folder), int)
    assert_type(await task.wait_for(go, timeout=3600), Report)

    task.call(find_todos)  # type: ignore
    task.call(find_todos, 3)  # type: ignore
    task.call(find_todos, folder, depth=3)  # type: ignore
    task.call(send_mail, to, "x")  # type: ignore
    task.spawn(count, 3)  # type: ignore
    find_todos(folder)  # type: ignore
    return Report([])


assert_type(find_todos.with_options(durable="before_next").name, str)
find_todos.with_options(durable="sometimes")  # type: ignore
collect.with_options(task_id="t", priority=3, labels={"team": "a"}, command_id="c")
app.tool(read_only="yes")  # type: ignore
app.tool(unknown=True)  # type: ignore
app.tool(requires_approval="sometimes")  # type: ignore
unmarked.reconcile(find_mail)  # type: ignore
unmarked.reconcile(preview)  # type: ignore
unmarked_effect.reconcile(find_payment)  # type: ignore
send_mail.prepare(find_mail)  # type: ignore
app.task(find_mail)  # type: ignore

a_tool: Tool[[str], int] = unmarked
wider: Tool[[int], object] = unmarked_effect
other: Tool[[str], str] = unmarked  # type: ignore
a_kind: Kind[[str], int] = count
any_tools: list[AnyTool] = [find_todos, fetch, send_mail, post]
any_kinds: list[AnyKind] = [count, collect]

assert_type(go, Signal[Report])
assert_type(go.decode(b""), Report)
assert_type(app.signal("words", list[str]), Signal[list[str]])
assert_type(app.signal("either", int | None), Signal[Any])
go.encode("x")  # type: ignore


async def serve() -> None:
    """Serve until stopped."""
    running: Awaitable[None] = app.run()
    await running


async def submit(client: Client) -> None:
    """Submit with the code at hand, and without it."""
    handle = await client.submit(collect, "src", to="you")
    assert_type(await handle.result(), Report)
    by_name = await client.submit("collect-todos", {"folder": "src"}, output=Report, task_id="t")
    assert_type(await by_name.result(), Report)
    await client.submit(collect, 3)  # type: ignore
    await client.submit(collect, folder="src", depth=3)  # type: ignore
