"""``demo``: the audit that survives two crashes and a lost answer, and asks before it sends a mail."""

import click

from outlive.actors.audit.demo import Options
from outlive.actors.audit.demo import demo as play
from outlive.actors.console.interrupt import run
from outlive.actors.console.options import Given, json_option, pass_given


@click.command()
@click.option("--yes", "-y", is_flag=True, help="Answer the question with yes (for scripts).")
@click.option("--keep", is_flag=True, help="Leave the servers' data where they were, to look at with other commands.")
@click.option("--naive", is_flag=True, help="Without Outlive: what a plain retry loop makes of the same lost answer.")
@click.option(
    "--to", metavar="ADDRESS", help="Who gets the report: by the mail server of OUTLIVE_SMTP_URL, else into a folder."
)
@json_option
@pass_given
def demo(given: Given, yes: bool, keep: bool, naive: bool, to: str | None) -> int:
    """See a real audit survive two crashes and a lost answer.

    Before its report goes out by mail (into a folder, or with --to really) you are asked. Where nobody can be asked, and
    without --yes, it ends with code 3.
    """
    return run(lambda _: play(Options(yes=yes, keep=keep, as_json=given.as_json, plain=naive, to=to)))
