"""The app of the histories in `tests/histories`: what they tell must be followed by every later version of Outlive.

They were written by `outlive export` and are never written anew: what a released version stored is loaded for ever.
"""

from datetime import datetime
from typing import Any

from outlive.actors import App, Task
from outlive.protocol.errors import PermissionDenied, StepFailed
from tests.agents.script import Script, finish, plan

app = App("kept")
go = app.signal("go", str)
calls: list[str] = []


@app.tool(read_only=True)
def price(item: str) -> int:
    """Look a price up."""
    calls.append("price")
    return len(item)


@app.tool
def charge(cents: int) -> str:
    """Charge a card."""
    calls.append("charge")
    return f"charged {cents}"


@app.tool(read_only=True)
def forbidden() -> int:
    """Never let anybody in."""
    raise PermissionDenied("not for you")


@app.task
async def small(task: Task, cents: int) -> int:
    """Give change."""
    return cents


@app.task
async def order(task: Task, items: list[str]) -> dict[str, Any]:
    """Pass all that a function can do."""
    began: datetime = task.now()
    prices = await task.gather(*[task.call(price, item) for item in items])
    await task.progress("prices are known", done=1, total=2)
    paid = await task.call(charge, sum(prices))
    refused = ""
    try:
        await task.call(forbidden)
    except StepFailed as failed:
        refused = failed.failure.type
    said = await task.wait_for(go)
    await task.sleep(0.01)
    change = await task.spawn(small, 3)
    return {"paid": paid, "said": said, "change": change, "refused": refused, "year": began.year > 2000}


@app.task
async def fails(task: Task) -> int:
    """Fail."""
    return await task.call(forbidden)


script = Script(
    plan("look", "tell"),
    [("price", {"item": "tea", "plan_item": "look"}), ("price", {"item": "jam", "plan_item": "look"})],
    finish({"total": 6}),
)
clerk = app.agent("clerk", model=script.model, instructions="Add prices up.", tools=[price], output=dict[str, int])
