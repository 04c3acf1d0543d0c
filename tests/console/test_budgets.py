"""A budget from the command line: given with a submit, used up, raised; the receipt says what was paid."""

from outlive.actors import App
from outlive.actors.console.submit import Order, submit
from outlive.infra.client import Client
from outlive.protocol.task import Status
from tests.actors.scene import soon
from tests.agents.script import Script, finish
from tests.console.keyboard import typed

app = App("budgets")
ORDER = ("kind", "words", "whole", "task_id", "priority", "labels", "requires_approval", "budget")


@app.tool(read_only=True)
async def look(n: int) -> int:
    """Look."""
    return n


script = Script(*([("look", {"n": n})] for n in range(3)), finish(7), tokens=(850, 50))
app.agent("spender", model=script.model, tools=[look], output=int, plans=False, output_tokens=50)


async def test_a_budget_is_given_used_up_and_raised(client: Client) -> None:
    wrong = await typed("submit", "spender", "goal=go", "--budget", "tokens=-5")
    assert (wrong.exit_code, "Write: tokens=10000,money=0.50,steps=100,seconds=3600" in wrong.stderr) == (2, True)
    words = submit.make_context("submit", ["spender", "goal=go", "--task-id", "b", "--budget", "tokens=2000"]).params
    await Order.read(**{name: words[name] for name in ORDER}).submit(client)  # the command itself wants a main thread

    async def paused() -> bool:
        return (await client.get("b")).status is Status.PAUSED

    await soon(paused)
    why = (await typed("why", "b")).stdout
    assert "budget used: 1,800 of 2,000 tokens (task b)" in " ".join(why.split())
    assert "outlive resume b --raise-budget tokens=N" in " ".join(why.split())
    refused = await typed("resume", "b")
    assert (refused.exit_code, "--raise-budget" in refused.stderr) == (1, True)
    raised = await typed("resume", "b", "--raise-budget", "tokens=20000")
    assert raised.exit_code == 0
    assert await client.result("b", int, 30) == 7
    receipt = " ".join((await typed("receipt", "b")).stdout.split())
    assert "models: 4 requests paid, 3,600 tokens" in receipt
    assert "budget: 20,000 tokens" in receipt
