"""The READMEs say what is: links lead somewhere, names exist, promises have tests and conditions, figures a result."""

import ast
import importlib
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, get_args, get_origin

import click
import msgspec
import pytest

from outlive.actors.console.cli import cli
from outlive.actors.testing import Server
from outlive.infra import failpoints
from outlive.infra.doctor import diagnose
from outlive.infra.migrate import known
from outlive.infra.settings import Settings
from tests.chaos.harness import fetch
from tests.guarantees.defeats import limits
from tests.guarantees.documents import (
    DOCUMENTS,
    FENCE,
    GENERATED,
    INLINE,
    LINK,
    ROOT,
    blocks,
    generated,
    linked,
    prose,
    source,
    tables,
)
from tests.guarantees.generated import PARTS

WIDTH: Final = 130

every_document = pytest.mark.parametrize("name", DOCUMENTS)


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
    for _, link in LINK.findall(prose(name)):
        target, _, anchor = link.partition("#")
        assert "://" not in target, f"{link}: what it says may change without us"
        path = (DOCUMENTS[name].parent / target).resolve() if target else DOCUMENTS[name]
        assert path.is_relative_to(ROOT), link
        assert path.exists(), link
        assert not anchor or anchor in _anchors(path), link


@every_document
def test_prose_fits_a_screen(name: str) -> None:
    lines = LINK.sub(r"[\1]", prose(name)).splitlines()
    assert [line for line in lines if len(line) > WIDTH and not line.startswith("|")] == []


@every_document
def test_tables_have_as_many_cells_as_columns(name: str) -> None:
    for table in re.findall(r"(?:^\|.*\|$\n?)+", prose(name), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.strip().splitlines()}
        assert len(cells) == 1, table


# --- commands


def _commands(name: str) -> Iterator[str]:
    """Every ``outlive ...`` that the document shows: in shell blocks, consoles and in the text."""
    for block in blocks(name, "sh", "console", ""):
        for line in block.splitlines():
            for part in re.split(r"&&|\|\||&|;", line.removeprefix("$ ").partition(" #")[0]):
                if found := re.search(r"(?:^|\s)(outlive( .*)?)$", part.strip()):
                    yield found[1]
    for text in INLINE.findall(prose(name)):
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


# --- what is made: settings, failpoints, figures, limits


@pytest.mark.parametrize(("document", "part"), PARTS)
def test_what_is_made_is_as_it_would_be_made_now(document: str, part: str) -> None:
    assert generated(document)[part] == PARTS[document, part](), "run python -m tests.guarantees.generated"


def test_the_table_of_settings_has_them_all() -> None:
    assert len(PARTS["infra/README.md", "settings"]().splitlines()) == len(msgspec.structs.fields(Settings)) + 2


# --- promises, figures, limits


@every_document
def test_every_promise_leads_to_its_test(name: str) -> None:
    """What is not tested is said to be so."""
    for table in tables(name):
        for cell in table.column("shown by") if "shown by" in table.head else []:
            links = list(linked(name, cell))
            assert links, f"nothing shows it: {cell}"
            for shown, path in links:
                tested = path.is_relative_to(ROOT / "tests") and path.name.startswith("test_")
                assert tested or shown.startswith("not tested;"), f"{path} is no test"
                if shown.startswith("test_"):
                    assert re.search(rf"def {shown}\(", path.read_text("utf-8")), f"{path} has no {shown}"


def test_no_promise_is_without_its_condition() -> None:
    (promises,) = [table for table in tables("README.md") if "what holds" in table.head]
    assert [row for row in promises.rows if not row[promises.head.index("on which condition")]] == []


def test_the_first_page_has_no_absolute_word() -> None:
    """What holds has a condition; these words have none."""
    written = re.sub(r"<!--.*?-->", "", LINK.sub(r"\1", prose("README.md")))
    assert re.findall(r"(?i)\b(?:never|always|exactly[ -]once|guarantee\w*|impossible)\b", written) == []


