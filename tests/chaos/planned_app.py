"""An agent without a model: it goes by its plan, asks for a word before each item, and takes what people make of the plan."""

import dataclasses

from outlive.actors import App, Operation, Task, planning
from outlive.actors.kind import declare
from outlive.actors.task import flow_of
from outlive.protocol.plan import Item
from tests.chaos.remote import service

app = App("planned")
FIRST = [Item("a", "the first"), Item("b", "the second"), Item("c", "the third")]


@app.tool(idempotent=True, title="doing {text}")
def work(op: Operation, text: str) -> str:
    """One effect an item."""
    service().effect("work", text, key=op.key)
    return text


async def agent(task: Task, pace: bool = True) -> list[str]:
    """Go by the plan, one item after the other, as a loop of decisions would."""
    flow, done = flow_of(task), list[str]()
    while True:
        plan = planning.take_edit(flow) or flow.plan or planning.adopt(flow, FIRST, by="model")
        left = [item for item in (plan.items if plan else ()) if item.id not in done]
        if not left:
            return done
        planning.attribute(flow, left[0].id)
        if pace:
            await task.ask(f"{left[0].id}?")
        await task.call(work, left[0].text)
        done.append(left[0].id)


@app.tool(read_only=True)
def look() -> str:
    """Something of a kind whose plan is code."""
    return "seen"


@app.task
async def written(task: Task) -> str:
    """A plan that is written in the code."""
    await task.plan("look")
    await task.ask("look?")
    return await task.call(look)


app.task.add(dataclasses.replace(declare(agent, name="agent"), plans=True))
