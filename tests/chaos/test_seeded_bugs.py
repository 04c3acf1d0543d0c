"""A bug that is put into the workers makes the exam fail, at the question that it touches."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outlive.actors.chaoskit import eight
from outlive.actors.chaoskit.evidence import Question
from outlive.actors.chaoskit.exam import examine
from outlive.actors.chaoskit.scene import Scene
from outlive.actors.testing import FakeService, Server

SEEDED = Path(__file__).with_name("seeded")


@pytest.fixture
def seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(SEEDED), os.environ.get("PYTHONPATH", "")]))


@pytest.mark.parametrize(
    ("bug", "name", "question"),
    [
        ("no_reconcile", "answer-lost", Question.REPEATED),
        ("yes_not_used_up", "cancelled-before-risk", Question.REAL),
        ("stale_epoch", "two-workers", Question.REPEATED),
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


def exam(*arguments: str, prelude: str = "pass", **variables: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; {prelude}; from outlive.__main__ import main; main()"
    command = [sys.executable, "-c", code, "chaos", "exam", "--json", *arguments]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OUTLIVE_")}
    return subprocess.run(command, env={**environment, **variables}, capture_output=True, text=True, check=False)


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
