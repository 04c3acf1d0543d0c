"""``answer``, ``approve``, ``reject``, ``resolve``, ``retry``, ``skip``: what a person says to a task that cannot go on alone.

An operation is named by step and number as in its key, ``4:1`` or ``4`` for short, and may be left out where the task
waits for exactly one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, get_args

import click

from outlive.actors.console import arguments
from outlive.actors.console.options import Given, by_option, client_options, pass_given
from outlive.actors.console.steer import reason_option, send, task_argument
from outlive.infra.client import Client
from outlive.protocol import keys
from outlive.protocol.answers import Answer
from outlive.protocol.commands import Verdict
from outlive.protocol.task import Reason, ReasonCode, Status, TaskRecord

F = TypeVar("F", bound=Callable[..., Any])

_WANTED: Final = {
    ReasonCode.QUESTION: "an answer",
    ReasonCode.APPROVAL: "an approval",
    ReasonCode.OUTCOME_UNKNOWN: "a word on what happened",
}
_operation: Final = click.argument("operation", metavar="[OP]", required=False)


@click.command()
@task_argument
@_operation
@reason_option
@by_option
@client_options
@pass_given
def approve(given: Given, task_id: str, operation: str | None, reason: str | None, by: str) -> None:
    """Say yes to an operation that waits for it.

    The yes is for exactly the arguments that are shown by 'outlive waiting', and is used once.
    """

    async def answer(client: Client) -> Answer:
        named, digest = await _asked(client, task_id, operation, ReasonCode.APPROVAL)
        return await client.approve(task_id, named, digest=digest, reason=reason)

    send(given, by, answer)


@click.command()
@task_argument
@_operation
@reason_option
@by_option
@client_options
@pass_given
def reject(given: Given, task_id: str, operation: str | None, reason: str | None, by: str) -> None:
    """Say no to an operation that waits for a yes. Its step fails with the reason; nothing is sent."""

    async def answer(client: Client) -> Answer:
        named, digest = await _asked(client, task_id, operation, ReasonCode.APPROVAL)
        return await client.reject(task_id, named, digest=digest, reason=reason)

    send(given, by, answer)


@click.command()
@task_argument
@click.argument("words", metavar="[STEP] TEXT", nargs=-1, required=True)
@by_option
@client_options
@pass_given
def answer(given: Given, task_id: str, words: Sequence[str], by: str) -> None:
    """Answer a question that a task asks. Without STEP: the only one that stands.

    Quote a TEXT of several words. 'outlive waiting' shows the questions.
    """
    if len(words) > 2:  # a step and a text
        raise click.UsageError("give [STEP] TEXT; quote a text of several words")

    async def said(client: Client) -> Answer:
        step_id = words[0] if len(words) > 1 else await _question(client, task_id)
        return await client.answer(task_id, step_id, words[-1])

    send(given, by, said)


async def _question(client: Client, task_id: str) -> str:
    task = await client.get(task_id, with_input=False, with_result=False)
    asked = {one.step_id or "": one for one in task.reasons if one.reason is ReasonCode.QUESTION}
    return _only(task, asked, ReasonCode.QUESTION)


def _verdict(*names: str, verdict: Verdict, text: str) -> Callable[[F], F]:
    assert verdict in get_args(Verdict)
    return click.option(*names, "verdict", flag_value=verdict, help=text)


@click.command()
@task_argument
@_operation
@click.option("--happened", metavar="JSON", help="It happened, and this is what it returned (null for nothing).")
@_verdict(
    "--result-lost", verdict="happened_result_lost", text="It happened; what it returned is lost: the step fails."
)
@_verdict("--did-not-happen", verdict="did_not_happen", text="It did not happen: it is sent again.")
@_verdict("--give-up", verdict="give_up", text="Nobody can tell: the step fails, nothing is sent.")
@click.option(
    "--new-operation",
    is_flag=True,
    help="With --did-not-happen: under a new key, for a remote that repeats a stored error for the old one.",
)
@click.option("--reference", metavar="TEXT", help="Where it can be looked up, for instance a ticket's number.")
@reason_option
@by_option
@client_options
@pass_given
def resolve(
    given: Given,
    task_id: str,
    operation: str | None,
    happened: str | None,
    verdict: Verdict | None,
    new_operation: bool,
    reference: str | None,
    reason: str | None,
    by: str,
) -> None:
    """Say what became of an effect whose answer was lost. Look outside first.

    One of --happened JSON, --result-lost, --did-not-happen and --give-up must be given.
    """
    said, result = _said(happened, verdict)
    if new_operation and said != "did_not_happen":
        raise click.UsageError(
            "--new-operation goes with --did-not-happen alone: what may have happened is not sent again"
        )

    async def answer(client: Client) -> Answer:
        named, _ = await _asked(client, task_id, operation, ReasonCode.OUTCOME_UNKNOWN)
        return await client.resolve(
            task_id, named, said, result, reason=reason, reference=reference, new_operation=new_operation
        )

    send(given, by, answer)


def _said(happened: str | None, verdict: Verdict | None) -> tuple[Verdict, Any]:
    if (happened is None) == (verdict is None):
        raise click.UsageError("say one of --happened JSON, --result-lost, --did-not-happen, --give-up")
    if verdict is not None:
        return verdict, None
    return "happened", arguments.json_value(happened or "", "--happened")


async def _asked(client: Client, task_id: str, operation: str | None, code: ReasonCode) -> tuple[str, str | None]:
    """Return the operation that is meant, and the digest of its arguments where the question tells it."""
    task = await client.get(task_id, with_input=False, with_result=False)
    asked = {f"{one.step_id}:{one.operation_id}": one for one in task.reasons if one.reason is code}
    if operation is None:
        operation = _only(task, asked, code)
    one = asked.get(":".join(keys.split_operation(operation)))
    return operation, one.digest if one is not None else None


def _only(task: TaskRecord, asked: Mapping[str, Reason], code: ReasonCode) -> str:
    if len(asked) == 1:
        return next(iter(asked))
    what = _WANTED[code]
    if not asked:
        raise click.ClickException(f"task {task.task_id} does not wait for {what}. See: outlive why {task.task_id}")
    listed = "\n".join(f"  {name}  {one.message}" for name, one in asked.items())
    raise click.UsageError(f"{len(asked)} steps of task {task.task_id} wait for {what}; name one:\n{listed}")


@click.command()
@task_argument
@click.argument("step", metavar="[STEP]", required=False)
@click.option(
    "--args",
    "corrected",
    metavar="JSON",
    help="All arguments of the step by name, corrected: they are sent under a new key. Also @file, or - for stdin.",
)
@by_option
@client_options
@pass_given
def retry(given: Given, task_id: str, step: str | None, corrected: str | None, by: str) -> None:
    """Let a failed task go on from its checkpoint, after a fix. Without STEP: at the step that failed.

    With --args the step is tried with other arguments than the code gives it, and keeps its place.
    """
    args = None if corrected is None else arguments.json_object(corrected, "--args")

    async def answer(client: Client) -> Answer:
        named = step or await _failed_step(client, task_id)
        if args is not None and named is None:
            raise click.UsageError(f"no step of task {task_id} is known to have failed: --args wants its STEP")
        return await client.retry(task_id, named, args=args)

    send(given, by, answer)


async def _failed_step(client: Client, task_id: str) -> str | None:
    task = await client.get(task_id, with_input=False, with_result=False)
    return task.failure.step_id if task.status is Status.FAILED and task.failure is not None else None


@click.command()
@task_argument
@click.argument("step", metavar="STEP")
@click.argument("result", metavar="RESULT")
@by_option
@client_options
@pass_given
def skip(given: Given, task_id: str, step: str, result: str, by: str) -> None:
    """Give a step that cannot go on its result, as JSON; it is not run."""
    value = arguments.json_value(result, "RESULT")
    send(given, by, lambda client: client.skip(task_id, step, value))
