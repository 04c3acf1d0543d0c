"""The command ``outlive``: which commands there are, and how an end becomes an exit code.

Exit codes: 0 done, 1 failed or refused, 2 usage, 3 a person must act, 130 detached or interrupted.
"""

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import click

from outlive.actors.console import codes
from outlive.actors.console.options import Given, client_options, dsn_option

_PACKAGE: Final = "outlive.actors.console"


class Entry(NamedTuple):
    """A command: where its code is (``module:name`` within this package) and one line on what it does."""

    target: str
    help: str


SECTIONS: Final[Mapping[str, Mapping[str, Entry]]] = MappingProxyType(
    {
        "Run": {
            "demo": Entry("demo:demo", "See a real audit survive two crashes and a lost answer."),
            "example": Entry("example:example", "Let an agent do a real job."),
            "up": Entry("up:up", "Start everything for an app: servers and workers."),
            "run": Entry("run:run", "Run one task to its end, with all it needs."),
            "worker": Entry("worker:worker", "Run one worker for an app."),
            "check": Entry("check:check", "Say of each tool what happens when its answer is lost."),
            "replay": Entry("replay:replay", "Run exported tasks through today's code, before it is deployed."),
        },
        "Tasks": {
            "submit": Entry("submit:submit", "Submit a task."),
            "watch": Entry("watch:watch", "Follow tasks until they end."),
            "list": Entry("tasks:list_tasks", "List tasks, newest first."),
            "show": Entry("tasks:show", "Show all that is known of a task."),
            "why": Entry("tasks:why", "Say why a task is where it is, and what happens next."),
            "receipt": Entry("receipt:receipt", "Show what a task did to the world."),
            "export": Entry("export:export", "Write all that is stored of a task."),
            "waiting": Entry("tasks:waiting", "List the tasks that wait for a person, with the command to type."),
        },
        "Steer": {
            "pause": Entry("steer:pause", "Stop a task before its next step."),
            "resume": Entry("steer:resume", "Take a pause back."),
            "cancel": Entry("steer:cancel", "Let a task start nothing more."),
            "signal": Entry("steer:signal", "Hand a value to a task that waits for it, now or later."),
            "answer": Entry("answer:answer", "Answer a question that a task asks."),
            "approve": Entry("answer:approve", "Say yes to an operation that waits for it."),
            "reject": Entry("answer:reject", "Say no to an operation that waits for a yes."),
            "resolve": Entry("answer:resolve", "Say what became of an effect whose answer was lost."),
            "retry": Entry("answer:retry", "Let a failed task go on from its checkpoint."),
            "edit-plan": Entry("edit_plan:edit_plan", "Give an agent another plan."),
            "skip": Entry("answer:skip", "Give a step that cannot go on its result."),
        },
        "Operate": {
            "health": Entry("operate:health", "Show living workers and what lags behind."),
            "stats": Entry("stats:stats", "Show how each tool fared."),
            "doctor": Entry("operate:doctor", "Check servers, schema, streams and workers; say how to mend each."),
            "migrate": Entry("operate:migrate", "Bring the database to this version's schema."),
            "dead-letters": Entry("letters:dead_letters", "See and settle messages that could not be read."),
            "chaos": Entry("chaos:chaos", "Break things, to see what happens: kill, freeze, cut, explore, soak."),
            "bench": Entry("bench:measure", "Measure durable steps per second on this machine."),
        },
    }
)
"""What ``outlive --help`` shows, in this order."""

_ENTRIES: Final = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called, and whose commands return their exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        """Return the names in the order of the help."""
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        """Import a command."""
        if (entry := _ENTRIES.get(cmd_name)) is None:
            return None
        module, _, name = entry.target.partition(":")
        command: click.Command = getattr(importlib.import_module(f"{_PACKAGE}.{module}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which one was meant."""
        if args and args[0] not in _ENTRIES and not args[0].startswith("-"):
            near = get_close_matches(args[0], _ENTRIES, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        """Write the commands by theme, without importing any."""
        width = max(map(len, _ENTRIES))
        for title, entries in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), entry.help) for name, entry in entries.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command, and end with its code; a known error is one line."""
        given = ctx.ensure_object(Given)  # here, so that all commands below share it
        try:
            code = super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            failures = importlib.import_module(f"{_PACKAGE}.failures")  # only now: it knows the errors of all layers
            known: click.ClickException | None = failures.known(error, as_json=given.as_json)
            if known is None:
                raise
            raise known from error
        ctx.exit(code or codes.DONE)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@client_options
@dsn_option
@click.version_option(package_name="outlive", message="outlive %(version)s")
def cli() -> None:
    """Long tasks that outlive their process.

    Servers are taken from OUTLIVE_NATS_URL and OUTLIVE_POSTGRES_DSN, else from the live pair of the state folder.
    """
