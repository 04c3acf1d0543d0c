"""The demo: its screens, and the whole of it with real kills, a lost answer and a person."""

import contextlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import psutil
import pytest
from rich.console import Console

from outlive.actors.audit.screen import (
    Answered,
    Crash,
    End,
    Found,
    JsonScreen,
    PeopleScreen,
    Question,
    Row,
    Screen,
    Unanswered,
)
from outlive.protocol.events import NoteEvent
from tests.actors.postbox import postbox
from tests.audit.made_up import SitePackages

CRASH = Crash(killed=4711, successor=4712, at="at 31 of 94 packages", after=0.0601, kept=31, repeated=1)
TOLD = [
    CRASH,
    Found(tool="open_ticket", ticket=7),
    Question(message="send_mail(...) waits for your yes"),
    Answered(message="you said yes"),
]
ROWS = [
    Row(what="tickets", said=7, counted=7, where="the tracker's database"),
    Row(what="steps repeated", said=1, counted=None, where="progress events"),
]
END = End(ok=True, verdict="the counts agree", seconds=12.34, rows=ROWS, reports=["/somewhere/REPORT.md"])
DEMO = (
    "import asyncio, sys; from outlive.actors.audit.demo import Options, demo;"
    "given = dict(word.partition('=')[::2] for word in sys.argv[2:]);"
    "options = Options(as_json=True, path=sys.argv[1] or None, **{name: to or True for name, to in given.items()});"
    "sys.exit(asyncio.run(demo(options)))"
)


def play(screen: Screen) -> None:
    """Show an audit of 40 packages."""
    screen.doing("starting Postgres")
    for n in range(1, 41):
        at = datetime(2030, 1, 1, tzinfo=UTC)
        message = f"read {n} of 40 packages"
        event = NoteEvent(seq=n, task_id="t", tenant="default", at=at, message=message, step_id="1", done=n, total=40)
        screen.event(event)
    for told in TOLD:
        screen.tell(told)
    screen.end(END)


def test_without_a_terminal_there_are_plain_lines() -> None:
    out = io.StringIO()
    with PeopleScreen(Console(file=out, width=100)) as screen:
        play(screen)
    text = out.getvalue()
    assert "\x1b" not in text
    assert text.startswith("starting Postgres\nread 4 of 40 packages\nread 8 of 40 packages\n")
    sentences = (
        "worker 4711 killed at 31 of 94 packages; worker 4712 took over after 0.06 s: "
        "31 steps kept, 1 repeated (read-only)\n"
        "open_ticket: unknown. Asked the tracker: ticket 7 exists. Not sent again.\n"
        "send_mail(...) waits for your yes\n"
        "you said yes\n"
    )
    assert sentences in text
    assert "counted outside" in text
    assert "/somewhere/REPORT.md\nthe counts agree\n" in text
    assert len(text.splitlines()) < 30


def test_in_a_terminal_a_bar_moves() -> None:
    out = io.StringIO()
    with PeopleScreen(Console(file=out, width=100, force_terminal=True)) as screen:
        play(screen)
    assert "read 40 of 40 packages" in out.getvalue()


def test_json_is_one_object_per_line() -> None:
    out = io.StringIO()
    play(JsonScreen(out))
    lines = [msgspec.json.decode(line) for line in out.getvalue().splitlines()]
    assert [line["type"] for line in lines] == [
        "doing",
        *["note"] * 40,
        "crash",
        "found",
        "question",
        "answered",
        "end",
    ]
    assert lines[-1]["ok"] is True


def test_a_crash_may_repeat_nothing() -> None:
    assert str(msgspec.structs.replace(CRASH, repeated=0)).endswith(": 31 steps kept, none repeated")


async def test_nobody_is_asked_without_a_terminal() -> None:
    with PeopleScreen(Console(file=io.StringIO())) as screen:
        assert await screen.ask("Send it?") is None
    assert await JsonScreen(io.StringIO()).ask("Send it?") is None


def test_the_command_is_told_where_nobody_answers() -> None:
    ended = str(Unanswered(commands=["outlive approve t 4"], kept=False))
    assert "\n  outlive approve t 4\n" in ended
    assert "--yes" in ended
    assert "--keep" in ended
    kept = str(Unanswered(commands=["S=1 outlive up", "S=1 outlive approve t 4"], kept=True))
    assert kept.endswith("\n  S=1 outlive up\n  S=1 outlive approve t 4")


