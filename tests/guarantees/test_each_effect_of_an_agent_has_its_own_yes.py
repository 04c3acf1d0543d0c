"""What a model calls is sent once, after its own yes, whatever becomes of its model, its worker or the other calls."""

import asyncio
from typing import Any, Final

import pytest

from outlive.actors import App, Client
from outlive.actors.testing import Server
from outlive.infra.reader import Gap
from outlive.protocol.answers import Code
from outlive.protocol.errors import CommandRefused
from outlive.protocol.tools import RetryPolicy
from tests.actors.remote import Reply
from tests.actors.scene import attempts, dying, events, rows, serving, status_soon, told
from tests.agents.provider import completion, providing
from tests.agents.script import Script, finish, plan

QUICK: Final = RetryPolicy(max_attempts=5, base=0.01, cap=0.02)
LEDGER: Final = "select step_id, name, status, attempt from operation where task_id = $1 order by started_at, step_id"
BROKEN: Final = Reply(500, {"error": {"message": "broken"}})


def _send(*to: str) -> list[tuple[str, dict[str, Any]]]:
    return [("send_mail", {"to": each, "plan_item": "send"}) for each in to]


def _app(model: Any) -> tuple[App, list[str]]:
    app, sent = App("yes"), list[str]()

    @app.tool(requires_approval=True)
    def send_mail(to: str) -> str:
        """Send a mail."""
        sent.append(to)
        return f"sent to {to}"

    @app.tool(read_only=True)
    def look(path: str) -> str:
        """Look at a file."""
        return path

    app.agent("clerk", model=model, tools=[send_mail, look], output=str, retries=QUICK)
    return app, sent


async def _submit(client: Client, app: App, goal: str = "write to them") -> None:
    await client.submit(app.kinds["clerk"].with_options(task_id="t"), goal)


async def _asked(client: Client) -> dict[str, str]:
    """What waits for a yes: its step by the words of its question."""
    return {reason.message: reason.step_id or "" for reason in (await client.get("t")).reasons}


async def test_a_model_that_fails_after_the_effect_costs_no_second_one(shared: Server) -> None:
    """The tool was approved and has succeeded; the next request fails three times, then works: it alone is repeated."""
    with providing(
        completion(plan("send")), completion(_send("ann")), *[BROKEN] * 3, completion(finish("done"))
    ) as remote:
        app, sent = _app(remote.model)
        async with serving(app, shared) as client:
            await _submit(client, app)
            await status_soon(shared, "t", "paused")
            [step] = (await _asked(client)).values()
            await client.approve("t", step)
            async with asyncio.timeout(60):
                assert await client.result("t", str) == "done"
        assert sent == ["ann"]
        assert len(remote.requests) == 2 + 4
        assert len(set(remote.requests[2:])) == 1
    assert [(row["name"], row["status"], row["attempt"]) for row in await rows(shared, LEDGER, "t")] == [
        ("clerk__model.request", "succeeded", 1), ("clerk__model.request", "succeeded", 1), ("send_mail", "succeeded", 1),
        ("clerk__model.request", "succeeded", 4),
    ]  # fmt: skip
    assert [error for _, _, error in await attempts(shared, "t")] == ["unavailable"] * 3


@pytest.mark.parametrize("dies", [False, True])
async def test_of_two_questions_each_call_runs_after_its_own_answer(shared: Server, *, dies: bool) -> None:
    script = Script(plan("send"), _send("ann", "bob"), finish("done"))
    app, sent = _app(script.model)
    async with dying(app, shared) if dies else serving(app, shared) as client:
        await _submit(client, app)
        await status_soon(shared, "t", "paused")
        assert not sent
        asked = await _asked(client)
        said = await client.approve("t", asked['send_mail("bob") waits for your yes'])
        assert "stays paused. It waits for: approval" in said.message
        await status_soon(shared, "t", "paused")
        assert list(await _asked(client)) == ['send_mail("ann") waits for your yes']
        assert not sent
        assert len(script.requests) == 2, "no work between the answers"
    async with serving(app, shared) as client:
        await client.approve("t", asked['send_mail("ann") waits for your yes'])
        async with asyncio.timeout(60):
            assert await client.result("t", str) == "done"
    assert sorted(sent) == ["ann", "bob"]
    assert len(script.requests) == 3


async def test_the_same_id_with_another_goal_is_a_conflict(shared: Server) -> None:
    script = Script(plan("send"), _send("ann"), finish("done"))
    app, sent = _app(script.model)
    async with dying(app, shared) as client:
        await _submit(client, app)
        await status_soon(shared, "t", "paused")
    async with serving(app, shared) as client:
        with pytest.raises(CommandRefused) as refused:
            await _submit(client, app, "write to nobody")
        assert refused.value.answer.code is Code.CONFLICT
        await _submit(client, app)  # the same again is the same task
        [step] = (await _asked(client)).values()
        await client.approve("t", step)
        async with asyncio.timeout(60):
            assert await client.result("t", str) == "done"
        assert [event["version"] for event in await events(shared, "t") if event["type"] == "plan"] == [1]
    assert sent == ["ann"]
    assert not [text for text in script.requests if "nobody" in text]


async def test_results_of_a_megabyte_are_paged_by_bytes_for_people_and_for_the_model(shared: Server) -> None:
    """Each answer of the api fits into a message of NATS, and all of it can be fetched."""
    app, size = App("large"), 1_300_000

    @app.tool(read_only=True)
    def fetch(number: int) -> str:
        """Fetch a page."""
        return f"[{number}]" + "x" * size

    script = Script(
        *[[("fetch", {"number": number})] for number in range(3)],
        lambda _: [("recall", {"step": "2", "start": 900_000})],
        finish("done"),
    )
    app.agent("clerk", model=script.model, tools=[fetch], output=str, plans=False, context_tokens=4000)
    async with serving(app, shared) as client:
        await _submit(client, app)
        async with asyncio.timeout(60):
            assert await client.result("t", str) == "done"
        checkpoint = await client.checkpoint("t")
        assert (
            sorted(len(value) for value in checkpoint.tool_results.values() if isinstance(value, str)) == [size + 3] * 3
        )
        assert [item.seq async for item in client.events("t") if not isinstance(item, Gap)] == list(
            range(1, len(await told(shared, "t")) + 1)
        )
        assert len((await client.operations("t")).operations) == 5
        pieces = [piece async for piece in client.export("t")]
        assert len(pieces) > 8
    assert max(len(text) for text in script.requests) < 16_000
    assert 'step="2" tool="fetch" call="fetch(0)" shown="900000 to ' in script.requests[4]
