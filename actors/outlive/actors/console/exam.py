"""``chaos exam``: the eight faults, with four questions each, answered from evidence."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import click
from rich.text import Text

from outlive.actors.chaoskit import eight
from outlive.actors.chaoskit.evidence import Question
from outlive.actors.chaoskit.exam import Fault, Result
from outlive.actors.chaoskit.exam import exam as sit
from outlive.actors.console import codes, output
from outlive.actors.console.interrupt import run
from outlive.actors.console.options import Given, dsn_option, json_option, nats_option, pass_given
from outlive.actors.testing.server import Server, server

_ASKED = {
    Question.REPEATED: "REPEATED EFFECT",
    Question.CONSISTENT: "CONSISTENT",
    Question.REAL: "REAL RESULT SEEN",
    Question.TAKE_OVER: "TAKEN OVER",
}


@click.command()
@click.option(
    "--only", multiple=True, metavar="FAULT", type=click.Choice([fault.name for fault in eight.EIGHT]),
    help=f"Only this one; may be given again. {', '.join(fault.name for fault in eight.EIGHT)}.",
)  # fmt: skip
@click.option("--without-agents", is_flag=True, help="Leave the two faults out whose task is an agent.")
@json_option
@nats_option
@dsn_option
@pass_given
def exam(given: Given, only: Sequence[str], without_agents: bool) -> int:
    """Play eight faults and answer four questions about each, from evidence.

    Is a side effect repeated? Are all states consistent in the end? Does the user see the real result? Can a person
    take over? Servers of its own are started, with data that are removed afterwards, unless the URLs are set (then
    each fault has a database and a prefix of its own there). Ends with 1 if any answer is not as it should be.
    """
    faults = [
        fault
        for fault in eight.EIGHT
        if (not only or fault.name in only) and not (without_agents and fault.needs_agents)
    ]
    if not faults:
        raise click.UsageError("--without-agents leaves nothing of --only")
    return run(lambda _: _examine(given, faults))


async def _examine(given: Given, faults: Sequence[Fault]) -> int:
    began = time.monotonic()
    there = eight.agents_are_there()
    results = [eight.not_played(fault) for fault in faults if fault.needs_agents and not there]
    for result in results:
        _tell(given, result)
    playable = [fault for fault in faults if there or not fault.needs_agents]
    if playable:
        async with running_servers(given) as servers:
            results += await sit(playable, servers, lambda result: _tell(given, result))
    if not given.as_json:
        _show(sorted(results, key=lambda result: [fault.name for fault in faults].index(result.fault)), began)
    return codes.DONE if all(result.ok for result in results) else codes.FAILED


@asynccontextmanager
async def running_servers(given: Given) -> AsyncGenerator[Server]:
    """Give servers that are named by URLs, or start some that are thrown away."""
    settings = given.settings()
    if bool(settings.nats_url) != bool(settings.postgres_dsn):
        raise click.UsageError("set both OUTLIVE_NATS_URL and OUTLIVE_POSTGRES_DSN, or neither")
    if settings.nats_url:
        yield Server(settings=settings)
        return
    output.say("starting NATS and Postgres")
    async with server(backend="embedded") as own:
        yield own


def _tell(given: Given, result: Result) -> None:
    if given.as_json:
        output.emit(result)
    else:
        output.say(
            f"{result.fault}: {'as it should be' if result.ok else 'NOT as it should be'} ({result.seconds:g} s)"
        )


def _show(results: Sequence[Result], began: float) -> None:
    table = output.table("FAULT", *_ASKED.values())
    for result in results:
        table.add_row(result.title, *(_cell(result, question) for question in _ASKED))
    console = output.console()
    console.print(table, soft_wrap=False)
    for result in results:
        for line in _wrong(result):
            console.print(f"{result.fault}: {line}")
    good = sum(result.ok for result in results)
    words = f"{good} of {len(results)} faults as they should be, in {time.monotonic() - began:.0f} s"
    console.print(f"\n{words}. What each answer rests on: outlive chaos exam --json")


def _cell(result: Result, question: Question) -> Text:
    answer = result.answers.get(question)
    if answer is None:
        return Text("not played", style="red")
    word = "yes" if answer.yes else "no"
    return Text(word, style="green") if answer.ok else Text(f"{word}!", style="red")


def _wrong(result: Result) -> list[str]:
    wrong = [f"{question}: {answer.because}" for question, answer in result.answers.items() if not answer.ok]
    return [*([result.problem] if result.problem else []), *wrong]
