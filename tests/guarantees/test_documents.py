"""The READMEs say what is: links lead somewhere, commands, settings, failpoints and names exist, JSON decodes."""

import ast
import importlib
import itertools
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, get_args, get_origin

import click
import msgspec
import pytest

from outlive.actors.console.cli import cli
from outlive.actors.testing import Server
from outlive.infra import failpoints, settings
from outlive.infra.doctor import diagnose
from outlive.infra.migrate import known
from outlive.infra.settings import Settings

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("[a-z]*/README.md")), *sorted(ROOT.glob("tests/*/README.md")))
}
LINK: Final = re.compile(r"\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE: Final = re.compile(r"`([^`\n]+)`")
WIDTH: Final = 130

every_document = pytest.mark.parametrize("name", DOCUMENTS)


def _text(name: str) -> str:
    return DOCUMENTS[name].read_text("utf-8")


def _blocks(name: str, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(_text(name)) if language in languages]


def _anchors(path: Path) -> set[str]:
    """The anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text("utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_documents_are_all_here() -> None:
    assert {
        "README.md",
        "protocol/README.md",
        "infra/README.md",
        "actors/README.md",
        "tests/README.md",
    } <= DOCUMENTS.keys()


@every_document
def test_every_link_leads_somewhere(name: str) -> None:
    for link in LINK.findall(FENCE.sub("", _text(name))):
        target, _, anchor = link.partition("#")
        assert "://" not in target, f"{link}: what it says may change without us"
        path = (DOCUMENTS[name].parent / target).resolve() if target else DOCUMENTS[name]
        assert path.is_relative_to(ROOT), link
        assert path.exists(), link
        assert not anchor or anchor in _anchors(path), link


@every_document
def test_prose_fits_a_screen(name: str) -> None:
    prose = LINK.sub("]", FENCE.sub("", _text(name))).splitlines()
    assert [line for line in prose if len(line) > WIDTH and not line.startswith("|")] == []


@every_document
def test_tables_have_as_many_cells_as_columns(name: str) -> None:
    for table in re.findall(r"(?:^\|.*\|$\n?)+", FENCE.sub("", _text(name)), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(cells) == 1, table


# --- commands


def _commands(name: str) -> Iterator[str]:
    """Every ``outlive ...`` that the document shows: in shell blocks, consoles and in the text."""
    for block in _blocks(name, "sh", "console", ""):
        for line in block.splitlines():
            for part in re.split(r"&&|\|\||&|;", line.removeprefix("$ ").partition(" #")[0]):
                if found := re.search(r"(?:^|\s)(outlive( .*)?)$", part.strip()):
                    yield found[1]
    for text in INLINE.findall(FENCE.sub("", _text(name))):
        if text.startswith("outlive ") or re.match(r"OUTLIVE_\w+=\S+ .*outlive ", text):
            yield text[text.index("outlive ") :]


def _check_command(words: list[str]) -> None:
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group) and words:
        below = command.get_command(context, words[0])
        if below is None:
            assert command is not cli, f"there is no command {words[0]}"
            break
        command, words = below, words[1:]
    options = {option for one in (cli, command) for each in one.params for option in (*each.opts, *each.secondary_opts)}
    unknown = [word for word in words if word.startswith("-") and word not in {*options, "--help"}]
    assert not unknown, f"{command.name} has no {unknown}"


@every_document
def test_every_command_exists(name: str) -> None:
    for text in _commands(name):
        words = shlex.split(text.replace("|", " ").replace("...", ""))[1:]
        _check_command([word for word in words if word not in {">", "<"}])


def test_the_help_shows_every_command_that_the_first_screen_needs() -> None:
    shown = {shlex.split(text)[1] for text in _commands("README.md")}
    assert {"demo", "up", "submit", "chaos", "run", "list", "show", "why", "doctor", "waiting"} <= shown


# --- settings, variables, failpoints


def _shown(default: ast.expr | None, value: Any) -> str:
    """A default as a person reads it."""
    if value is None or default is None:
        return ""
    if isinstance(default, ast.BinOp):
        return f"{value // 1024 // 1024} MiB" if value % (1024 * 1024) == 0 else f"{value // 1024} KiB"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def settings_table() -> str:
    """The table of all settings, made from the struct and the texts at its fields."""
    tree = ast.parse(Path(settings.__file__).read_text("utf-8"))
    (body,) = [node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Settings"]
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(field.target, ast.Name):
            assert isinstance(text.value, ast.Constant)
            meaning = " ".join(str(text.value.value).split()).replace("``", "`")
            shown = _shown(field.value, getattr(Settings(), field.target.id))
            rows.append(f"| `OUTLIVE_{field.target.id.upper()}` | {shown} | {meaning} |")
    return "\n".join(rows)


