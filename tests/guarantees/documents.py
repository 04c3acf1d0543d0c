"""The READMEs as tests read them: blocks of code, links, tables."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
DOCUMENTS: Final = {
    str(path.relative_to(ROOT)): path
    for path in (ROOT / "README.md", *sorted(ROOT.glob("[a-z]*/README.md")), *sorted(ROOT.glob("tests/*/README.md")))
}
LINK: Final = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
FENCE: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE: Final = re.compile(r"`([^`\n]+)`")
GENERATED: Final = re.compile(r"<!-- ([^:>]+): made by [^>]* -->\n\n(.*?)\n\n<!-- end of \1 -->", re.DOTALL)
_CELL: Final = re.compile(r"(?<!\\)\|")


class Table(NamedTuple):
    """A table of a document: the heads of its columns, and its rows."""

    head: list[str]
    rows: list[list[str]]

    def column(self, name: str) -> list[str]:
        """The cells below a head."""
        return [row[self.head.index(name)] for row in self.rows]


def source(name: str) -> str:
    """The document as it is."""
    return DOCUMENTS[name].read_text("utf-8")


def prose(name: str) -> str:
    """The document without its blocks of code."""
    return FENCE.sub("", source(name))


def blocks(name: str, *languages: str) -> list[str]:
    """The document's blocks of code in these languages."""
    return [body for language, body in FENCE.findall(source(name)) if language in languages]


def tables(name: str) -> list[Table]:
    """All tables of a document."""
    return tables_of(prose(name))


def tables_of(prose: str) -> list[Table]:
    """All tables of a text without code."""
    found: list[Table] = []
    for table in re.findall(r"(?:^\|.*\|$\n?)+", prose, re.MULTILINE):
        head, _, *rows = [[cell.strip() for cell in _CELL.split(line)[1:-1]] for line in table.strip().splitlines()]
        found.append(Table(head, rows))
    return found


def linked(name: str, cell: str) -> Iterator[tuple[str, Path]]:
    """The links of a cell: their texts, and the files that they lead to."""
    for shown, target in LINK.findall(cell):
        path = target.partition("#")[0]
        yield shown, (DOCUMENTS[name].parent / path).resolve() if path else DOCUMENTS[name]


def generated(name: str) -> dict[str, str]:
    """The parts of a document that are made by `tests.guarantees.generated`."""
    return dict(GENERATED.findall(source(name)))
