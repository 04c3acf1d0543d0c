"""A soak is judged by what is there afterwards: nothing is violated without a bug, and each of some bugs is found."""

import json
import os
from pathlib import Path

import pytest

from outlive.actors.chaos.schedule import Told
from outlive.actors.chaos.soak.run import Plan, Soaked, soak
from outlive.actors.testing import Server

SEEDED = Path(__file__).with_name("seeded")


async def soaked(server: Server, *, seconds: float, tasks: int, bug: str = "") -> Soaked:
    path = os.pathsep.join([str(SEEDED), os.environ.get("PYTHONPATH", "")])
    environment = {"PYTHONPATH": path, "SEEDED_BUG": bug} if bug else {}
    plan = Plan(seconds=seconds, tasks=tasks, seed=7, every=1.5, environment=environment)
    return await soak(server, plan, print)


@pytest.mark.slow
async def test_nothing_is_violated_under_faults(session_server: Server) -> None:
    result = await soaked(session_server, seconds=20, tasks=150)
    assert [str(violation) for violation in result.violations] == []
    assert result.figures.submitted == 150
    assert sum(result.figures.faults.values()) >= 5
    assert {one.entry for one in result.faults} and all(isinstance(one, Told) for one in result.faults)


@pytest.mark.slow
async def test_a_bug_in_the_workers_is_found(session_server: Server) -> None:
    result = await soaked(session_server, seconds=20, tasks=150, bug="no_reconcile")
    twice = [one for one in result.violations if one.what == "I4 an effect happened more than once"]
    assert twice, json.dumps([str(one) for one in result.violations])
    assert all(one.key and one.evidence.startswith("effects [") for one in twice)
