"""The end of a cancel lists every effect as it stands outside: happened, unknown, did not happen, never agreed to."""

import asyncio
from random import Random
from typing import Final

import pytest

from outlive.actors import App, Operation, Outcome, RetryPolicy, Task, TaskCancelled, Unavailable
from outlive.actors.testing import FakeService, Server, failpoints
from outlive.actors.testing.fake_service import FakeClient
from outlive.infra.client import Client
from outlive.protocol.commands import Cancel
from outlive.protocol.effects import MOST, Effects, Entry, cancel_message, summarize
from outlive.protocol.errors import CommandRefused
from tests.actors.scene import attempts, events, ledger, row_soon, rows, serving, soon, status_soon, told
from tests.chaos.harness import WorkerProcess, assert_effects_once, assert_progress_gapless, submit_many, until

app = App("telling")
go = app.signal("go", str)
called: list[str] = []
reached: dict[str, asyncio.Event] = {}
SLOW: Final = 0.02
"""Seconds for which the remote of the races works."""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    called.clear()
    reached.clear()


class Remote:
    """What is true outside; an effect hangs until it is let go, or is given up."""

    def __init__(self) -> None:
        self.done: dict[str, str] = {}
        self.asked: list[str] = []


remote = Remote()


async def _hang(name: str) -> None:
    called.append(name)
    reached.setdefault(name, asyncio.Event()).set()
    await asyncio.Event().wait()


async def _reach(name: str) -> None:
    await asyncio.wait_for(reached.setdefault(name, asyncio.Event()).wait(), 20)


@app.tool(timeout=60, settle=0.1)
async def sent(op: Operation, name: str) -> str:
    """Happens, and hangs."""
    remote.done[op.key] = name
    await _hang(name)
    return name


@sent.reconcile
def find_sent(op: Operation, name: str) -> Outcome[str]:
    remote.asked.append(op.key)
    return Outcome.happened(f"found {remote.done[op.key]}") if op.key in remote.done else Outcome.did_not_happen()


@app.tool(timeout=2, settle=0.1)
async def lost(op: Operation, name: str) -> str:
    """Hangs, and never happens."""
    await _hang(name)
    return name


@lost.reconcile
def find_lost(op: Operation, name: str) -> Outcome[str]:
    remote.asked.append(op.key)
    return Outcome.did_not_happen()


@app.tool(timeout=60, settle=3600)
async def late(op: Operation, name: str) -> str:
    """Hangs, and may still arrive for an hour."""
    await _hang(name)
    return name


@late.reconcile
def find_late(op: Operation, name: str) -> Outcome[str]:
    return Outcome.did_not_happen()


@app.tool(timeout=60)
async def mute(name: str) -> str:
    """Hangs, and nobody can be asked."""
    await _hang(name)
    return name


@app.tool(timeout=60)
async def quick(name: str) -> str:
    called.append(name)
    return name


@app.tool(timeout=60, requires_approval=True)
async def asked(name: str) -> str:
    called.append(name)
    return name


@app.tool(timeout=60, retries=RetryPolicy(max_attempts=9, base=60, cap=60), idempotent=True)
async def down(name: str) -> str:
    called.append(name)
    raise Unavailable("not now")


TOOLS = {tool.name: tool for tool in (sent, lost, late, mute, quick, asked, down)}


@app.task
async def together(task: Task, names: list[str]) -> str:
    """One quick effect, then all of these at once."""
    await task.call(quick, "first")
    await asyncio.gather(*(task.call(TOOLS[name], name) for name in names))
    return "done"


async def _effects(client: Client, task_id: str = "t") -> Effects:
    with pytest.raises(TaskCancelled) as cancelled:
        await client.handle(task_id).result(30)
    assert cancelled.value.effects is not None
    return cancelled.value.effects


def _listed(effects: Effects) -> list[tuple[str, str, str]]:
    return sorted((one.step_id, one.name, one.outcome) for one in effects.listed)


