"""``outlive check``: one line a tool, and an exit code for a pipeline."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from outlive.actors.console.cli import cli

SHOP = """
from outlive.actors import App, Operation, Outcome

app = App("shop")
quiet = App("quiet")

@app.tool(requires_approval=True)
def send_mail(op: Operation, to: str) -> str: ...

@send_mail.reconcile
def find_mail(op: Operation, to: str) -> Outcome[str]: ...

@app.tool
def charge_card(cents: int) -> None: ...

@app.tool(read_only=True)
def find_todos(path: str) -> list[str]: ...

@app.tool(idempotent=True, unique=lambda text: text)
def post(text: str) -> None: ...

@post.compensate
def unpost(text: str) -> None: ...

quiet.include(App("nothing"))
"""

UNDONE = "undone by unpost: WARNING lost answer -> a person decides"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    path = [*sys.path]
    Path("shop_checked.py").write_text(SHOP)
    yield
    sys.path[:] = path
    sys.modules.pop("shop_checked", None)


def test_each_tool_has_a_line() -> None:
    done = CliRunner().invoke(cli, ["check", "shop_checked:app"])
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "charge_card: WARNING lost answer -> a person decides",
        "find_todos: repeated freely",
        "post: sent again with the same key; the same action once in its tenant; " + UNDONE,
        "send_mail: your yes, then once; lost answer -> find_mail is asked",
    ]
    assert "@charge_card.reconcile" in done.stderr


def test_strict_fails_where_only_a_person_can_tell() -> None:
    assert CliRunner().invoke(cli, ["check", "shop_checked", "--strict"]).exit_code == 1
    quiet = CliRunner().invoke(cli, ["check", "shop_checked:quiet", "--strict"])
    assert (quiet.exit_code, quiet.stdout, quiet.stderr) == (0, "", "no tools\n")


def test_check_for_programs() -> None:
    done = CliRunner().invoke(cli, ["check", "shop_checked", "--json", "--strict"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["ok"] is False
    assert [(tool["tool"], tool["after_lost_answer"]) for tool in found["tools"]] == [
        ("charge_card", "person"), ("find_todos", "send_again"), ("post", "send_again"), ("send_mail", "ask"),
    ]  # fmt: skip


AGENTS = """
from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel
from outlive.actors import App
from outlive.actors.agents.existing import durable_tool
from outlive.actors.mcp import MCPServer

app, known = App("agents"), App("known")
crm = MCPServer("crm", command=["crm"], tools={"send": {"requires_approval": True, "settle": 3.0}})
files = MCPServer("files", command=["files"], trusted=True)
app.agent("reader", model="openai:gpt-5", tools=[crm, files])
known.add(MCPServer("one", command=["one"], include=["send"], tools={"send": {"idempotent": True}}))

clerk = Agent(TestModel(), name="clerk")

@clerk.tool_plain(metadata=durable_tool(read_only=True))
async def look(path: str) -> str: ...

@clerk.tool_plain(requires_approval=True)
async def pay(cents: int) -> str: ...

@clerk.tool_plain(metadata={"outlive": False})
def plain() -> str: ...

app.agent(clerk)
"""


def test_agents_that_exist_and_mcp_servers_have_lines_too() -> None:
    Path("shop_checked.py").write_text(AGENTS)
    done = CliRunner().invoke(cli, ["check", "shop_checked", "--strict"])
    assert done.exit_code == 1
    asked = "your yes, then once; lost answer -> a person decides"
    paid = "asked again when its answer is lost; the lost one may have been paid"
    assert done.stdout.splitlines() == [
        "clerk.look: repeated freely",
        f"clerk.pay: WARNING {asked}",
        f"clerk__model.request: {paid}",
        f"reader__model.request: {paid}",
        f"crm: MCP server, WARNING each tool: {asked}; as declared: send (requires_approval, settle)",
        "files: MCP server, trusted: each tool as its hints say",
    ]
    assert "durable_tool(reconcile=...) at pay of clerk" in done.stderr
    settled = CliRunner().invoke(cli, ["check", "shop_checked:known", "--strict"])
    assert (settled.exit_code, settled.stdout) == (
        0, "one: MCP server, not trusted; as declared: send (idempotent)\n",
    )  # fmt: skip
    found = json.loads(CliRunner().invoke(cli, ["check", "shop_checked:app", "--json"]).stdout)
    assert (found["ok"], [each["server"] for each in found["servers"]]) == (False, ["crm", "files"])
