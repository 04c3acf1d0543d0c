"""``demo``: the audit that survives the death of its worker."""

import click

from outlive.actors.audit.demo import demo as play
from outlive.actors.console.interrupt import run
from outlive.actors.console.options import Given, json_option, pass_given


@click.command()
@click.option("--yes", "-y", is_flag=True, expose_value=False, help="Answer every question with yes (for scripts).")
@click.option("--keep", is_flag=True, help="Leave the servers' data where they were, to look at with other commands.")
@json_option
@pass_given
def demo(given: Given, keep: bool) -> int:
    """See a real audit survive the death of its worker."""
    return run(lambda _: play(keep=keep, as_json=given.as_json))
