"""``chaos freeze``, ``cut``, ``slow`` and the like: faults that last for a time, and their early end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import click

from outlive.actors.chaos import freezing
from outlive.actors.chaos.control import Control, NotBroken, refused
from outlive.actors.chaos.orders import LONGEST, WORDS, Fault, FaultKind, Report, check_measure
from outlive.actors.console import codes, output
from outlive.actors.console.held import find_owner, find_worker
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.infra import embedded
from outlive.infra.client import Client

F = TypeVar("F", bound=Callable[..., Any])

_LASTS: Final = click.option(
    "--for", "seconds", type=click.FloatRange(0, LONGEST, min_open=True), default=5.0, show_default=True, metavar="SECONDS",
    help="It ends by itself after so long.",
)  # fmt: skip
_WORKER: Final = click.option(
    "--worker", "which", metavar="INCARNATION|PID|TASK", help="Only in this worker.  [default: in all]"
)
_SHARE: Final = click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=1.0,
    show_default=True,
    help="How many of them are hit.",
)


def _fault(function: Callable[..., int]) -> Callable[..., int]:
    """Add what every fault takes."""
    return _LASTS(_WORKER(client_options(pass_given(function))))


def _by(default: float, text: str) -> Callable[[F], F]:
    return click.option("--by", type=float, default=default, show_default=True, metavar="SECONDS", help=text)


@click.group()
def freeze() -> None:
    """Freeze a worker (SIGSTOP), or the actor of a task."""


@freeze.command("worker")
@click.argument("which", required=False, metavar="[TASK|INCARNATION|PID]")
@_LASTS
@client_options
@pass_given
def freeze_worker(given: Given, which: str | None, seconds: float) -> int:
    """Stop a worker's process: the one that holds a task, the one named, or else the busiest."""

    async def find(client: Client) -> Fault:
        return Fault(fault="freeze-worker", incarnation=await find_worker(client, which), seconds=seconds)

    return _begin(given, find)


@freeze.command("actor")
@click.argument("task_id", metavar="TASK")
@_LASTS
@client_options
@pass_given
def freeze_actor(given: Given, task_id: str, seconds: float) -> int:
    """Let the actor of a task stand still right before its next effect, whose intent is recorded by then."""

    async def find(client: Client) -> Fault:
        owner = await find_owner(client, task_id)
        return Fault(fault="freeze-actor", incarnation=owner, task_id=task_id, seconds=seconds)

    return _begin(given, find)


@click.command()
@click.argument("pid", required=False, type=int)
@client_options
@pass_given
def unfreeze(given: Given, pid: int | None) -> None:
    """Let frozen workers of this machine go on before their time: one, or all."""
    awake = freezing.thaw(embedded.locate(given.settings()), pid)
    if given.as_json:
        output.emit({"unfrozen": awake})
    else:
        click.echo(f"{output.count(len(awake), 'worker')} went on{''.join(f' {each}' for each in awake)}")


@click.command()
@_SHARE
@_fault
def drop(given: Given, **options: Any) -> int:
    """Lose commands on their way from the stream to a worker."""
    return _everywhere(given, "drop-commands", **options)


@click.command()
@_SHARE
@_fault
def duplicate(given: Given, **options: Any) -> int:
    """Deliver commands twice to a worker."""
    return _everywhere(given, "duplicate-commands", **options)


@click.command()
@_by(1.0, "So much later, behind those that follow.")
@_SHARE
@_fault
def delay(given: Given, **options: Any) -> int:
    """Deliver commands late to a worker."""
    return _everywhere(given, "delay-commands", **options)


@click.command("lose-answers")
@_fault
def lose_answers(given: Given, **options: Any) -> int:
    """Lose the answers of tools: the effect has happened, the worker sees a timeout."""
    return _everywhere(given, "lose-answers", **options)


@click.command()
@_by(-3600.0, "Off by so much; negative: behind.")
@_fault
def skew(given: Given, **options: Any) -> int:
    """Set a worker's wall clock wrong."""
    return _everywhere(given, "skew-clock", **options)


@click.command()
@click.argument("where", type=click.Choice(["nats", "postgres"]))
@_fault
def cut(given: Given, where: str, **options: Any) -> int:
    """Cut the link to a server: connections are reset, new ones too."""
    return _everywhere(given, "cut-nats" if where == "nats" else "cut-postgres", **options)


@click.command()
@click.argument("where", type=click.Choice(["nats", "postgres"]))
@_by(0.2, "Each piece is held so long; longer than --for: nothing passes.")
@_fault
def slow(given: Given, where: str, **options: Any) -> int:
    """Slow the link to a server."""
    return _everywhere(given, "slow-nats" if where == "nats" else "slow-postgres", **options)


@click.command()
@client_options
@pass_given
def calm(given: Given) -> None:
    """End all faults now, in all workers; those that are frozen on this machine go on."""
    awake = freezing.thaw(embedded.locate(given.settings()))
    _tell(given, [*asyncio.run(_with(given, lambda control: control.calm()))])
    if awake and not given.as_json:
        click.echo(f"{output.count(len(awake), 'frozen worker')} went on")


@click.command("list")
@client_options
@pass_given
def list_faults(given: Given) -> None:
    """List the workers that can be broken, and what is on in each."""
    reports, ice = (
        asyncio.run(_with(given, lambda control: control.list())),
        freezing.frozen(embedded.locate(given.settings())),
    )
    if given.as_json:
        output.emit({"workers": reports, "frozen": ice})
        return
    for report in reports:
        on = [f"{WORDS[one.fault.fault]} ({one.left:g} s left)" for one in report.active]
        click.echo(f"worker {report.pid} on {report.host}: {'; '.join(on) or 'whole'}")
    for pid in ice:
        click.echo(f"worker {pid} on this machine: frozen. Let it go on with: outlive chaos unfreeze {pid}")
    if not reports and not ice:
        click.echo("no worker here that was started with --chaos answers. Start some: outlive up APP --chaos")


COMMANDS: Final = (freeze, unfreeze, drop, duplicate, delay, lose_answers, skew, cut, slow, calm, list_faults)


def _everywhere(given: Given, kind: FaultKind, *, which: str | None, by: float | None = None, **fields: Any) -> int:
    try:
        check_measure(kind, by)
    except ValueError as error:
        raise click.UsageError(str(error)) from None

    async def find(client: Client) -> Fault:
        worker = await find_worker(client, which) if which else None
        return Fault(fault=kind, incarnation=worker, by=by, **fields)

    return _begin(given, find)


def _begin(given: Given, find: Callable[[Client], Awaitable[Fault]]) -> int:
    async def begin(control: Control) -> Sequence[Report]:
        async with Client(embedded.locate(given.settings())) as client:
            return await control.begin(await find(client))

    reports = asyncio.run(_with(given, begin))
    if (why := refused(reports)) is not None:
        raise click.ClickException(why)
    _tell(given, reports)
    return codes.DONE


async def _with(given: Given, order: Callable[[Control], Awaitable[Sequence[Report]]]) -> Sequence[Report]:
    try:
        async with Control(given.settings()) as control:
            return await order(control)
    except NotBroken as error:
        raise click.ClickException(str(error)) from None


def _tell(given: Given, reports: Sequence[Report]) -> None:
    for report in reports:
        if given.as_json:
            output.emit(report)
        else:
            click.echo(report.message)
