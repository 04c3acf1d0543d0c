"""``health``, ``doctor``, ``migrate``: the state of an installation."""

import asyncio
from typing import Final

import click
import msgspec
from rich.text import Text

from outlive.actors.console import codes, output
from outlive.actors.console.options import Given, client_options, dsn_option, json_option, pass_given
from outlive.actors.console.session import ask
from outlive.infra import embedded
from outlive.infra.doctor import Finding, diagnose
from outlive.infra.migrate import migrate as bring_up_to_date
from outlive.protocol.api import HealthReport, WorkerRecord

_LAGS: Final = {
    "due_for": "a task has been due for",
    "mail_for": "a command has waited for",
    "unpublished_for": "events have waited to be published for",
}


@click.command()
@client_options
@pass_given
def health(given: Given) -> None:
    """Show living workers and what lags behind."""
    report = ask(given, lambda client: client.health())
    if given.as_json:
        output.emit(report)
        return
    table = output.table("WORKER", "HOST", ">PID", ">BUSY", "SINCE", "KINDS")
    for one in report.workers:
        table.add_row(
            one.incarnation, one.host, str(one.pid), f"{one.busy}/{one.slots}", output.age(one.started_at), _kinds(one)
        )
    output.console().print(table, soft_wrap=False)
    output.console().print(f"\n{_lags(report)}", soft_wrap=False)


def _kinds(worker: WorkerRecord) -> str:
    return ("draining: " if worker.draining else "") + " ".join(worker.kinds)


def _lags(report: HealthReport) -> str:
    late = [
        f"{text} {seconds:.1f} s"
        for name, text in _LAGS.items()
        if (seconds := getattr(report, name)) is not None and seconds >= 1
    ]
    if report.commands_behind is None:
        late.append("the command stream does not answer")
    elif report.commands_behind:
        late.append(f"{report.commands_behind} commands are not taken in yet")
    if report.ingester is None:
        late.append("nobody takes commands in")
    return "\n".join(late) or "nothing lags behind"


@click.command()
@client_options
@dsn_option
@pass_given
def doctor(given: Given) -> int:
    """Check servers, schema, streams and workers; say how to mend each."""
    findings = asyncio.run(diagnose(embedded.locate(given.settings())))
    bad = [one for one in findings if not one.ok]
    if given.as_json:
        output.emit({"ok": not bad, "findings": findings})
        return codes.FAILED if bad else codes.DONE
    width = max(len(one.name) for one in findings)
    for one in findings:
        output.console().print(_line(one, width), soft_wrap=False)
    output.say(f"\n{len(bad)} of {len(findings)} need attention" if bad else f"\nall {len(findings)} checks are fine")
    return codes.FAILED if bad else codes.DONE


def _line(finding: Finding, width: int) -> Text:
    mark = ("ok  ", "green") if finding.ok else ("bad ", "bold red")
    line = Text.assemble(mark, finding.name.ljust(width + 2), finding.message)
    if finding.fix:
        line.append(f"\n{'':{width + 6}}{finding.fix}", "yellow")
    return line


@click.command()
@dsn_option
@click.option("--state-dir", expose_value=False, hidden=True)
@json_option
@pass_given
def migrate(given: Given) -> None:
    """Bring the database to this version's schema. Safe to repeat, and from many processes at once."""
    settings = given.settings()
    if settings.postgres_dsn is None:
        settings = embedded.locate(msgspec.structs.replace(settings, nats_url=None))
    applied = asyncio.run(bring_up_to_date(str(settings.postgres_dsn)))
    if given.as_json:
        output.emit({"applied": applied})
    else:
        click.echo("\n".join(f"applied {name}" for name in applied) or "up to date")