def failpoints_table() -> str:
    """The table of all failpoints."""
    return "\n".join(f"| `{name}` | {meaning} |" for name, meaning in failpoints.NAMES.items())


def test_the_table_of_settings_is_that_of_the_struct() -> None:
    table = settings_table()
    assert len(table.splitlines()) == len(msgspec.structs.fields(Settings)) + 2
    assert f"\n{table}\n\n<!-- end of settings -->" in _text("infra/README.md"), f"it must be:\n{table}"


def test_the_table_of_failpoints_is_complete() -> None:
    assert f"|---|---|\n{failpoints_table()}\n" in _text("tests/README.md"), f"it must be:\n{failpoints_table()}"


def test_every_promise_is_listed() -> None:
    linked = {target for target in LINK.findall(_text("tests/README.md")) if target.startswith("guarantees/")}
    promises = {f"guarantees/{path.name}" for path in (ROOT / "tests/guarantees").glob("test_*.py")}
    assert promises - linked == set(), "give it a line in the table of tests/README.md"


def _sources() -> Iterable[Path]:
    for folder in ("actors", "infra", "protocol"):
        yield from (ROOT / folder).rglob("*.py")
    yield from (ROOT / "compose.yaml", ROOT / "tests/conftest.py")


@every_document
def test_every_variable_exists(name: str) -> None:
    known_words = {f"OUTLIVE_{field.name.upper()}" for field in msgspec.structs.fields(Settings)}
    known_words |= {"OUTLIVE_COMMANDS", "OUTLIVE_PROGRESS"}
    for path in _sources():
        known_words |= set(re.findall(r"OUTLIVE_[A-Z_]+[A-Z]", path.read_text("utf-8")))
    shown = set(re.findall(r"(?<![A-Z_])OUTLIVE_[A-Z_]+[A-Z]", _text(name)))
    assert shown <= known_words


# --- Python and SQL


@every_document
def test_python_is_python_and_what_it_imports_exists(name: str) -> None:
    for block in _blocks(name, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("outlive"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_the_views_are_all_shown() -> None:
    views = {view for step in known() for view in re.findall(r"create view (outlive\.\w+)", step.text)}
    shown = set(re.findall(r"^\| `(outlive\.\w+)` \|", _text("infra/README.md"), re.MULTILINE))
    assert shown == views


async def test_queries_of_the_readme_run(shared: Server) -> None:
    from tests.chaos.harness import fetch

    (block,) = _blocks("infra/README.md", "sql")
    for statement in filter(None, map(str.strip, block.split(";"))):
        await fetch(shared, statement)


async def test_every_check_of_the_doctor_is_explained(shared: Server) -> None:
    checks = {finding.name for finding in await diagnose(shared.settings)}
    section = _text("infra/README.md").partition("\n## Looking\n")[2].partition("\n## ")[0]
    shown = {word for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for word in INLINE.findall(row)}
    assert checks <= shown


def test_options_of_tools_and_tasks_are_those_of_the_code() -> None:
    """What the text calls a parameter of a decorator is one."""
    from outlive.actors.tool import ToolOptions

    used = set(re.findall(r"@app\.tool\(([^)]*)\)", " ".join(map(_text, DOCUMENTS))))
    options = {option for call in used for option in re.findall(r"(\w+)=", call)}
    assert options <= set(ToolOptions.__annotations__)
    assert get_origin(ToolOptions) is None
    assert not get_args(ToolOptions)
