"""Two of the eight faults, for which an agent is needed: its model times out, and its model is another one."""

import functools
import re
from collections.abc import Mapping
from typing import Any, Final

from outlive.actors.chaoskit.evidence import Expected, TakeOver
from outlive.actors.chaoskit.exam import Played
from outlive.actors.chaoskit.faults import GOES, TAKEN, stand
from outlive.actors.chaoskit.scene import Scene
from outlive.protocol import keys

AGAIN: Final = "ask again"
"""What a person may say where a model gave no answer."""

AGENT: Final = "outlive.actors.chaoskit.scripted:app"
_STAYS_AWAY: Final = 10.0
"""Seconds for which the model does not answer: longer than a decision may take."""
_BOUGHT: Final = {"order": 2}
_COUNTED: Final = re.compile(r"decision-(\d+)-of-(.+)")


def _goal(task_id: str, asks: str = "") -> dict[str, Any]:
    return {"goal": f"Buy paper and a ribbon for {task_id}\n{asks}"}


def _orders(result: Any) -> list[int]:
    return list(result["orders"])


async def _requests(where: Scene, task_id: str) -> dict[int, list[str]]:
    """What the shop counted of requests to models: by decision, which model was asked."""
    asked: dict[int, list[str]] = {}
    for effect in await where.service.effects():
        found = _COUNTED.fullmatch(effect.name)
        if found is not None and found[2] == task_id:
            asked.setdefault(int(found[1]), []).append(effect.body)
    return asked


async def llm_times_out(where: Scene) -> Played:
    """The third decision does not come in time: once for the one task, for the other one until a person has looked."""
    await where.service.behave("hang", name=f"decision-3-of-{GOES}", seconds=_STAYS_AWAY)
    await where.service.behave("hang", name=f"decision-3-of-{TAKEN}", seconds=_STAYS_AWAY, times=None)
    await where.worker(AGENT)
    await where.client.submit("buyer", _goal(GOES), task_id=GOES)
    await where.client.submit("buyer", _goal(TAKEN), task_id=TAKEN)
    await where.until_ended(GOES)
    await where.until_paused(TAKEN, "question")
    stood = await stand(where, TAKEN)
    await where.service.calm()
    await _answer(where, TAKEN, AGAIN)
    await where.until_ended(TAKEN)
    asked = {task_id: await _requests(where, task_id) for task_id in (GOES, TAKEN)}
    counts = {task_id: {number: len(models) for number, models in found.items()} for task_id, found in asked.items()}
    timed_out = {task_id: await _timeouts(where, task_id) for task_id in (GOES, TAKEN)}
    tasks = [Expected(task_id=task_id, effects=_BOUGHT, orders=_orders, told=told) for task_id, told in (
        (GOES, {"the decision comes later": functools.partial(_decision, status="waiting")}),
        (TAKEN, {"the decision did not come": functools.partial(_decision, status="failed")}),
    )]  # fmt: skip
    kept = all(count == 1 for found in counts.values() for number, count in found.items() if number != 3)
    return Played(
        happened={"requests to the model, by decision": counts, "attempts that timed out": timed_out},
        struck=timed_out == {GOES: 1, TAKEN: 2} and counts[GOES].get(3) == 2, tasks=tasks,
        take_over=TakeOver(
            task=tasks[1], typed=[f"outlive answer {TAKEN} '{AGAIN}'"], verbs=["signal"], before=stood,
            check=None if kept else f"a decision that was recorded was asked for again: {counts}",
        ),
    )  # fmt: skip


def _decision(event: Mapping[str, Any], status: str) -> bool:
    return bool(event["type"] == "step" and keys.is_request(event["name"]) and event["status"] == status)


async def _timeouts(where: Scene, task_id: str) -> int:
    attempts = await where.rows("attempts", where.tenant, task_id)
    return sum(attempt["error_class"] == "timeout" for attempt in attempts)


async def model_changed(where: Scene) -> Played:
    """Both tasks begin with m-1 and wait. Then there is m-2 beside it, and one stays pinned; then m-1 is gone."""
    first = await where.worker(AGENT, EXAM_MODEL="m-1")
    for task_id in (GOES, TAKEN):
        goal = _goal(task_id, "Ask first whether the ribbon is wanted.")
        await where.client.submit("buyer", goal, task_id=task_id)
        await where.until_paused(task_id, "question")
    first.kill()
    await first.exited()
    second = await where.worker(AGENT, EXAM_MODEL="m-2", EXAM_ALSO="m-1")
    await _answer(where, GOES, "yes")
    await where.until_ended(GOES)
    second.kill()
    await second.exited()
    await where.worker(AGENT, EXAM_MODEL="m-2")
    await _answer(where, TAKEN, "yes")
    await where.until("the question about the model", lambda: _asks(where, TAKEN, "is now"))
    await where.until_paused(TAKEN, "question")
    stood = await stand(where, TAKEN)
    await _answer(where, TAKEN, "go on")
    await where.until_ended(TAKEN)
    asked = {task_id: await _requests(where, task_id) for task_id in (GOES, TAKEN)}
    begun, later = {1: ["m-1"], 2: ["m-1"], 3: ["m-1"]}, {4: ["m-2"], 5: ["m-2"]}
    pinned = {**begun, 4: ["m-1"], 5: ["m-1"]}
    goes = Expected(task_id=GOES, effects=_BOUGHT, orders=_orders)
    taken = Expected(
        task_id=TAKEN, effects=_BOUGHT, orders=_orders,
        told={"that the model is another one": lambda event: "m-1 is now" in event["message"]},
    )  # fmt: skip
    return Played(
        happened={"models that were asked, by decision": asked}, struck="m-2" in stood["asked"],
        tasks=[goes, taken],
        take_over=TakeOver(
            task=taken, typed=[f"outlive answer {TAKEN} yes", f"outlive answer {TAKEN} 'go on'"],
            verbs=["signal", "signal"], before=stood,
            check=None if asked == {GOES: pinned, TAKEN: {**begun, **later}} else f"models asked: {asked}",
        ),
    )  # fmt: skip


async def _asks(where: Scene, task_id: str, text: str) -> bool:
    return any(text in reason.message for reason in (await where.client.get(task_id)).reasons)


async def _answer(where: Scene, task_id: str, text: str) -> None:
    (reason,) = (await where.client.get(task_id)).reasons
    await where.client.answer(task_id, str(reason.step_id), text)
