"""An analyst of code bases: it outlines the files that matter and writes a report in which every statement has its place.

The report's references (``path:line``) are checked by the tool that writes it, so a model cannot make them up.
"""

import ast
import re
from typing import Final

import msgspec

from outlive.actors.app import App
from outlive.actors.examples import folder, models
from outlive.actors.examples.scripted import Choices, Seen, items
from outlive.protocol.errors import InvalidArguments

SOURCES: Final = (".py", ".md", ".toml", ".sql", ".js", ".ts", ".go", ".rs", ".java", ".c", ".h")
LISTED: Final = 400
OUTLINED: Final = 12
"""Files that the script looks into: the largest ones, and what says what the project is."""

LONG: Final = 60
"""Lines from which on the script calls a function long."""

_REFERENCE: Final = re.compile(r"`([\w./-]+\.\w+):(\d+)`")

app = App("analyst")


class Source(msgspec.Struct, frozen=True):
    """A file, and how many lines it has."""

    path: str
    lines: int


class Symbol(msgspec.Struct, frozen=True):
    """A class or function at the top of a module, or a method: where it begins and how long it is."""

    name: str
    line: int
    lines: int


class Outline(msgspec.Struct, frozen=True):
    """What a file is: its first sentence, its symbols, the modules that it imports, and lines that leave work open."""

    path: str
    lines: int
    about: str
    symbols: list[Symbol] = []
    imports: list[str] = []
    open: list[int] = []


class Analysis(msgspec.Struct, frozen=True):
    """What the analyst found: a summary, and where the report with its references lies."""

    summary: str
    report: str
    references: int


@app.tool(read_only=True, title="list the sources")
def list_sources() -> list[Source]:
    """List the source files of the code base with their number of lines, the largest first; at most 400."""
    found = [Source(name, len(folder.text_of(name).splitlines())) for name in folder.names(*SOURCES) if _is_text(name)]
    return sorted(found, key=lambda source: (-source.lines, source.path))[:LISTED]


def _is_text(name: str) -> bool:
    try:
        folder.text_of(name)
    except InvalidArguments:
        return False
    return True


@app.tool(read_only=True, title="outline {path}")
def outline(path: str) -> Outline:
    """Say what a file is: its first sentence, classes and functions with their lines, imports, open TODOs."""
    text = folder.text_of(path)
    lines = text.splitlines()
    left = [number for number, line in enumerate(lines, 1) if re.search(r"\b(TODO|FIXME|XXX)\b", line)][:20]
    if not path.endswith(".py"):
        about = next((line.strip("# ").strip() for line in lines if line.strip("# ").strip()), "")
        return Outline(path, len(lines), about[:200], open=left)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        return Outline(path, len(lines), f"cannot be parsed: line {error.lineno}", open=left)
    about = (ast.get_docstring(tree) or "").partition("\n")[0][:200]
    return Outline(path, len(lines), about, _symbols(tree), _imports(tree), left)


def _symbols(tree: ast.Module) -> list[Symbol]:
    found: list[Symbol] = []
    for node in tree.body:
        inner = node.body if isinstance(node, ast.ClassDef) else []
        for each in (node, *inner):
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                name = each.name if each is node else f"{getattr(node, 'name', '')}.{each.name}"
                found.append(Symbol(name, each.lineno, (each.end_lineno or each.lineno) - each.lineno + 1))
    return found[:40]