async def test_what_is_in_flight_gets_its_grace_and_is_then_asked_about(shared: Server) -> None:
    async with serving(app, shared, grace=1.5) as client:
        await client.submit(together.with_options(task_id="t"), ["sent", "lost", "late", "mute", "asked"])
        for name in ("sent", "lost", "late", "mute"):
            await _reach(name)
        await row_soon(shared, "select 1 from operation where status = 'awaiting_approval'")
        await client.cancel("t")
        effects = await _effects(client)
        assert _listed(effects) == [
            ("1", "quick", "happened"),
            ("2", "sent", "happened"),
            ("3", "lost", "did_not_happen"),
            ("4", "late", "unknown"),
            ("5", "mute", "unknown"),
            ("6", "asked", "not_approved"),
        ]
        assert effects.counts == {"happened": 2, "did_not_happen": 1, "unknown": 2, "not_approved": 1}
        said = await told(shared, "t")
        assert "sent: asked find_sent: it had happened" in said
        assert any("late: still unknown whether it happened: find_late finds nothing so far" in each for each in said)
        assert said[-1] == (
            "Cancelled by tester. Nothing further was started. Happened: quick (step 1), sent (step 2). "
            "Unknown whether it happened: late (step 4), mute (step 5). Did not happen: lost (step 3). "
            "Not sent, nobody said yes: asked (step 6)."
        )
    assert dict(entry[:2] for entry in await ledger(shared, "t")) == {
        "1": "succeeded", "2": "succeeded", "3": "failed", "4": "unknown", "5": "unknown", "6": "awaiting_approval",
    }  # fmt: skip
    assert called.count("asked") == 0
    assert len(remote.asked) >= 2


async def test_a_task_without_an_actor_tells_the_same(shared: Server) -> None:
    async with serving(app, shared) as client:
        await client.submit(together.with_options(task_id="t"), ["asked"])
        await status_soon(shared, "t", "paused")
        await client.cancel("t")
        effects = await _effects(client)
        assert _listed(effects) == [("1", "quick", "happened"), ("2", "asked", "not_approved")]
        last = (await events(shared, "t"))[-1]
        assert last["final"] and last["effects"] == {
            "counts": {"happened": 1, "not_approved": 1},
            "listed": [
                {"step_id": "1", "operation_id": "1", "name": "quick", "outcome": "happened"},
                {"step_id": "2", "operation_id": "1", "name": "asked", "outcome": "not_approved"},
            ],
        }


def test_however_much_a_task_has_done_its_last_event_stays_small() -> None:
    ledger = [Entry(str(n), "1", "post", "unknown" if n == 900 else "succeeded") for n in range(1, 1001)]
    effects = summarize(ledger)
    assert effects.counts == {"happened": 999, "unknown": 1}
    assert len(effects.listed) == MOST
    assert (effects.listed[0].step_id, effects.listed[1].step_id) == ("900", "1")  # who must be looked at comes first
    message = cancel_message("ann", effects)
    assert "post (step 20) and 979 more. Unknown whether it happened: post (step 900)." in message


class Posts:
    """What the posts of the test that runs go through."""

    client: FakeClient


@app.tool(timeout=10)
async def post(op: Operation, name: str) -> int:
    """An effect of a moment on the fake service."""
    reached.setdefault(name, asyncio.Event()).set()
    await asyncio.sleep(SLOW)
    number = await asyncio.to_thread(Posts.client.effect, "post", name, key=op.key, keys=False)
    called.append(name)
    return number


@app.task
async def posting(task: Task, name: str) -> str:
    """One effect, and a wait that keeps the task alive."""
    await task.call(post, name)
    return await task.wait_for(go)


@pytest.mark.parametrize("times", [40, pytest.param(200, marks=pytest.mark.slow)])
async def test_a_cancel_within_moments_of_the_answer_tells_the_truth(
    shared: Server, service: FakeService, times: int
) -> None:
    Posts.client = FakeClient(service.url)
    random, names = Random(times), [f"t{n}" for n in range(times)]
    async with serving(app, shared, grace=5.0) as client:

        async def one(name: str) -> tuple[str, Effects]:
            await client.submit(posting.with_options(task_id=name), name)
            await _reach(name)
            await asyncio.sleep(SLOW + random.uniform(-0.005, 0.005))
            await client.cancel(name)
            return name, await _effects(client, name)

        ended: dict[str, Effects] = {}
        for start in range(0, times, 10):  # some beside each other, not all: else the answer is late for all of them
            ended.update(await asyncio.gather(*(one(name) for name in names[start : start + 10])))
    Posts.client.close()
    counted = (await service.counts()).keys
    for name in names:
        happened = counted.get(f"default/{name}:1:1", 0)
        assert ended[name].counts == ({"happened": 1} if happened else {"did_not_happen": 1}), name
        assert [entry[1] for entry in await ledger(shared, name)] == ["succeeded" if happened else "failed"]
    assert await rows(shared, "select 1 from task where status <> 'cancelled'") == []


async def test_a_cancel_during_an_effect_survives_the_worker(shared: Server, service: FakeService) -> None:
    """Effect 5 of 20; the worker is killed and restarted at once: five effects, listed exactly, and nothing revives."""
    await service.behave("hang", name="open_ticket", after=4, seconds=30)
    async with (
        WorkerProcess(shared, "tests.chaos.effects_app:app", service=service) as worker,
        Client(shared.settings, by="ann") as client,
    ):
        await submit_many(shared, "tickets", 1, {"count": 20})
        await soon(lambda: _fifth(service))
        await client.command("tickets-0", Cancel())
        await worker.restart()
        effects = await _effects(client, "tickets-0")
        assert effects.counts == {"happened": 5}
        assert [one.step_id for one in effects.listed] == ["1", "2", "3", "4", "5"]
        assert (await service.counts()).names == {"open_ticket": 5}
        await worker.restart()
        await until(shared, "select bool_and(owner is null and status = 'cancelled') from outlive_store.task")
        assert (await service.counts()).names == {"open_ticket": 5}
        await assert_effects_once(service, 5)
        await assert_progress_gapless(shared, ["tickets-0"])


