"""Which worker is meant: the one that holds a task, the one named, or the busiest."""

from collections import Counter
from collections.abc import Sequence

import click

from outlive.infra.client import Client
from outlive.protocol import api
from outlive.protocol.api import WorkerRecord
from outlive.protocol.task import Status, TaskRecord


async def find_worker(client: Client, which: str | None) -> str:
    """Find the worker that is named (by incarnation, process id, or a task that it holds), else the busiest one."""
    workers = (await client.health()).workers
    if which is None:
        return await _busiest(client, workers)
    named = [one.incarnation for one in workers if which in (one.incarnation, str(one.pid))]
    return named[0] if named else await find_owner(client, which)


async def _busiest(client: Client, workers: Sequence[WorkerRecord]) -> str:
    """Return the one that holds most running tasks now; heartbeats tell it only once a second."""
    if not workers:
        raise click.ClickException("no worker is alive. Start one: outlive worker APP --chaos")
    running = await client.list(status=[Status.RUNNING], limit=api.PAGE_LIMIT)
    held = Counter(task.owner for task in running.tasks if task.owner)
    return held.most_common(1)[0][0] if held else workers[0].incarnation


async def find_owner(client: Client, task_id: str) -> str:
    """Return the worker that holds a task."""
    question = api.Get(task_id=task_id, with_input=False, with_result=False)
    task = await client.questions.ask("get", question, TaskRecord)
    if task.owner is None:
        raise click.ClickException(f"no worker holds task {task_id} now. To see why: outlive why {task_id}")
    return task.owner
