"""The parts of the READMEs that are made, not written: ``python -m tests.guarantees.generated`` writes them anew."""

import ast
import itertools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from outlive.infra import failpoints, settings
from outlive.infra.settings import Settings
from tests.benchmarks import figures
from tests.guarantees import defeats
from tests.guarantees.documents import DOCUMENTS, ROOT


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


def _shown(default: ast.expr | None, value: Any) -> str:
    """A default as a person reads it."""
    if value is None or default is None:
        return ""
    if isinstance(default, ast.BinOp):
        return f"{value // 1024 // 1024} MiB" if value % (1024 * 1024) == 0 else f"{value // 1024} KiB"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def failpoints_table() -> str:
    """The table of all failpoints."""
    rows = [f"| `{name}` | {meaning} |" for name, meaning in failpoints.NAMES.items()]
    return "\n".join(["| point | what is true when it is hit |", "|---|---|", *rows])


PARTS: Final[Mapping[tuple[str, str], Callable[[], str]]] = {
    ("README.md", "speed"): figures.speed,
    ("README.md", "take-over"): figures.take_over,
    ("README.md", "comparison"): figures.comparison,
    ("actors/README.md", "what defeats us"): lambda: defeats.table(ROOT / "actors"),
    ("infra/README.md", "settings"): settings_table,
    ("tests/README.md", "failpoints"): failpoints_table,
}
"""What is made, by document and name. Its place there is marked by two comments."""


def write() -> None:
    """Write every part into its document."""
    for (document, part), make in PARTS.items():
        before, found, rest = re.split(rf"(<!-- {part}: made by [^>]* -->)", DOCUMENTS[document].read_text("utf-8"))
        end = f"<!-- end of {part} -->"
        after = rest.partition(end)[2]
        DOCUMENTS[document].write_text(f"{before}{found}\n\n{make()}\n\n{end}{after}", "utf-8")


if __name__ == "__main__":
    write()
