"""``run``: one task to its end in one command."""

import shlex
from typing import Any

import anyio
import click
import msgspec

from outlive.actors.console import apps, bars, codes, interrupt, output, servers
from outlive.actors.console.fleet import Fleet
from outlive.actors.console.following import Follower, somebody_looks
from outlive.actors.console.options import Given, by_option, client_options, dsn_option, pass_given
from outlive.actors.console.submit import Order, order_options
from outlive.infra.client import Client


@click.command()
@click.argument("app")
@order_options
@by_option
@client_options
@dsn_option
@pass_given
def run(given: Given, /, app: str, by: str, **order: Any) -> int:
    """Run one task to its end, with all it needs, and write its result.

    APP is module:name. Servers and a worker are started for it and stopped with it. Run again with the same --task-id, it goes on.
    """
    apps.find(app)
    wanted = Order.read(**order)
    code = interrupt.run(lambda asked: follow_own(given, app, by, wanted, asked))
    if code not in (codes.DONE, codes.FAILED):
        task = ["--task-id", wanted.task_id, "--input", msgspec.json.encode(wanted.input).decode()]
        wishes = ["all"] if wanted.requires_approval is True else wanted.requires_approval or []
        task += [word for wish in wishes for word in ("--require-approval", wish)]
        if wanted.budget is not None:
            limits = msgspec.to_builtins(wanted.budget)
            task += ["--budget", ",".join(f"{name}={limit:g}" for name, limit in limits.items())]
        where = ", in a terminal, where it waits for your answer" if code == codes.PERSON else ""
        output.say(f"it is kept. To go on{where}: {shlex.join(['outlive', 'run', app, wanted.kind, *task])}")
    return code


async def follow_own(given: Given, app: str, by: str, order: Order, asked: interrupt.Interrupt) -> int:
    """Run a task with servers and a worker of its own, and follow it: to its end, or to a person's turn if nobody looks."""
    code = codes.FAILED
    settings = given.settings()
    with bars.choose(as_json=given.as_json) as view:
        async with servers.running(settings, view.doing) as found:
            fleet = Fleet(
                app, 1, servers.variables(found), grace=found.grace, hurry=asked.hurry, say=view.doing,
                options=["--log-level", "warning", "--log-json" if given.as_json else "--log-text"], on_line=view.line,
            )  # fmt: skip
            async with anyio.create_task_group() as group:
                group.start_soon(fleet.run)
                await fleet.ready.wait()
                async with Client(found, by=by) as client:  # closed before all is cancelled
                    handle = await order.submit(client)
                    view.doing(f"task {handle.task_id}")
                    stay = somebody_looks() and not given.as_json
                    code = await Follower(client, view, stay=stay).follow({handle.task_id: 1})
                group.cancel_scope.cancel()
    return code
