"""``bench``: how fast durable steps are here, beside what this machine's Postgres commits at most."""

import shutil
import tempfile
from pathlib import Path

import anyio
import click
import msgspec
from anyio import to_thread

from outlive.actors.bench import Figures, bench, median
from outlive.actors.console import codes, output, servers
from outlive.actors.console.interrupt import Interrupt, run
from outlive.actors.console.options import Given, dsn_option, json_option, nats_option, pass_given
from outlive.infra.settings import Settings


@click.command("bench")
@click.option(
    "--repeats", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Runs: the median is shown."
)
@json_option
@nats_option
@dsn_option
@pass_given
def measure(given: Given, repeats: int) -> int:
    """Measure durable steps per second on this machine.

    Servers of its own are started, with data that are removed afterwards, unless the URLs are set.
    """

    async def measuring(_: Interrupt) -> int:
        folder = Path(await to_thread.run_sync(lambda: tempfile.mkdtemp(prefix="outlive-bench-")))
        try:
            settings = msgspec.structs.replace(given.settings(), state_dir=folder)
            async with servers.running(settings, output.say) as found:
                _show(given, found, median(await bench(found, output.say, repeats)))
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
        return codes.DONE

    return run(measuring)


def _show(given: Given, found: Settings, figures: Figures) -> None:
    if given.as_json:
        output.emit(figures)
        return
    table = output.table("", ">PER SECOND", ">OF THE LIMIT")
    table.add_row(
        "steps, each durable before the next", f"{figures.steps_per_s:,.0f}", f"{figures.before_next_ratio:.2f}"
    )
    table.add_row("steps with an effect", f"{figures.effect_steps_per_s:,.0f}", f"{figures.effect_ratio:.2f}")
    table.add_row("steps as they come", f"{figures.default_steps_per_s:,.0f}", f"{figures.default_ratio:.2f}")
    table.add_row("limit: single-row commits of a pool", f"{figures.commits_per_s:,.0f}", "1.00", style="dim")
    console = output.console()
    console.print(table, soft_wrap=False)
    console.print(
        f"\na step alone: {figures.step_p50_ms:.2f} ms (median), {figures.step_p99_ms:.2f} ms (99 of 100 are faster)\n"
        f"submit to first step: {figures.submit_to_first_step_ms:.1f} ms\n"
        f"{figures.tasks:.0f} tasks of {figures.steps:.0f} steps, one worker, Postgres at "
        f"{str(found.postgres_dsn).rpartition('@')[2]}"
    )