class Running(NamedTuple):
    """A demo that runs, with its files under a folder."""

    folder: Path
    process: "subprocess.Popen[str]"

    def lines(self, *, status: int) -> list[dict[str, Any]]:
        """Wait for its end and return what it wrote."""
        out, errors = self.process.communicate(timeout=100)
        assert self.process.returncode == status, errors
        return [msgspec.json.decode(line) for line in out.splitlines()]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """A function that starts a demo, of which no process may be left afterwards."""
    tmp_path.chmod(0o755)
    with contextlib.ExitStack() as stack:

        def starting(*options: str, path: str = "", **environment: str) -> Running:
            process = subprocess.Popen(
                [sys.executable, "-c", DEMO, path, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, "TMPDIR": str(tmp_path), **environment},
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return Running(tmp_path, process)

        yield starting
    left = [other for other in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(other.info["cmdline"])]
    assert psutil.wait_procs(left, timeout=30)[1] == []


@pytest.fixture
def site(tmp_path: Path) -> str:
    """Packages with seven findings."""
    made_up = SitePackages(tmp_path / "site")
    for n in range(7):
        made_up.add(f"silent{n}")
    return str(made_up.folder)


def said_and_counted(end: dict[str, Any]) -> dict[str, tuple[int, int | None]]:
    """The end table."""
    return {row["what"]: (row["said"], row["counted"]) for row in end["rows"]}


def test_two_crashes_a_lost_answer_and_a_person_lose_nothing_and_double_nothing(start: Callable[..., Running]) -> None:
    demo = start("yes")
    lines = demo.lines(status=0)
    first, second = (line for line in lines if line["type"] == "crash")
    (found,) = (line for line in lines if line["type"] == "found")
    (question,) = (line for line in lines if line["type"] == "question")
    end = lines[-1]
    assert end["ok"] is True
    assert end["seconds"] < 60
    numbers = [line["seq"] for line in lines if "seq" in line]
    assert numbers == list(range(1, len(numbers) + 1))
    assert first["at"].endswith("packages")
    assert second["at"] == "at ticket 2, which was made and not answered"
    assert len({first["killed"], first["successor"], second["successor"]}) == 3
    assert first["successor"] == second["killed"]
    assert second["repeated"] == 0
    assert (found["tool"], found["ticket"]) == ("open_ticket", 2)
    assert 'a mail to licences@example.com, subject "Licence audit: ' in question["message"]
    counts = said_and_counted(end)
    assert counts["findings"] == counts["tickets"]
    assert (counts["mails"], counts["crashes"]) == ((1, 1), (2, 2))
    assert [Path(path).is_file() for path in end["reports"]] == [True] * 3
    assert not list(demo.folder.glob("*/servers"))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [True, False])
def test_where_nobody_can_be_asked_nothing_is_sent(start: Callable[..., Running], site: str, *, keep: bool) -> None:
    demo = start(*["keep"] * keep, path=site)
    last = demo.lines(status=3)[-1]
    assert last["type"] == "unanswered"
    assert "outlive approve " in last["commands"][-1]
    assert not list(demo.folder.glob("*/outbox"))
    servers = [str(path) for path in demo.folder.glob("*/servers")]
    assert len(servers) == keep
    assert [f"OUTLIVE_STATE_DIR={path} outlive up" for path in servers] == last["commands"][:-1]


@pytest.mark.slow
def test_the_report_goes_to_a_mail_server_where_there_is_one(start: Callable[..., Running], site: str) -> None:
    with postbox() as box:
        demo = start("yes", "to=you@example.com", path=site, OUTLIVE_SMTP_URL=box.smtp)
        lines = demo.lines(status=0)
    host = box.smtp.removeprefix("smtp://")
    (question,) = (line for line in lines if line["type"] == "question")
    assert "a mail to you@example.com, subject" in question["message"] and f"by {host};" in question["message"]
    (taken,) = box.mails
    assert (taken["To"], box.recipients) == ("you@example.com", ["you@example.com"])
    assert {"what": "mails", "said": 1, "counted": None, "where": host} in lines[-1]["rows"]
    assert not list(demo.folder.glob("*/outbox"))


@pytest.mark.slow
def test_a_plain_loop_opens_eight_tickets_for_seven_findings(start: Callable[..., Running], site: str) -> None:
    end = start("plain", path=site).lines(status=0)[-1]
    assert said_and_counted(end) == {"findings": (7, None), "tickets": (7, 8)}
    assert end["ok"] is False
    assert end["verdict"].startswith("8 tickets for 7 findings")


@pytest.mark.parametrize("how", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_ending_the_demo_leaves_no_process(start: Callable[..., Running], how: signal.Signals) -> None:
    process = start().process
    assert process.stdout is not None
    assert any('"note"' in line for line in process.stdout)
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 6  # three workers, the tracker, two servers
    process.send_signal(how)
    process.wait(timeout=60)
    assert psutil.wait_procs(children, timeout=30)[1] == []
