"""What defeats us: where a promise ends, what happens then, and what a person sees of it.

Each docstring with `Defeats:` here, in other tests and in the code is a row of the table in actors/README.md.
"""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import anyio
import psutil

from outlive.actors.testing import FakeService, Server
from outlive.infra.client import Client
from outlive.protocol.commands import Resolve
from tests.chaos.defeats_app import FROZEN
from tests.chaos.harness import (
    WorkerProcess,
    fetch,
    send,
    signal_many,
    submit_many,
    until,
    wait_all_final,
)

APP = "tests.chaos.defeats_app:app"
EFFECTS = "tests.chaos.effects_app:app"
SHORT = {"OUTLIVE_LEASE": "3", "OUTLIVE_HEARTBEAT": "0.5"}
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"


async def test_a_process_that_stands_still_between_check_and_send(
    shared: Server, service: FakeService, tmp_path: Path
) -> None:
    """Frozen, looked for, sent again by another worker, and then the frozen one goes on.

    Defeats: a process that stands still between the lease check and the send, for longer than lease, timeout and `settle`
    Then: the tool without a key sends when it goes on, and its successor has sent already: the effect happens twice
    Seen: the process that went on ends as fenced; where it can still say so, the effect is marked as perhaps twice
        (`outlive receipt TASK`) and told as attention
    """
    frozen = tmp_path / "frozen"
    variables = {**SHORT, FROZEN: str(frozen)}
    async with (
        WorkerProcess(shared, APP, service=service, environment=variables) as first,
        WorkerProcess(shared, APP, service=service, environment=variables) as second,
    ):
        tasks = await submit_many(shared, "freezes", 1)
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"freezing": 1}
        (stopped,) = (each for each in (first, second) if psutil.Process(each.pid).status() == psutil.STATUS_STOPPED)
        stopped.cont()
        await _happened(service, {"freezing": 2})
        assert await stopped.exited() == 1
        assert "was fenced" in stopped.log
        assert await _operation(shared) == ("succeeded", 2)


async def test_a_remote_that_does_not_honour_its_key(shared: Server, service: FakeService) -> None:
    """Declared idempotent, killed between effect and record.

    Defeats: a tool that is declared `idempotent` with a remote that does not honour the key
    Then: after a lost answer it is sent again: the effect happens twice
    Seen: one success with two attempts
    """
    async with WorkerProcess(shared, APP, service=service, failpoints="effect.after=kill") as worker:
        tasks = await submit_many(shared, "trusts_a_key", 1)
        await worker.exited()
        await worker.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"keyless": 2}
        assert await _operation(shared) == ("succeeded", 2)


async def test_a_reconciler_that_looks_in_the_wrong_place(shared: Server, service: FakeService) -> None:
    """It says no, and its no counts.

    Defeats: a `reconcile` that finds nothing although it happened
    Then: its "no" is believed after timeout + `settle`, and the effect is sent again: it happens twice
    Seen: "asked ..., it did not happen. Sent again." in the task's progress
    """
    async with WorkerProcess(shared, APP, service=service, failpoints="effect.after=kill") as worker:
        tasks = await submit_many(shared, "trusts_a_look", 1)
        await worker.exited()
        await worker.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"unseen": 2}
        assert "it did not happen. Sent again." in await _told(shared)


async def test_a_settle_that_is_too_short(shared: Server, service: FakeService) -> None:
    """The connection drops, the effect comes 1.5 s later, and nobody waits for it.

    Defeats: a `settle` that is shorter than a request can be on its way
    Then: the "no" is believed before the first request arrives: the effect happens twice
    Seen: "Sent again" in the task's progress; a reconciler that is asked once more finds two, which marks the effect
    """
    await service.behave("late", name="open_ticket", seconds=4.5)
    async with WorkerProcess(shared, EFFECTS, service=service, environment={"EFFECTS_SETTLE": "0"}):
        await wait_all_final(shared, await submit_many(shared, "ticket", 1))
        await _happened(service, {"open_ticket": 2})
        assert "it did not happen. Sent again." in await _told(shared)