def _imports(tree: ast.Module) -> list[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add("." * node.level + node.module)
    return sorted(found)[:40]


@app.tool(read_only=True, title="read {path} from line {start}")
def read_lines(path: str, start: int = 1) -> str:
    """Read 120 lines of a file, each with its number."""
    lines = folder.text_of(path).splitlines()
    return "\n".join(f"{n}: {line}" for n, line in enumerate(lines[start - 1 : start + 119], max(start, 1)))


@app.tool(read_only=True, title="search {text}")
def search_code(text: str) -> list[str]:
    """Find a text in all sources: path, line and the line itself, at most 60."""
    return folder.search(text, *SOURCES)


@app.tool(idempotent=True, title="write {name}")
def write_report(name: str, markdown: str) -> str:
    """Write the report, a Markdown file; returns its path.

    What it says of the code has its place beside it, as `path:line` in backticks: places that do not exist are refused.
    """
    places = _REFERENCE.findall(markdown)
    if not places:
        raise InvalidArguments("the report has no references: write them as `path:line`")
    wrong = [f"{path}:{line}" for path, line in places if not _exists(path, int(line))]
    if wrong:
        raise InvalidArguments(f"no such places: {', '.join(wrong[:10])}")
    return folder.write_result(name, markdown)


def _exists(path: str, line: int) -> bool:
    try:
        return 1 <= line <= len(folder.text_of(path).splitlines())
    except (InvalidArguments, PermissionError):
        return False


def decide(seen: Seen) -> Choices:
    """Decide as a sensible reader would: list, outline what matters, report."""
    if not seen.plan:
        steps = ("list", "list the sources"), ("read", "outline what matters"), ("report", "write the report")
        return [items(*steps, after={"read": ["list"], "report": ["read"]})]
    if again := [*seen.forgotten("list_sources"), *seen.forgotten("outline")]:
        return again
    listed: list[list[Source]] = seen.values("list_sources", list[Source])
    if not listed:
        return [("list_sources", {"plan_item": "list"})]
    outlines: list[Outline] = seen.values("outline", Outline)
    if not outlines:
        return [("outline", {"path": path, "plan_item": "read"}) for path in _that_matter(listed[0])]
    written = [result for result in seen.of("write_report") if result.ok]
    if not written:
        markdown = report(listed[0], outlines)
        return [("write_report", {"name": "analysis.md", "markdown": markdown, "plan_item": "report"})]
    places = len(_REFERENCE.findall(report(listed[0], outlines)))
    return [("finish", {"output": {"summary": _summary(listed[0]), "report": written[-1].text, "references": places}})]


def _that_matter(sources: list[Source]) -> list[str]:
    telling = [each.path for each in sources if each.path in {"README.md", "pyproject.toml"}]
    code = [each.path for each in sources if not each.path.endswith((".md", ".toml")) and each.lines]
    return [*telling, *code][:OUTLINED]


def _summary(sources: list[Source]) -> str:
    lines = sum(source.lines for source in sources)
    return (
        f"{len(sources)} source files, {lines:,} lines; the largest is {sources[0].path}" if sources else "no sources"
    )


def _is_long(symbol: Symbol) -> bool:
    """True for a long function or method; a class may be as long as it likes."""
    return symbol.lines >= LONG and ("." in symbol.name or symbol.name.lstrip("_")[:1].islower())


def report(sources: list[Source], outlines: list[Outline]) -> str:
    """Write the script's report."""
    places = [(symbol, each.path) for each in outlines for symbol in each.symbols]
    long = sorted((place for place in places if _is_long(place[0])), key=lambda place: -place[0].lines)
    used = sorted({name for each in outlines for name in each.imports})
    parts = [f"# Analysis\n\n{_summary(sources)}.", "## The files that matter\n"]
    parts += [f"- `{each.path}:1` ({each.lines} lines): {each.about or 'says nothing of itself'}" for each in outlines]
    parts += ["\n## Where things are\n"]
    parts += [f"- {symbol.name}: `{path}:{symbol.line}`" for symbol, path in places if "." not in symbol.name]
    parts += [f"\n## Functions of {LONG} lines and more\n"]
    parts += [f"- {symbol.name}, {symbol.lines} lines: `{path}:{symbol.line}`" for symbol, path in long] or ["None."]
    parts += ["\n## Work that is left open\n"]
    parts += [f"- `{each.path}:{line}`" for each in outlines for line in each.open] or ["None."]
    parts += [f"\n## What it imports\n\n{', '.join(used) or 'Nothing.'}\n"]
    return "\n".join(parts)


analyst = app.agent(
    "analyst",
    instructions=(
        "You analyse a code base for an engineer who is new to it: what it is, how it is built, where to begin, what is "
        "risky. List the sources, outline the ones that matter side by side, read lines where an outline does not "
        "suffice, write one report with write_report (analysis.md), and finish."
    ),
    tools=[list_sources, outline, read_lines, search_code, write_report],
    output=Analysis,
    description="Analyses the code base in the worker's folder, and writes a report.",
    context_tokens=48_000,
    **models.chosen(decide),
)
GOAL: Final = "Analyse this code base and write a report for a new engineer."
