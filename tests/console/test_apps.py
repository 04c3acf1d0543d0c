"""The app that a command names."""

import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from outlive.actors.app import App
from outlive.actors.console import apps
from outlive.actors.signature import RegistrationError


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    path, modules = [*sys.path], {*sys.modules}
    yield
    sys.path[:] = path
    for name in {*sys.modules} - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def test_an_app_is_found_in_the_current_folder() -> None:
    Path("jobs1.py").write_text("from outlive.actors import App\napp = App('a')\nother = App('b')\n")
    assert isinstance(apps.load("jobs1"), App)
    assert apps.load("jobs1:other").name == "b"


def test_an_app_is_found_in_a_package() -> None:
    Path("jobs2").mkdir()
    Path("jobs2/__init__.py").touch()
    Path("jobs2/tasks.py").write_text("from outlive.actors import App\napp = App('a')\n")
    assert apps.load("jobs2.tasks:app").name == "a"
    assert apps.find("jobs2.tasks:app") == Path.cwd() / "jobs2/__init__.py"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("jbos3:app", r"there is no module 'jbos3' here .*Did you mean jobs3\?"),
        ("jobs3.py", "Write: jobs3:app"),
        ("./pkg/jobs3.py", "Write: pkg.jobs3:app"),
        ("jobs3.missing:app", "there is no module 'jobs3.missing'"),
        ("jobs3:main", r"jobs3 has no app named 'main'. It has: jobs3:service"),
    ],
)
def test_a_wrong_app_is_a_usage_error(spec: str, said: str) -> None:
    Path("jobs3.py").write_text("from outlive.actors import App\nservice = App('a')\n")
    with pytest.raises(click.UsageError, match=said):
        apps.load(spec)


def test_a_module_without_an_app_says_how_to_make_one() -> None:
    Path("jobs4.py").touch()
    with pytest.raises(click.UsageError, match=r'app = App\("..."\)'):
        apps.load("jobs4:app")


def test_a_refused_declaration_tells_its_place() -> None:
    Path("jobs5.py").write_text(
        "from outlive.actors import App\napp = App('a')\n@app.tool(read_only=True)\ndef f(x) -> int: ...\n"
    )
    with pytest.raises(RegistrationError, match=r"jobs5.py:3: tool 'f'"):
        apps.load("jobs5")


def test_an_app_that_cannot_be_imported_shows_its_own_traceback_only() -> None:
    Path("jobs6.py").write_text("def f():\n    return 1 / 0\nf()\n")
    with pytest.raises(click.ClickException) as caught:
        apps.load("jobs6")
    assert "importlib" not in caught.value.message
    assert caught.value.message.startswith("jobs6 cannot be imported:\n  File ")
    assert caught.value.message.endswith("ZeroDivisionError: division by zero")
