"""``worker``: one worker in the foreground."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
from typing import Final

import anyio
import click
import structlog

from outlive.actors import logging
from outlive.actors.app import App
from outlive.actors.chaos import Chaos
from outlive.actors.chaos.links import Links, Unproxied
from outlive.actors.console import apps, codes, failures, interrupt
from outlive.actors.console.options import Given, client_options, dsn_option, pass_given
from outlive.actors.ends import WorkerUnhealthy, WorkerWornOut
from outlive.actors.worker import Worker, WorkerFenced
from outlive.infra import embedded
from outlive.infra.settings import Settings

_SET_PARENT_DEATH_SIGNAL: Final = 1
_LOOK: Final = 0.5

_log = structlog.get_logger("outlive.worker")


class ServersEnded(RuntimeError):
    """The embedded servers that this worker used have ended."""


@click.command()
@click.argument("app")
@click.option("--chaos", is_flag=True, help="Let 'outlive chaos' kill this worker and its actors.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    help="Least level of log lines.",
)
@click.option("--log-json/--log-text", default=None, help="Form of log lines.  [default: text on a terminal]")
@click.option("--crew", type=(int, int), hidden=True, help="Process id of the parent; descriptor told when we serve.")
@client_options
@dsn_option
@pass_given
def worker(
    given: Given, app: str, chaos: bool, log_level: str, log_json: bool | None, crew: tuple[int, int] | None
) -> int:
    """Run one worker for an app.

    APP is module:name. Ctrl-C or SIGTERM lets steps in flight end and hands the rest back; a second one ends at once.
    """
    if crew:
        _die_with(crew[0])
    logging.configure(level=log_level, json=log_json)
    declared, settings = apps.load(app), given.settings()
    try:
        return interrupt.run(
            lambda asked: _serve(declared, settings, asked, chaos=chaos, ready=crew and crew[1]),
            interrupted=codes.DONE,
            loop_factory=interrupt.fast_loop(),
        )
    except Exception as error:
        reason = failures.cause(error)
        if isinstance(reason, WorkerFenced | WorkerUnhealthy | WorkerWornOut | ServersEnded):
            raise click.ClickException(str(reason)) from error
        raise


async def _serve(app: App, settings: Settings, asked: interrupt.Interrupt, *, chaos: bool, ready: int | None) -> int:
    asked.second = lambda: os._exit(codes.INTERRUPTED)
    found = embedded.locate(settings)
    links, unproxied = _links(found) if chaos else (None, "")
    async with anyio.create_task_group() as group:
        async with Worker(app, links.through if links else found, watchdog=True) as served:
            asked.first = served.stop
            gc.freeze()  # what is loaded by now stays: the collector looks at it no more
            if not (settings.nats_url and settings.postgres_dsn):
                group.start_soon(_watch_servers, settings)
            if chaos:
                await group.start(Chaos(served, found, links, unproxied).run)
            if ready is None:
                _log.info("serving", kinds=sorted(app.kinds), incarnation=str(served.incarnation))
            else:
                os.write(ready, b"ready\n")
                os.close(ready)
            await served.run()
        group.cancel_scope.cancel()
    return codes.DONE


def _links(found: Settings) -> tuple[Links | None, str]:
    try:
        return Links(found), ""
    except Unproxied as error:
        return None, str(error)


async def _watch_servers(settings: Settings) -> None:
    await embedded.ended(settings.state_dir)
    raise ServersEnded(f"the servers of {settings.state_dir} have ended: start them again with: outlive up")


def _die_with(parent: int) -> None:
    """End at once when the parent ends, however that happens: its servers are gone with it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    else:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os._exit(1)
