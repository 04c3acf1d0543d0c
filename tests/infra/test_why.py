from datetime import timedelta
from typing import Any

import msgspec
import pytest

from outlive.infra.why import Circumstances, doing, explain
from outlive.protocol.task import Done, Failure, Reason, ReasonCode, Status, TaskRecord
from tests.infra.pencil import START

TASK = TaskRecord(
    task_id="t",
    tenant="default",
    kind="collect",
    status=Status.RUNNING,
    created_at=START,
    updated_at=START,
    epoch=3,
    done=Done(count=4, last=[]),
)
SEEN = Circumstances(
    now=START, due_at=None, mail_at=None, tell_at=None, ended_at=None, host=None, pid=None, until=None, draining=None, fenced=None, alive=1, able=1,
    free=5, deaths=0, status_at=START, message=None, name=None, step_id=None, status=None, attempt=None, started_at=None,
)  # fmt: skip
HELD: dict[str, Any] = {
    "host": "here",
    "pid": 4711,
    "until": START + timedelta(seconds=5),
    "draining": False,
    "fenced": False,
}
DUE = {"due_at": START - timedelta(minutes=1)}
PAUSED = Reason(
    reason=ReasonCode.OUTCOME_UNKNOWN,
    since=START,
    step_id="3",
    message="the mail may have been sent",
    do="outlive resolve t 3-1",
)

OPENING = "Task t (collect) {} 2026-01-01 12:00:00Z, with 4 steps done."
CASES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"status": "queued"}, DUE | {"alive": 0, "able": 0, "free": 0},
        "It has been due since 2026-01-01 11:59:00Z and no worker holds it. No worker is alive. Start one: outlive worker APP",
    ),
    (
        {"status": "queued"}, DUE | {"alive": 3, "able": 0, "free": 0},
        ("It has been due since 2026-01-01 11:59:00Z and no worker holds it. "
        "None of 3 living workers has the kind collect and takes work. Start one that has: outlive worker APP"),
    ),
    (
        {"status": "queued"}, DUE | {"free": 0},
        ("It has been due since 2026-01-01 11:59:00Z and no worker holds it. "
        "All slots of the workers that have the kind collect are taken; it begins when one is free. More slots: start another worker"),
    ),
    (
        {"status": "queued"}, DUE,
        "It has been due since 2026-01-01 11:59:00Z and no worker holds it. A worker that has the kind collect takes it within moments.",
    ),
    (
        {"waiting_for": "sleep", "wait_until": START + timedelta(hours=1)}, {"due_at": START + timedelta(hours=1)},
        "It sleeps until 2026-01-01 13:00:00Z and then goes on by itself. It is due at 2026-01-01 13:00:00Z; no worker needs to hold it until then.",
    ),
    (
        {"waiting_for": "signal go"}, {},
        "It waits for the signal go. To send it: outlive signal t go VALUE No worker needs to hold it until then.",
    ),
    (
        {"waiting_for": "signal go", "owner": "x"}, HELD,
        "Worker 4711 on here, epoch 3 has it in memory. It waits for the signal go. To send it: outlive signal t go VALUE",
    ),
    (
        {"waiting_for": "child c", "owner": "x"}, HELD,
        "Worker 4711 on here, epoch 3 has it in memory. It waits for its child task c. To look at that: outlive why c",
    ),
    (
        {"waiting_for": "read, attempt 2", "wait_until": START, "owner": "x"}, HELD,
        "Worker 4711 on here, epoch 3 has it in memory. It waits for read, attempt 2 until 2026-01-01 12:00:00Z at the latest.",
    ),
    (
        {"owner": "x"}, HELD | {"name": "send_mail", "step_id": "5", "attempt": 2, "started_at": START},
        "Worker 4711 on here, epoch 3 has it in memory. Step 5: attempt 2 of send_mail began at 2026-01-01 12:00:00Z.",
    ),
    (
        {"owner": "x", "doing": "step 5 (read)"}, HELD | {"draining": True},
        "Worker 4711 on here, epoch 3, which is shutting down and hands it back, has it in memory. It is at step 5 (read).",
    ),
    (
        {"owner": "x"}, HELD | {"until": START, "alive": 0, "deaths": 2},
        ("Whoever ran it died 2 times since its last completed step. Its worker (4711 on here, epoch 3) is dead or does not "
        "answer. No worker is alive. Start one: outlive worker APP"),
    ),
    (
        {"status": "paused", "reasons": [PAUSED]}, {},
        "It waits because of outcome unknown at step 3 since 2026-01-01 12:00:00Z: the mail may have been sent. To go on: outlive resolve t 3-1",
    ),
    (
        {"owner": "x", "cancelling": True}, HELD,
        "A cancel is in progress: no further step starts. Worker 4711 on here, epoch 3 has it in memory. It is between two steps.",
    ),
    (
        {"status": "failed", "failure": Failure(type="KeyError", message="'x'", step_id="3")}, {"ended_at": START, "deaths": 1},
        "It failed at step 3: KeyError: 'x'. Nothing runs any more. When the cause is mended: outlive retry t",
    ),
    ({"status": "succeeded"}, {}, "It has ended: nothing runs any more."),
]  # fmt: skip


@pytest.mark.parametrize(("task", "seen", "text"), CASES)
def test_every_state_is_explained(task: dict[str, Any], seen: dict[str, Any], text: str) -> None:
    status = Status(task.pop("status", "running"))
    record = msgspec.structs.replace(TASK, status=status, **task)
    opening = OPENING.format(
        f"is {status} since" if status not in {Status.SUCCEEDED, Status.FAILED} else f"{status} at"
    )
    assert explain(record, SEEN._replace(**seen)) == f"{opening} {text}"


def test_doing_is_in_words() -> None:
    assert doing(Status.RUNNING, "4", "read", None, None) == "step 4 (read)"
    assert doing(Status.RUNNING, "4", None, None, None) == "step 4"
    assert doing(Status.RUNNING, "4", "read", "signal go", START) == "waiting: signal go, until 2026-01-01 12:00:00Z"
    assert doing(Status.RUNNING, None, None, None, None) is None
    assert doing(Status.QUEUED, "4", "read", None, None) is None
    assert doing(Status.SUCCEEDED, "4", "read", None, None) is None
