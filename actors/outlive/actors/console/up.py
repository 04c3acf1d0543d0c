"""``up``: servers and workers in one command, and nothing left of them at its end."""

from pathlib import Path
from typing import Any

import anyio
import click

from outlive.actors.console import apps, codes, output, servers, sources
from outlive.actors.console.fleet import Fleet
from outlive.actors.console.interrupt import Interrupt, run
from outlive.actors.console.options import Given, client_options, dsn_option, pass_given
from outlive.infra.settings import Settings


@click.command()
@click.argument("app", default=apps.BUILT_IN)
@click.option(
    "--workers", "-w", "count", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="How many."
)
@click.option("--reload", "reloading", is_flag=True, help="Start workers anew when the app's source files change.")
@click.option("--chaos", is_flag=True, help="Let 'outlive chaos' kill workers and actors.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least level of log lines.",
)
@client_options
@dsn_option
@pass_given
def up(given: Given, app: str, count: int, reloading: bool, chaos: bool, log_level: str) -> int:
    """Start everything for an app: servers and workers.

    APP is module:name; without it the built-in kinds are served. Servers are started unless their URLs are set. Ctrl-C drains the workers and ends the servers; a second one does
    not wait for steps in flight.
    """
    source = apps.find(app)
    options = ["--log-level", log_level, *(["--chaos"] if chaos else []), *(["--log-json"] if given.as_json else [])]

    async def serving(asked: Interrupt) -> int:
        async with servers.running(given.settings(), output.say) as found:
            if not given.as_json:
                _tell(found)
            fleet = Fleet(
                app, count, servers.variables(found), grace=found.grace, hurry=asked.hurry, say=output.say,
                options=options, patient=reloading,
            )  # fmt: skip
            async with anyio.create_task_group() as group:
                group.start_soon(fleet.run)
                if reloading:
                    group.start_soon(sources.watch, source, _renewing(fleet))
                await fleet.ready.wait()
                _tell_ready(given, found, app, fleet)
                await anyio.sleep_forever()
        return codes.DONE

    return run(serving, interrupted=codes.DONE)


def _renewing(fleet: Fleet) -> Any:
    def changed(path: Path) -> None:
        output.say(f"{path.name} changed: workers start anew")
        fleet.renew()

    return changed


def _tell(found: Settings) -> None:
    click.echo(f"NATS      {found.nats_url}\nPostgres  {found.postgres_dsn}")


def _tell_ready(given: Given, found: Settings, app: str, fleet: Fleet) -> None:
    if given.as_json:
        output.emit(
            {"nats_url": found.nats_url, "postgres_dsn": found.postgres_dsn, "state_dir": str(found.state_dir),
             "app": app, "workers": fleet.pids}
        )  # fmt: skip
        return
    output.say(f"{output.count(len(fleet.pids), 'worker')} for {app}; Ctrl-C stops everything")
