"""An agent of twelve decisions that passes every await of the flow; requests and effects are counted in the fake service."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from pydantic_ai.messages import ModelMessage, ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from outlive.actors import App, Operation, Outcome, Task
from tests.chaos.remote import send, service

app = App("agent")

BODY: Final = "the-body-of-a-file"
"""Stands in every result of a file: it may be in a request, and not in the record of one."""

THOUGHT: Final = "the-model-thinks-of-a-canary"

Choices = Sequence[tuple[str, dict[str, Any]]]

ITEMS: Final = [{"id": "look", "text": "look around"}, {"id": "act", "text": "act"}]

TURNS: Final[Sequence[tuple[str, Choices]]] = (
    ("# Plan, version", [("make_plan", {"items": ITEMS})]),
    ("[list]", [("list_files", {"plan_item": "look"})]),
    ("[b.txt]", [("read_file", {"path": path, "plan_item": "look"}) for path in ("a.txt", "b.txt")]),
    ("[ticket]", [("open_ticket", {"title": "broken", "plan_item": "act"})]),
    ("[post]", [("post", {"text": "one", "plan_item": "act"})]),
    ("# Plan, version 2", [("make_plan", {"items": [*ITEMS, {"id": "tell", "text": "tell"}], "why": "more to do"})]),
    ("[June]", [("ask_person", {"question": "In which month?"})]),
    ("[mail]", [("send_mail", {"to": "you@example.com", "plan_item": "tell"})]),
    ("[helped]", [("helper", {"text": "two", "plan_item": "tell"})]),
    ("[c.txt]", [("read_file", {"path": "c.txt", "plan_item": "look"})]),
    ("[d.txt]", [("read_file", {"path": "d.txt", "plan_item": "look"}), ("list_files", {"plan_item": "look"})]),
    ("", [("finish", {"output": "done in June"})]),
)
"""What is chosen while a mark is not yet in the request: the model keeps nothing, a worker's death changes nothing for it."""


async def think(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Choose by what the request shows; the service writes the request down."""
    text = str(messages[-1].parts[0].content)  # type: ignore[union-attr]
    await asyncio.to_thread(service().effect, "request", text, keys=False)
    choices = next(choices for mark, choices in TURNS if not mark or mark not in text)
    return ModelResponse(parts=[ThinkingPart(THOUGHT), *(ToolCallPart(name, dict(given)) for name, given in choices)])


@app.tool(read_only=True)
def list_files() -> str:
    """List the files."""
    return "[list] a.txt b.txt"


@app.tool(read_only=True)
def read_file(path: str) -> str:
    """Read a file."""
    return f"[{path}] {BODY}"


@app.tool(timeout=3, settle=0.2)
def open_ticket(op: Operation, title: str) -> str:
    """Open a ticket. The remote can be asked for it."""
    send("open_ticket", op.key)
    return "[ticket]"


@open_ticket.reconcile
def find_ticket(op: Operation, title: str) -> Outcome[str]:
    """Ask for the ticket of this operation."""
    return Outcome.happened("[ticket]") if service().effects(key=op.key) else Outcome.did_not_happen()


@app.tool(idempotent=True)
def post(op: Operation, text: str) -> str:
    """Post a text. The remote honours keys."""
    service().effect("post", text, key=op.key)
    return "[post]"


@app.tool(timeout=3, settle=0.2, requires_approval=True)
def send_mail(op: Operation, to: str) -> str:
    """Send a mail."""
    send("send_mail", op.key)
    return "[mail]"


@send_mail.reconcile
def find_mail(op: Operation, to: str) -> Outcome[str]:
    """Ask for the mail of this operation."""
    return Outcome.happened("[mail]") if service().effects(key=op.key) else Outcome.did_not_happen()


@app.task
async def helper(task: Task, text: str) -> str:
    """Help with a part of the work."""
    await task.call(post, text)
    await task.sleep(0.05)
    return "[helped]"


worker = app.agent(
    "worker",
    model=FunctionModel(think, model_name="scripted"),
    instructions="Do what is asked.",
    tools=[list_files, read_file, open_ticket, post, send_mail, helper],
)
