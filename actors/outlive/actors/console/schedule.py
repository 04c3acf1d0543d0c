"""``chaos run``: faults by a schedule, from a file or at random."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from outlive.actors.chaos import freezing
from outlive.actors.chaos.control import Control, NotBroken
from outlive.actors.chaos.schedule import Entry, InvalidSchedule, Run, Told, at_random, read
from outlive.actors.console import codes, output
from outlive.actors.console.interrupt import run as interruptible
from outlive.actors.console.options import Given, client_options, pass_given
from outlive.infra import embedded
from outlive.infra.client import Client
from outlive.infra.settings import Settings
from outlive.protocol.task import Status


@click.command()
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--random", "randomly", is_flag=True, help="Make a schedule at random instead of reading one.")
@click.option("--seed", type=int, default=0, show_default=True, help="Same seed, same schedule and same choices.")
@click.option(
    "--seconds", type=click.FloatRange(0, min_open=True), default=60.0, show_default=True, help="Of --random."
)
@click.option("--every", type=click.FloatRange(0.1), default=4.0, show_default=True, help="Seconds between two faults.")
@client_options
@pass_given
def run(given: Given, file: Path | None, randomly: bool, seed: int, seconds: float, every: float) -> int:
    """Break workers by a schedule, and tell what was done when.

    FILE is TOML or JSON: a list "fault" of {at, fault, target, for, by, share}. All ends with the schedule, or with Ctrl-C.
    """
    if randomly == (file is not None):
        raise click.UsageError("give a FILE, or --random")
    try:
        entries = read(file) if file else [*at_random(seed, seconds, every)]
    except InvalidSchedule as error:
        raise click.ClickException(str(error)) from None
    return interruptible(lambda _: _play(given, entries, seed))


async def _play(given: Given, entries: Sequence[Entry], seed: int) -> int:
    settings, told = embedded.locate(given.settings()), list[Told]()

    def tell(what: Told) -> None:
        told.append(what)
        if given.as_json:
            output.emit(what)
        else:
            click.echo(f"{what.at:6.1f} s  {what.entry.fault}: {what.message}")

    async with Control(settings) as control, Client(settings) as client:

        async def actors() -> Sequence[tuple[str, str]]:
            running = await client.list(status=[Status.RUNNING], limit=50)
            return [(task.task_id, task.owner) for task in running.tasks if task.owner]

        try:
            if not await control.list():
                raise click.ClickException(
                    "no worker here was started with --chaos. Start some: outlive up APP --chaos"
                )
            await Run(control, actors, seed, tell).play(entries)
            await asyncio.sleep(
                max((entry.at + entry.seconds for entry in entries), default=0)
                - max((one.at for one in told), default=0)
            )
        finally:
            await asyncio.shield(_calm(control, settings))
    return codes.DONE if any(one.ok for one in told) or not told else codes.FAILED


async def _calm(control: Control, settings: Settings) -> None:
    freezing.thaw(settings)
    try:
        await control.calm()
    except NotBroken:
        return  # nobody is left to be calmed