async def _fifth(service: FakeService) -> bool:
    return (await service.counts()).names.get("open_ticket", 0) == 5


# --- a cancel that is applied is obeyed, whatever the task is at


@app.task
async def sleeper(task: Task, how: str) -> str:
    """Reach a place at which a cancel finds it, with an effect behind that."""
    if how == "retry":
        await task.call(down, "down")
    await task.sleep(3600)
    return await task.call(quick, "never")


@app.task
async def parent(task: Task) -> list[str]:
    """Five children that sleep."""
    return [*await task.gather(*(task.spawn(sleeper, "sleep") for _ in range(5)))]


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("how", ["sleep", "retry", "resume", "child"])
async def test_after_a_cancel_no_effect_begins(shared: Server, how: str, left: bool) -> None:
    async with serving(app, shared, **({"linger": 0.0} if left else {})) as client:
        if how == "child":
            await client.submit(parent.with_options(task_id="t"))
            await row_soon(
                shared, "select 1 from task where parent = 't' and waiting_for = 'sleep' having count(*) = 5"
            )
        else:
            await client.submit(sleeper.with_options(task_id="t"), how)
            await row_soon(
                shared, "select 1 from task where waiting_for is not null and ($1 or owner is null)", not left
            )
        if how == "resume":
            await client.pause("t")
            await status_soon(shared, "t", "paused")
            await client.resume("t")
        await client.cancel("t")
        await status_soon(shared, "t", "cancelled")
        await row_soon(shared, "select 1 from task having bool_and(status = 'cancelled' and owner is null)")
        for verb in (client.resume, client.pause, client.retry):
            with pytest.raises(CommandRefused, match="cancelled"):
                await verb("t")
        with pytest.raises(CommandRefused, match="cancelled"):
            await client.signal("t", "go", "late")
    assert "never" not in called
    assert called == (["down"] if how == "retry" else [])


async def test_the_wish_to_cancel_children_does_not_die_with_the_process(shared: Server, service: FakeService) -> None:
    async with (
        WorkerProcess(
            shared, "tests.chaos.effects_app:app", service=service, failpoints="final.after_commit=kill"
        ) as worker,
        Client(shared.settings) as client,
    ):
        await submit_many(shared, "brood", 1)
        await until(shared, "select count(*) = 5 from outlive.task where parent is not null and waiting_for = 'sleep'")
        await client.command("brood-0", Cancel())
        await worker.exited()
        await worker.restart()
        await until(shared, "select bool_and(status = 'cancelled') and count(*) = 6 from outlive.task")
        assert (await service.counts()).names == {}


@app.tool(timeout=60, idempotent=True)
async def deaf(name: str) -> str:
    """Goes on for eight slices whatever happens, then would be recorded."""
    reached.setdefault(name, asyncio.Event()).set()
    for _ in range(8):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            called.append("ignored the cancel")
    called.append("wrote")
    return name


@app.task
async def stubborn(task: Task) -> str:
    return await task.call(deaf, "deaf")


async def test_what_ends_after_the_cancel_is_confirmed_writes_nothing_more(shared: Server) -> None:
    async with serving(app, shared, grace=0.1) as client:
        await client.submit(stubborn.with_options(task_id="t"))
        await _reach("deaf")
        await client.cancel("t")
        effects = await _effects(client)
        seen = await events(shared, "t")
        assert effects.counts in ({"happened": 1}, {"unknown": 1})
        await soon(_wrote)
        assert await events(shared, "t") == seen
        assert len(await attempts(shared, "t")) == effects.counts.get("unknown", 0)


async def _wrote() -> bool:
    return "wrote" in called


async def test_an_intent_that_was_not_called_yet_did_not_happen(shared: Server) -> None:
    """The cancel comes between the intent and the call: nothing is called, and that is what is told."""
    failpoints.arm("intent.after_commit", "sleep:1")
    async with serving(app, shared, grace=5.0) as client:
        await client.submit(together.with_options(task_id="t"), ["quick"])
        await row_soon(shared, "select 1 from operation where status = 'started'")
        await client.cancel("t")
        effects = await _effects(client)
        assert effects.counts == {"did_not_happen": 1}
    assert called == []
