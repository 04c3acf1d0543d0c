"""The command line as a whole: its help, its errors, its exit codes."""

import importlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from outlive.actors.console import interrupt
from outlive.actors.console.cli import SECTIONS, cli
from outlive.infra.embedded import NoServers


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OUTLIVE_NATS_URL", "OUTLIVE_POSTGRES_DSN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTLIVE_STATE_DIR", str(tmp_path / "state"))
    path = [*sys.path]
    yield
    sys.path[:] = path


COMMANDS = [(name, entry) for section in SECTIONS.values() for name, entry in section.items()]


@pytest.mark.parametrize(("name", "entry"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_the_help_says_what_the_command_says(name: str, entry: tuple[str, str]) -> None:
    target, text = entry
    module, _, attribute = target.partition(":")
    command = getattr(importlib.import_module(f"outlive.actors.console.{module}"), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name
    assert (command.help or "").partition("\n")[0].startswith(text.rstrip("."))


def test_help_names_every_command_and_imports_none() -> None:
    shown = CliRunner().invoke(cli, ["--help"])
    assert shown.exit_code == 0
    assert all(f"\n  {name} " in shown.stdout for name, _ in COMMANDS)


def test_the_command_line_starts_at_once() -> None:
    code = "import sys, outlive.actors.console.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "asyncpg", "nats", "rich", "structlog"} & set(loaded)


def test_a_wrong_command_is_a_usage_error() -> None:
    result = CliRunner().invoke(cli, ["submti"])
    assert result.exit_code == 2
    assert "No such command 'submti'. Did you mean 'submit'?" in result.stderr


@pytest.mark.parametrize("words", [["list"], ["why", "t"], ["submit", "collect"], ["health"], ["doctor"], ["migrate"]])
def test_no_command_but_the_starting_ones_starts_servers(words: list[str], tmp_path: Path) -> None:
    began = time.monotonic()
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith(f"Error: no servers: nothing runs in {tmp_path}/state. Start them in another")
    assert "outlive up" in result.stderr
    assert time.monotonic() - began < 20
    assert not (tmp_path / "state").exists()


def test_a_worker_without_servers_says_how_to_start_them() -> None:
    Path("lonely.py").write_text("from outlive.actors import App\napp = App('lonely')\n")
    result = CliRunner().invoke(cli, ["worker", "lonely"])
    assert result.exit_code == 1
    assert "outlive up" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_invalid_setting_is_one_line() -> None:
    result = CliRunner().invoke(cli, ["list", "--tenant", "a b"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: OUTLIVE_TENANT: tenant 'a b' is not allowed")


@pytest.mark.parametrize("words", [["--tenant", "a b", "list"], ["list", "--tenant", "a b"]])
def test_shared_options_stand_before_or_behind_the_command(words: list[str]) -> None:
    assert "a b" in CliRunner().invoke(cli, words).stderr


@pytest.mark.parametrize(
    "words",
    [
        ["submit"],
        ["submit", "k", "x"],
        ["list", "--status", "odd"],
        ["up", "nowhere:app"],
        ["watch"],
        ["run", "todo:app"],
    ],
)
def test_usage_errors_give_2(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""


def test_one_url_alone_is_not_enough() -> None:
    result = CliRunner().invoke(cli, ["up", "--nats-url", "nats://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "set both OUTLIVE_NATS_URL and OUTLIVE_POSTGRES_DSN" in result.stderr


def test_servers_that_are_not_there_are_one_line() -> None:
    words = ["--nats-url", "nats://127.0.0.1:1", "--postgres-dsn", "postgresql://127.0.0.1:1/x"]
    for command in ("migrate", "up"):
        result = CliRunner().invoke(cli, [command, *(words[2:] if command == "migrate" else words)])
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: no connection to Postgres at "), result.stderr


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("outlive.infra.settings.Settings.load", broken)
    assert isinstance(CliRunner().invoke(cli, ["list"]).exception, ZeroDivisionError)


def test_ctrl_c_ends_a_command_that_has_nothing_to_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("OUTLIVE_NATS_URL", f"nats://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setenv("OUTLIVE_POSTGRES_DSN", "postgresql://127.0.0.1/nobody")
        asking = subprocess.Popen([sys.executable, "-m", "outlive", "list"], stderr=subprocess.PIPE, text=True)
        silent.accept()[0].close()
        asking.send_signal(signal.SIGINT)
        assert asking.communicate(timeout=40)[1] == ""
        assert asking.returncode == -signal.SIGINT  # a shell shows 130


def test_ctrl_c_is_heard_while_python_imports() -> None:
    asked = "import signal, outlive.__main__; print(signal.getsignal(signal.SIGINT) is signal.SIG_DFL)"
    loaded = "import sys; print([name for name in sys.modules if name.startswith('outlive.')])"
    done = subprocess.run([sys.executable, "-c", f"{asked}; {loaded}"], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n['outlive.__main__']\n"


def test_a_command_leaves_the_signals_of_another_program_as_they_were() -> None:
    async def command(_: interrupt.Interrupt) -> int:
        return 3

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    assert interrupt.run(command) == 3
    assert [signal.getsignal(number) for number in numbers] == before


def test_errors_within_groups_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(**_: object) -> None:
        raise ExceptionGroup("several", [ExceptionGroup("inner", [NoServers("no servers here")])])

    monkeypatch.setattr("outlive.infra.settings.Settings.load", broken)
    result = CliRunner().invoke(cli, ["list"])
    assert (result.exit_code, result.stderr) == (1, "Error: no servers here\n")


def test_the_version_is_that_of_the_package() -> None:
    assert CliRunner().invoke(cli, ["--version"]).stdout.startswith("outlive 0.")
