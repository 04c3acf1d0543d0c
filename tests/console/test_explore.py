"""``outlive chaos explore`` as a person types it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.chaos.harness import ROOT

APP = "tests.chaos.explored_app:app"


def _explore(world: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "EXPLORED_WORLD": str(world)}
    command = [sys.executable, "-m", "outlive", "chaos", "explore", *words]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_a_violation_is_told_with_the_command_that_repeats_it(tmp_path: Path) -> None:
    counter = ["--count", "tests.chaos.explored_app:count"]
    done = _explore(tmp_path, APP, "wrongly_idempotent", *counter, "--only", "kill:effect.after@1", "--json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    [violation] = report["violations"]
    assert report["ok"] is False
    assert report["tried"] == ["kill:effect.after@1"]
    assert violation["repeat"] == " ".join(
        ["outlive chaos explore", APP, "wrongly_idempotent", *counter, "--only kill:effect.after@1"]
    )


def test_what_cannot_be_explored_is_said_at_once(tmp_path: Path) -> None:
    for words, told in (
        ([APP, "right", "--only", "kill:nowhere@1"], "'kill:nowhere@1' is no point. Write FAULT:FAILPOINT@PASS"),
        ([APP, "right", "--count", "tests.chaos.explored_app:nothing"], "there is no such function"),
        ([APP, "right", "--signal", "go"], "write NAME=JSON"),
        (["nowhere:app", "right"], "there is no module 'nowhere'"),
    ):
        done = _explore(tmp_path, *words)
        assert done.returncode == 2
        assert told in " ".join(done.stderr.split())
