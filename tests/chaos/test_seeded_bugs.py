"""A bug that is put in is noticed: by the exam (at the question that it touches), by the explorer, or by a short proof."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from outlive.actors.chaoskit import eight
from outlive.actors.chaoskit.evidence import Question
from outlive.actors.chaoskit.exam import examine
from outlive.actors.chaoskit.explorer import Report
from outlive.actors.chaoskit.points import Point
from outlive.actors.chaoskit.scene import Scene
from outlive.actors.testing import FakeService, Server, fresh
from tests.chaos import proofs
from tests.chaos.seeded import bugs
from tests.chaos.test_explorer import _world

SEEDED = Path(__file__).with_name("seeded")


@pytest.fixture
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SEEDED), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize(
    ("bug", "name", "question"),
    [
        ("no_reconcile", "answer-lost", Question.REPEATED),
        ("yes_not_used_up", "cancelled-before-risk", Question.REAL),
        pytest.param("stale_epoch", "two-workers", Question.REPEATED, marks=pytest.mark.slow),
        ("cancel_tells_nothing", "cancelled-before-risk", Question.REAL),
    ],
)
async def test_the_exam_finds_it(
    shared: Server,
    service: FakeService,
    seed: None,
    monkeypatch: pytest.MonkeyPatch,
    bug: str,
    name: str,
    question: Question,
) -> None:
    monkeypatch.setenv("SEEDED_BUG", bug)
    (fault,) = (fault for fault in eight.EIGHT if fault.name == name)
    async with Scene.at(shared, service) as scene:
        result = await examine(fault, scene)
    assert not result.ok
    assert question in result.answers, result.problem
    assert not result.answers[question].ok, result


PROOFS: Final[dict[str, proofs.Proof]] = {
    "no_settle": proofs.a_late_effect_is_waited_for,
    "no_expected_sequence": proofs.a_lost_tail_is_published_again,
    "no_sweep": proofs.what_a_dead_owner_left_is_published,
    "no_inbox_key": proofs.a_command_that_comes_twice_counts_once,
    "no_consumer_sequence": proofs.a_message_lost_on_its_way_is_read_again,
    "stale_epoch": proofs.a_former_owner_writes_nothing,
    "no_version_check": proofs.a_record_follows_the_one_before_it,
    "any_call_at_a_place": proofs.another_call_at_a_place_is_not_taken_for_done,
    "no_death_count": proofs.a_poison_task_is_quarantined,
}


@pytest.mark.parametrize("bug", PROOFS)
async def test_a_short_proof_finds_it(shared: Server, monkeypatch: pytest.MonkeyPatch, bug: str) -> None:
    async with fresh(shared) as sound:
        await PROOFS[bug](sound, 20)
    getattr(bugs, bug)(monkeypatch.setattr)
    with pytest.raises((AssertionError, TimeoutError)):
        await PROOFS[bug](shared, 2)


async def test_the_explorer_finds_it(shared: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That right tasks have no violation is what `test_explorer.py` shows."""
    monkeypatch.syspath_prepend(SEEDED)
    monkeypatch.setenv("SEEDED_BUG", "no_intent")
    report: Report = await _world(tmp_path)("paid", on=shared, only=[Point.read("kill:effect.after@1")])
    assert {finding.violation for finding in report.violations} == {"counter", "twice"}, report.text


def exam(*arguments: str, prelude: str = "pass", **variables: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; {prelude}; from outlive.__main__ import main; main()"
    command = [sys.executable, "-c", code, "chaos", "exam", "--json", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
    return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_command_ends_with_1_where_an_answer_is_not_as_it_should_be(seed: None) -> None:
    done = exam("--only", "cancelled-before-risk", "--only", "message-twice", SEEDED_BUG="yes_not_used_up")
    results = {result["fault"]: result for result in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 1, done.stderr
    assert {fault: result["ok"] for fault, result in results.items()} == {
        "cancelled-before-risk": False,
        "message-twice": True,
    }
    assert list(results["message-twice"]["answers"]) == [str(question) for question in Question]
    assert all(answer["evidence"] for answer in results["message-twice"]["answers"].values())


@pytest.mark.slow
def test_the_command_ends_with_0_where_all_is_well() -> None:
    done = exam("--only", "message-twice")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["ok"] is True


def test_agents_that_cannot_be_played_are_told_and_can_be_left_out() -> None:
    missing = "sys.modules['pydantic_ai'] = None"
    done = exam("--only", "llm-times-out", prelude=missing)
    assert done.returncode == 1
    assert json.loads(done.stdout)["problem"] == eight.NEEDS
    left_out = exam("--only", "llm-times-out", "--without-agents", prelude=missing)
    assert left_out.returncode == 2
    assert "--without-agents leaves nothing of --only" in left_out.stderr