async def test_a_person_who_errs(shared: Server, service: FakeService) -> None:
    """The effect happened, its worker died, and a person says that it did not.

    Defeats: a person who resolves an unknown outcome wrongly
    Then: after `--did-not-happen` it is sent again; after `--happened` it is not sent at all
    Seen: who said it, when and why, in the audit trail (`outlive export TASK`) and in the task's progress
    """
    async with (
        WorkerProcess(shared, EFFECTS, service=service, failpoints="effect.after=kill") as worker,
        Client(shared.settings, by="ann") as client,
    ):
        tasks = await submit_many(shared, "charge", 1)
        await worker.exited()
        await worker.restart()
        await until(shared, PAUSED)
        await client.command(tasks[0], Resolve(operation_id="1", verdict="did_not_happen", reason="not on the list"))
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"charge_card": 2}
        assert "ann says that it did not happen. Sent again." in await _told(shared)
        audit = "select who, what from outlive_store.audit where what = 'resolve'"
        assert [tuple(row) for row in await fetch(shared, audit)] == [("ann", "resolve")]


async def test_an_operator_with_rights_in_the_database(shared: Server, service: FakeService) -> None:
    """Deletes the record of an effect, and the task is resumed by another process.

    Defeats: an operator who deletes or changes rows in Postgres, or restores an older state of it
    Then: what is not recorded has not happened: the effect is sent again, also by a tool that is sent once
    Seen: nothing: the record is what Outlive knows
    """
    async with WorkerProcess(shared, APP, service=service, environment={"OUTLIVE_LINGER": "0"}):
        tasks = await submit_many(shared, "waits_after", 1)
        await until(shared, "select waiting_for = 'signal go' and owner is null from outlive_store.task")
        assert (await service.counts()).names == {"unseen": 1}
        await fetch(shared, "delete from outlive_store.operation")
        await fetch(shared, "delete from outlive_store.fact where step_id is not null")
        await signal_many(shared, tasks, "go", value=True)
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"unseen": 2}


async def test_somebody_who_may_publish_commands(shared: Server, service: FakeService) -> None:
    """Says yes in another's name.

    Defeats: somebody with the right to publish on the command subjects of a tenant
    Then: a yes, a resolve or a cancel in any name is applied like any other: who may publish is for NATS to enforce
    Seen: the name that was claimed, in the audit trail
    """
    async with WorkerProcess(shared, EFFECTS, service=service):
        tasks = await submit_many(shared, "mail", 1)
        await until(shared, PAUSED)
        await send(shared, tasks[0], "approve", operation_id="1", by="the boss")
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"send_mail": 1}
        audit = "select who from outlive_store.audit where what = 'approve'"
        assert [row["who"] for row in await fetch(shared, audit)] == ["the boss"]


async def test_an_effect_that_is_declared_as_none(shared: Server, service: FakeService) -> None:
    """Killed before its end was recorded, it runs again.

    Defeats: a tool that is declared `read_only` and changes something
    Then: it is repeated freely after a crash
    Seen: "steps repeated" when the task is resumed; no operation, no receipt
    """
    async with WorkerProcess(shared, APP, service=service, failpoints="outcome.before_commit=kill") as worker:
        tasks = await submit_many(shared, "trusts_a_flag", 1)
        await worker.exited()
        await worker.restart()
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"writing": 2}
        assert await fetch(shared, "select 1 from outlive.operation") == []


async def test_an_effect_between_two_steps(shared: Server, service: FakeService) -> None:
    """The function itself touches the world; every resume does it again.

    Defeats: a task's function that touches the world outside of its steps
    Then: it does so on every resume
    Seen: nothing: Outlive does not see it
    """
    async with WorkerProcess(shared, APP, service=service) as worker:
        tasks = await submit_many(shared, "acts_between", 1)
        await until(shared, "select waiting_for = 'signal go' from outlive_store.task")
        await worker.restart()
        await signal_many(shared, tasks, "go", value=True)
        await wait_all_final(shared, tasks)
        assert (await service.counts()).names == {"between": 2}


async def _operation(server: Server) -> tuple[object, ...]:
    """The ledger's word on the only operation: its status and its attempts."""
    (row,) = await fetch(server, "select status, attempts from outlive.operation")
    return tuple(row)


async def _told(server: Server) -> str:
    """All that the tasks told."""
    rows = await fetch(server, "select convert_from(event, 'UTF8') as event from outlive_store.fact order by seq")
    return "\n".join(row["event"] for row in rows)


async def _happened(service: FakeService, names: Mapping[str, int]) -> None:
    """Wait until these effects, and no others, have happened."""
    with anyio.fail_after(20):
        while (await service.counts()).names != names:  # noqa: ASYNC110  # another process counts
            await asyncio.sleep(0.02)
