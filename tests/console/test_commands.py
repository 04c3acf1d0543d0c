"""Every command against a running installation, as typed."""

import json
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.console.installation import Installation, until

WORKERS = 2


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with two workers that may be killed; nothing may be left of it."""
    here = Installation(tmp_path_factory.mktemp("installation"))
    up = here.start("up", "todo:app", "--workers", str(WORKERS), "--chaos", "--json")
    assert up.stdout is not None
    here.up = up.stdout.readline()
    yield here
    up.send_signal(signal.SIGINT)
    rest, _ = up.communicate(timeout=60)
    assert up.returncode == 0, here.log
    assert rest == ""
    assert here.left == []


def test_up_tells_its_addresses_in_one_line(here: Installation) -> None:
    told = json.loads(here.up)
    assert told["nats_url"].startswith("nats://")
    assert told["postgres_dsn"].startswith("postgresql://")
    assert told["app"] == "todo:app"
    assert len(told["workers"]) == WORKERS
    assert all(psutil.pid_exists(pid) for pid in told["workers"])
    assert "starting Postgres" in here.log


def test_a_task_is_submitted_watched_and_shown(here: Installation) -> None:
    submitted = here.run("submit", "count", "steps:=3", "--label", "team=a", "--task-id", "count-1")
    assert submitted.stdout == "count-1\n"
    assert "outlive watch count-1" in submitted.stderr
    watched = here.run("watch", "count-1")
    assert watched.stdout == "6\n"
    assert "looked 3 of 3 times" in watched.stderr
    events = here.stream("watch", "count-1")
    numbers = [event["seq"] for event in events[:-1]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert events[-1] == {"type": "end", "task_id": "count-1", "status": "succeeded", "result": 6, "reasons": []}
    assert here.stream("watch", "count-1", "--from-seq", "4") == events[3:]
    (task,) = here.ask("list", "--label", "team=a")["tasks"]
    assert (task["task_id"], task["status"]) == ("count-1", "succeeded")
    whole = here.ask("show", "count-1")
    assert whole["task"]["result"] == 6
    assert len(whole["checkpoint"]["completed_steps"]) == 3
    shown = here.run("show", "count-1").stdout
    assert "succeeded" in shown
    assert "look" in shown
    assert "succeeded at" in here.run("why", "count-1").stdout
    assert here.ask("why", "count-1")["task_id"] == "count-1"


def test_the_same_submit_is_the_same_task(here: Installation) -> None:
    first = here.ask("submit", "count", "steps:=1", "--task-id", "same")
    assert here.ask("submit", "count", "--input", '{"steps": 1}', "--task-id", "same")["code"] == "duplicate"
    assert (first["ok"], first["code"]) == (True, "applied")
    conflict = here.ask("submit", "count", "steps:=2", "--task-id", "same", code=1)
    assert (conflict["ok"], conflict["code"]) == (False, "conflict")


def test_a_watched_submit_is_a_stream(here: Installation) -> None:
    lines = here.stream("submit", "count", "steps:=2", "--watch")
    assert lines[0]["code"] == "applied"
    assert lines[-1]["result"] == 3


def test_a_paused_task_waits_for_a_person(here: Installation) -> None:
    here.run("submit", "waiter", "--task-id", "waiter-1")
    here.run("pause", "waiter-1", "--reason", "lunch", "--by", "ann")
    assert here.stream("watch", "waiter-1", code=3)[-1]["status"] == "paused"
    assert "to go on: outlive resume waiter-1" in here.run("watch", "waiter-1", code=3).stderr
    waiting = here.run("waiting").stdout
    assert "lunch" in waiting
    assert "outlive resume waiter-1" in waiting
    (task,) = here.ask("waiting")["tasks"]
    assert task["needs"] == ["outlive resume waiter-1"]
    assert here.ask("list", "--status", "paused")["tasks"][0]["task_id"] == "waiter-1"
    assert here.ask("resume", "waiter-1")["ok"]
    here.run("signal", "waiter-1", "go", "hello")
    assert here.run("watch", "waiter-1").stdout == '"hello"\n'
    refused = here.run("cancel", "waiter-1", code=1)
    assert refused.stdout == ""
    assert refused.stderr.startswith("Error: Task waiter-1 succeeded at")
    assert here.ask("cancel", "waiter-1", code=1)["code"] == "too_late"


def test_a_cancelled_task_gives_1(here: Installation) -> None:
    here.run("submit", "waiter", "--task-id", "waiter-2")
    here.run("cancel", "waiter-2", "--reason", "not needed")
    assert here.stream("watch", "waiter-2", code=1)[-1]["status"] == "cancelled"


def test_a_failed_task_gives_1_and_its_traceback(here: Installation) -> None:
    failed = here.run("submit", "boom", "--watch", code=1)
    assert "RuntimeError: a bug of the task" in failed.stderr
    assert 'todo.py", line' in failed.stderr
    assert failed.stdout == ""


def test_what_is_unknown_says_so(here: Installation) -> None:
    refused = here.run("submit", "cuont", code=1)
    assert "No worker has ever registered the kind 'cuont'. Did you mean 'count'?" in refused.stderr
    assert here.ask("submit", "cuont", code=1)["code"] == "unknown_kind"
    for words in (["show", "nobody"], ["why", "nobody"], ["watch", "nobody"]):
        assert here.run(*words, code=1).stderr == "Error: there is no task 'nobody' of tenant 'default'\n"
    assert "no task" in here.ask("show", "nobody", code=1)["message"]
    assert here.ask("list", "--tenant", "other")["tasks"] == []


def test_leaving_a_watch_leaves_the_task_alone(here: Installation) -> None:
    here.run("submit", "waiter", "--task-id", "waiter-3")
    watch = here.start("watch", "waiter-3", "--json")
    assert watch.stdout is not None
    watch.stdout.readline()
    time.sleep(0.2)
    watch.send_signal(signal.SIGINT)
    watch.communicate(timeout=30)
    assert watch.returncode == 130
    assert "detached. To see the rest: outlive watch waiter-3 --from-seq" in here.log
    assert here.ask("show", "waiter-3")["task"]["status"] == "running"


def test_a_killed_worker_is_replaced_and_its_task_goes_on(here: Installation) -> None:
    here.run("submit", "count", "steps:=150", "seconds:=0.05", "--task-id", "long-1")
    until(lambda: here.ask("show", "long-1")["task"]["done"]["count"] > 2)
    killed = here.ask("chaos", "kill", "worker", "long-1")
    assert killed["ok"]
    lines = here.stream("watch", "long-1")
    assert lines[-1]["result"] == 11325
    assert any(line["type"] == "resumed" for line in lines)
    here.wait_for_log(f"worker {killed['pid']} was killed by SIGKILL; started again")
    until(lambda: len(here.ask("health")["workers"]) == WORKERS)


def test_a_killed_actor_goes_on_in_its_worker(here: Installation) -> None:
    here.run("submit", "count", "steps:=150", "seconds:=0.05", "--task-id", "long-2")
    until(lambda: here.ask("show", "long-2")["task"]["done"]["count"] > 2)
    before = here.ask("show", "long-2")["task"]["owner"]
    assert "the actor of task long-2" in here.run("chaos", "kill", "actor", "long-2").stdout
    lines = here.stream("watch", "long-2")
    assert lines[-1]["result"] == 11325
    assert [line["worker"] for line in lines if line["type"] == "resumed"] == [before]
    assert "no worker holds task long-2" in here.run("chaos", "kill", "actor", "long-2", code=1).stderr


@pytest.mark.slow
def test_workers_are_broken_and_calmed(here: Installation) -> None:
    begun = [
        json.loads(line)
        for line in here.run("chaos", "slow", "nats", "--by", "0.01", "--for", "60", "--json").stdout.splitlines()
    ]
    assert [report["ok"] for report in begun] == [True] * WORKERS
    listed = here.run("chaos", "list").stdout.splitlines()
    assert len(listed) == WORKERS
    assert all("the link to NATS is slow (" in line for line in listed)
    assert "there is no task 'nobody'" in here.run("chaos", "lose-answers", "--worker", "nobody", code=1).stderr
    assert here.run("chaos", "calm").stdout.count("1 fault ended") == WORKERS
    assert here.run("chaos", "unfreeze").stdout == "0 workers went on\n"
    (here.folder / "plan.json").write_text('[{"at": 0, "fault": "skew-clock", "target": "all", "for": 0.2}]')
    (told,) = map(json.loads, here.run("chaos", "run", "plan.json", "--json").stdout.splitlines())
    assert (told["ok"], told["entry"]["for"], told["message"].count("the wall clock is wrong for 0.2 s")) == (
        True,
        0.2,
        WORKERS,
    )
    (here.folder / "wrong.json").write_text('[{"at": 0, "fault": "cut-cable"}]')
    assert "Error: wrong.json is no schedule: " in here.run("chaos", "run", "wrong.json", code=1).stderr
    assert "give a FILE, or --random" in here.run("chaos", "run", code=2).stderr


def test_the_installation_is_looked_after(here: Installation) -> None:
    assert here.ask("migrate") == {"applied": []}
    assert here.run("migrate").stdout == "up to date\n"
    health = here.run("health").stdout
    assert "boom count waiter" in health
    doctor = here.ask("doctor")
    assert doctor["ok"], doctor
    assert "Postgres" in here.run("doctor").stdout


def test_dead_letters_are_listed_shown_and_settled(here: Installation) -> None:
    assert here.run("dead-letters").stderr == "no dead letters\n"
    here.publish("outlive.default.cmd.t.submit", b"not JSON")
    until(lambda: bool(here.ask("dead-letters", "list")["dead_letters"]))
    (letter,) = here.ask("dead-letters")["dead_letters"]
    number = str(letter["id"])
    assert "outlive.default.cmd.t.submit" in here.run("dead-letters").stdout
    assert here.ask("dead-letters", "show", number)["body"] == "not JSON"
    assert "not JSON" in here.run("dead-letters", "show", number).stdout
    assert here.ask("dead-letters", "requeue", number)["seq"] > 0
    until(lambda: [one["id"] for one in here.ask("dead-letters")["dead_letters"]] not in ([], [int(number)]))
    (again,) = here.ask("dead-letters")["dead_letters"]
    assert here.ask("dead-letters", "drop", str(again["id"]), "--reason", "a test")["dropped"]
    assert here.ask("dead-letters")["dead_letters"] == []
    assert "no open dead letter" in here.run("dead-letters", "drop", number, code=1).stderr