@pytest.mark.parametrize("name", ["README.md", "actors/README.md", "infra/README.md", "protocol/README.md"])
def test_every_measured_figure_comes_from_a_result(name: str) -> None:
    """Written by hand, a figure is a memory; the generated parts read the committed results."""
    written = GENERATED.sub("", prose(name))
    assert re.findall(r"\d ?(?:ms|µs)\b|\w/s\b|\b(?:median|p50|p99)\b", written) == []


def test_the_table_of_crash_semantics_knows_every_failpoint() -> None:
    (crashes,) = [table for table in tables("actors/README.md") if "where it dies" in table.head]
    cells = crashes.column("killed there")
    points = [point for cell in cells for point in INLINE.findall(cell)]
    assert sorted(points) == sorted(failpoints.NAMES)
    assert [cell for cell in cells if not INLINE.findall(cell) and not list(linked("actors/README.md", cell))] == []


def test_a_worker_is_killed_at_every_failpoint() -> None:
    from tests.guarantees import test_whatever_moment_a_worker_dies_nothing_is_lost_or_repeated as moments

    assert {*moments.STEPS, *moments.PERSONS} == set(failpoints.NAMES)


def test_what_defeats_us_is_shown_where_it_can_be() -> None:
    found = limits()
    assert len({limit.what for limit in found}) == len(found) >= 10
    assert sum(limit.test is not None for limit in found) > len(found) / 2


def test_every_promise_is_listed() -> None:
    listed = {target for _, target in LINK.findall(source("tests/README.md")) if target.startswith("guarantees/")}
    promises = {f"guarantees/{path.name}" for path in (ROOT / "tests/guarantees").glob("test_*.py")}
    assert promises - listed == set(), "give it a line in the table of tests/README.md"


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
    shown = set(re.findall(r"(?<![A-Z_])OUTLIVE_[A-Z_]+[A-Z]", source(name)))
    assert shown <= known_words


# --- Python and SQL


@every_document
def test_python_is_python_and_what_it_imports_exists(name: str) -> None:
    for block in blocks(name, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("outlive"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{node.module}.{alias.name}"


def test_the_views_are_all_shown() -> None:
    views = {view for step in known() for view in re.findall(r"create view (outlive\.\w+)", step.text)}
    shown = set(re.findall(r"^\| `(outlive\.\w+)` \|", source("infra/README.md"), re.MULTILINE))
    assert shown == views


def test_the_tables_are_all_shown() -> None:
    tables = {table for step in known() for table in re.findall(r"create table (?:outlive_store\.)?(\w+)", step.text)}
    section = source("infra/README.md").partition("\n## Growth\n")[2]
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.MULTILINE)
    assert {table for row in rows for table in INLINE.findall(row)} == tables


def test_the_map_shows_every_module() -> None:
    folder = ROOT / "actors/outlive/actors"
    section = source("actors/README.md").partition("\n## Map of this folder\n")[2]
    modules = {path.stem for path in (*folder.glob("*.py"), *folder.glob("agents/*.py"))} | {
        path.parent.name for path in folder.glob("*/__init__.py")
    }
    assert {module for module in modules if not module.startswith("__")} <= set(INLINE.findall(section))


async def test_queries_of_the_readme_run(shared: Server) -> None:
    (block,) = blocks("infra/README.md", "sql")
    for statement in filter(None, map(str.strip, block.split(";"))):
        await fetch(shared, statement)


async def test_every_check_of_the_doctor_is_explained(shared: Server) -> None:
    checks = {finding.name for finding in await diagnose(shared.settings)}
    section = source("infra/README.md").partition("\n## Looking\n")[2].partition("\n## ")[0]
    shown = {word for row in re.findall(r"^\| (`.*?) \|", section, re.MULTILINE) for word in INLINE.findall(row)}
    assert checks <= shown


def test_options_of_tools_and_tasks_are_those_of_the_code() -> None:
    """What the text calls a parameter of a decorator is one."""
    from outlive.actors.tool import ToolOptions

    used = set(re.findall(r"@app\.tool\(([^)]*)\)", " ".join(map(source, DOCUMENTS))))
    options = {option for call in used for option in re.findall(r"(\w+)=", call)}
    assert options <= set(ToolOptions.__annotations__)
    assert get_origin(ToolOptions) is None
    assert not get_args(ToolOptions)
