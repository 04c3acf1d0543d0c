"""``check``: what happens to each tool of an app when an answer is lost. Needs no servers."""

import click
from rich.text import Text

from outlive.actors.console import apps, output
from outlive.actors.console.options import Given, json_option, pass_given
from outlive.protocol.paths import after_lost_answer, describe_path
from outlive.protocol.tools import AnyTool


@click.command()
@click.argument("app", metavar="APP")
@click.option("--strict", is_flag=True, help="Exit with 1 when a lost answer can only be settled by a person.")
@json_option
@pass_given
def check(given: Given, app: str, strict: bool) -> int:
    """Say of each tool what happens when its answer is lost.

    APP is module:name (module alone means module:app), importable from the current folder.
    """
    loaded = apps.load(app)
    tools = sorted(loaded.tools.values(), key=lambda tool: tool.name)
    servers = [loaded.toolsets[name] for name in sorted(loaded.toolsets)]
    unsettled = [tool for tool in tools if after_lost_answer(tool) == "person"]
    strangers = any(server.unsettled for server in servers)
    if given.as_json:
        said = [{"server": server.name, "line": server.describe()} for server in servers]
        output.emit({"ok": not (unsettled or strangers), "tools": [_record(tool) for tool in tools], "servers": said})
    else:
        for line in (*map(describe_path, tools), *(server.describe() for server in servers)):
            output.console().print(_line(line), soft_wrap=False)
        if unsettled:
            names = ", ".join(_reconcile(tool.name) for tool in unsettled)
            output.say(
                f"\nSay how to find out whether it happened: {names}; or declare idempotent=True where it is true"
            )
        if not tools and not servers:
            output.say("no tools")
    return 1 if strict and (unsettled or strangers) else 0


def _record(tool: AnyTool) -> dict[str, object]:
    return {"tool": tool.name, "after_lost_answer": after_lost_answer(tool), "line": describe_path(tool)}


def _reconcile(name: str) -> str:
    agent, _, tool = name.rpartition(".")
    return f"durable_tool(reconcile=...) at {tool} of {agent}" if agent else f"@{name}.reconcile"


def _line(said: str) -> Text:
    line = Text(said)
    line.highlight_words(["WARNING"], "bold yellow")
    return line
