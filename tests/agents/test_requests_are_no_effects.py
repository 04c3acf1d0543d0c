"""What a model was asked changes nothing but the bill: it is told apart from effects, wherever those are listed."""

import asyncio

import pytest

from outlive.actors import App
from outlive.actors.testing import Server
from outlive.protocol import keys
from outlive.protocol.effects import Entry, summarize
from outlive.protocol.errors import TaskCancelled
from outlive.protocol.paths import describe_path
from tests.actors.scene import serving, status_soon
from tests.agents.script import Script


def test_requests_are_left_out_of_what_a_task_did() -> None:
    name = keys.request_name("clerk")
    ledger = [
        Entry("1", "1", name, "succeeded"),
        Entry("2", "1", "send", "succeeded"),
        Entry("3", "1", name, "unknown"),
    ]

    effects = summarize(ledger)

    assert effects.counts == {"happened": 1}
    assert [effect.name for effect in effects.listed] == ["send"]


async def test_a_cancelled_agent_lists_what_it_did_and_not_what_it_asked(shared: Server) -> None:
    app = App("billing")

    @app.tool(idempotent=True)
    async def note(text: str) -> str:
        """Write it down."""
        return text

    script = Script([("note", {"text": "one"})], [("ask_person", {"question": "And now?"})])
    kind = app.agent("clerk", model=script.model, tools=[note], plans=False)
    async with serving(app, shared) as client:
        handle = await client.submit(kind.with_options(task_id="bill-1"), "go")
        await status_soon(shared, "bill-1", "paused")
        await client.cancel("bill-1")
        async with asyncio.timeout(30):
            with pytest.raises(TaskCancelled) as raised:
                await handle.result()
    effects = raised.value.effects
    assert effects is not None
    assert [effect.name for effect in effects.listed] == ["note"]

    assert (
        describe_path(app.tools["clerk__model.request"])
        == "clerk__model.request: asked again when its answer is lost; the lost one may have been paid"
    )
