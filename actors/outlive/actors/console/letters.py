"""``dead-letters``: messages that could not be read, and what becomes of them. Settling needs the database."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from outlive.actors.console import output
from outlive.actors.console.options import Given, by_option, client_options, dsn_option, pass_given
from outlive.actors.console.session import ask
from outlive.infra import deadletters, embedded
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.settings import Settings

T = TypeVar("T")

_number = click.argument("number", type=click.IntRange(1))


@click.group("dead-letters", invoke_without_command=True)
@client_options
@click.pass_context
def dead_letters(ctx: click.Context) -> None:
    """See and settle messages that could not be read. Without a further word: list them."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_letters)


@dead_letters.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="Most letters to list.")
@click.option("--after", type=click.IntRange(0), default=0, help="Only those with a greater number.")
@client_options
@pass_given
def list_letters(given: Given, limit: int = 50, after: int = 0) -> None:
    """List those that are not settled, oldest first."""
    page = ask(given, lambda client: client.dead_letters(limit=limit, after=after))
    if given.as_json:
        output.emit(page)
        return
    if not page.dead_letters:
        output.say("no dead letters")
        return
    table = output.table(">NUMBER", "CAME", "SUBJECT", ">BYTES", "REASON")
    for one in page.dead_letters:
        table.add_row(str(one.id), output.age(one.at), one.subject, str(one.size), one.reason)
    output.console().print(table, soft_wrap=False)
    if page.after:
        output.say(f"more: --after {page.after}")


@dead_letters.command()
@_number
@client_options
@dsn_option
@pass_given
def show(given: Given, number: int) -> None:
    """Show one as it came: subject, headers, body."""
    letter = _settle(given, lambda pool, settings: deadletters.read(pool, settings.tenant, number))
    body = letter.body.decode(errors="replace")
    if given.as_json:
        output.emit({"number": number, "subject": letter.subject, "headers": letter.headers, "body": body})
        return
    rows = {"subject": letter.subject, "sequence": letter.seq, **letter.headers, "body": body}
    output.console().print(output.fields(rows), soft_wrap=False)


@dead_letters.command()
@_number
@by_option
@client_options
@dsn_option
@pass_given
def requeue(given: Given, number: int, by: str) -> None:
    """Send one again, as it came.

    Useful after an upgrade, or when the store refused it for a while.
    """

    async def send(pool: Pool, settings: Settings) -> int:
        async with Bus.of(settings, name="outlive dead-letters") as bus:
            return await deadletters.requeue(pool, bus, settings.tenant, number, by=by)

    seq = _settle(given, send)
    _done(given, f"dead letter {number} was sent again as message {seq}", {"number": number, "seq": seq})


@dead_letters.command()
@_number
@click.option("--reason", "-r", metavar="TEXT", default="", help="Kept with it, for people.")
@by_option
@client_options
@dsn_option
@pass_given
def drop(given: Given, number: int, reason: str, by: str) -> None:
    """Settle one without doing anything about it."""
    _settle(given, lambda pool, settings: deadletters.drop(pool, settings.tenant, number, by=by, reason=reason))
    _done(given, f"dead letter {number} was dropped", {"number": number, "dropped": True})


def _settle(given: Given, work: Callable[[Pool, Settings], Awaitable[T]]) -> T:
    settings = embedded.locate(given.settings())

    async def connected() -> T:
        async with Pool(str(settings.postgres_dsn), application_name="outlive dead-letters", size=1) as pool:
            return await work(pool, settings)

    return asyncio.run(connected())


def _done(given: Given, text: str, record: dict[str, object]) -> None:
    if given.as_json:
        output.emit(record)
    else:
        click.echo(text)
