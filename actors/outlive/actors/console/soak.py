"""``chaos soak``: load under random faults, judged afterwards."""

import click
import msgspec

from outlive.actors.chaos.soak.run import Plan, Soaked
from outlive.actors.chaos.soak.run import soak as run_soak
from outlive.actors.console import codes, output
from outlive.actors.console.exam import running_servers
from outlive.actors.console.interrupt import run
from outlive.actors.console.options import Given, dsn_option, json_option, nats_option, pass_given

_SHOWN = 50


@click.command()
@click.option("--minutes", type=click.FloatRange(0.05), default=5.0, show_default=True, help="Of load and faults.")
@click.option("--tasks", type=click.IntRange(1), metavar="N", help="To submit.  [default: 10 a second]")
@click.option("--workers", type=click.IntRange(1), default=2, show_default=True, help="Processes of their own.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the faults and of the load.")
@click.option("--every", type=click.FloatRange(0.5), default=4.0, show_default=True, help="Seconds between two faults.")
@json_option
@nats_option
@dsn_option
@pass_given
def soak(given: Given, minutes: float, tasks: int | None, workers: int, seed: int, every: float) -> int:
    """Run load under random faults for a time, then check that every promise held.

    Tasks with steps, effects, approvals, signals, children, timers and cancels run in workers of its own, which are killed,
    frozen and cut off meanwhile. Then I1 to I8 are checked from the tables, the streams and the service outside. Servers of
    its own are started, unless the URLs are set (then it has a database and a prefix of its own there). Ends with 1 if
    anything was violated.
    """
    seconds = minutes * 60
    plan = Plan(seconds=seconds, tasks=tasks or int(seconds * 10), workers=workers, seed=seed, every=every)
    return run(lambda _: _soak(given, plan))


async def _soak(given: Given, plan: Plan) -> int:
    async with running_servers(given) as servers:
        soaked = await run_soak(servers, plan, output.say)
    if given.as_json:
        output.emit(soaked)
    else:
        _show(soaked)
    return codes.FAILED if soaked.violations else codes.DONE


def _show(soaked: Soaked) -> None:
    figures = soaked.figures
    for violation in soaked.violations[:_SHOWN]:
        click.echo(str(violation))
    if len(soaked.violations) > _SHOWN:
        click.echo(f"... and {len(soaked.violations) - _SHOWN} more (--json lists all)")
    for name, value in msgspec.structs.asdict(figures).items():
        many = isinstance(value, dict)
        click.echo(
            f"{name.replace('_', ' '):>16}  {', '.join(f'{k}: {v}' for k, v in value.items()) if many else value}"
        )
    click.echo(
        f"{output.count(len(soaked.violations), 'violation')} in {figures.seconds:.0f} s, seed {soaked.plan.seed}"
    )
