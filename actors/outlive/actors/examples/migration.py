"""A helper for migrations: it edits files, each after a person has seen the diff and said yes.

An edit that was cut off is looked for in the file; ``outlive cancel TASK --compensate`` puts the files back.
"""

import ast
import difflib
import hashlib
import re
from pathlib import Path
from typing import Final

import msgspec

from outlive.actors.app import App
from outlive.actors.examples import folder, models
from outlive.actors.examples.scripted import Choices, Seen, items
from outlive.protocol.errors import InvalidArguments
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

BACKUPS: Final = ".outlive-backup"
"""Folder within the edited one that keeps each file as it was, named by the operation."""

PREVIEW: Final = 4000
"""Characters of a diff that a person is shown; the arguments have the whole edit."""

app = App("migration")


class Text(msgspec.Struct, frozen=True):
    """A file as it is now; `version` must be given back with an edit."""

    path: str
    version: str
    text: str


class Edit(msgspec.Struct, frozen=True):
    """A piece of text, which the file has exactly once, and what replaces it."""

    old: str
    new: str


class Migrated(msgspec.Struct, frozen=True):
    """Which files were edited, and which were left with the reason."""

    edited: list[str]
    left: list[str]


@app.tool(read_only=True, title="search {text}")
def search(text: str) -> list[str]:
    """Find a text in the Python files of the folder: path, line and the line itself, at most 60."""
    return folder.search(text, ".py")


@app.tool(read_only=True, title="read {path}")
def read_file(path: str) -> Text:
    """Read a file, with the version that an edit must name."""
    text = folder.text_of(path)
    return Text(path, version_of(text), text)


@app.tool(read_only=True, title="check {path}")
def check_file(path: str) -> str:
    """Say whether a Python file can be parsed."""
    try:
        ast.parse(folder.text_of(path))
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    return "ok"


@app.tool(requires_approval=True, timeout=20, settle=0, title="edit {path}")
def edit_file(op: Operation, path: str, version: str, edits: list[Edit]) -> str:
    """Replace pieces of a file, all of them at once; `version` is that of the file when it was read.

    The old piece must stand in the file exactly once: give enough lines around it.
    """
    before = folder.text_of(path)
    after = _applied(before, path, version, edits)
    backup = _backup(op.uuid)
    backup.parent.mkdir(exist_ok=True)
    folder.write(backup, before)
    folder.write(folder.inside(path), after)
    return version_of(after)


@edit_file.prepare
def diff(path: str, version: str, edits: list[Edit]) -> str:
    """Show what would be changed."""
    before = folder.text_of(path)
    after = _applied(before, path, version, edits)
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), path, path, lineterm="", n=1)
    return "\n".join(lines)[:PREVIEW]


@edit_file.reconcile
def look(op: Operation, path: str, version: str, edits: list[Edit]) -> Outcome[str]:
    """Look at the file: it is as it was, or as the edit makes it."""
    now, backup = folder.text_of(path), _backup(op.uuid)
    if version_of(now) == version:
        return Outcome.did_not_happen()
    if backup.is_file() and now == _applied(backup.read_bytes().decode(), path, version, edits):
        return Outcome.happened(version_of(now))
    return Outcome.unknown(f"{path} is neither what it was nor what the edit makes of it: somebody else has changed it")


@edit_file.compensate(idempotent=True)
def restore(op: Operation, path: str, version: str, edits: list[Edit]) -> None:
    """Put the file back, unless somebody has changed it since."""
    now, before = folder.text_of(path), _backup(op.undoes.uuid).read_bytes().decode()
    if version_of(now) == version:
        return
    if now != _applied(before, path, version, edits):
        raise InvalidArguments(
            f"{path} was changed after the edit: put it back by hand, from {_backup(op.undoes.uuid)}"
        )
    folder.write(folder.inside(path), before)


def version_of(text: str) -> str:
    """Return a short digest of a text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _backup(name: str) -> Path:
    return folder.root() / BACKUPS / name


def _applied(text: str, path: str, version: str, edits: list[Edit]) -> str:
    """Return the edited text. Raises `InvalidArguments` when it is another version or an edit does not fit."""
    if version_of(text) != version:
        raise InvalidArguments(f"{path} is not of version {version} any more: read it again")
    for edit in edits:
        if (times := text.count(edit.old) if edit.old else 0) != 1:
            raise InvalidArguments(f"{edit.old!r} stands {times} times in {path}, not once")
        text = text.replace(edit.old, edit.new)
    return text


# --- the script: one migration that it knows, `datetime.utcnow()`, which Python 3.12 warns of

_IMPORT: Final = re.compile(r"^from datetime import (?!.*\bUTC\b)(.+)$", re.MULTILINE)


def decide(seen: Seen) -> Choices:
    """Decide as a careful engineer would: find, read, propose an edit for each file, check what was edited."""
    if not seen.plan:
        return [items(("find", "find what must change"), ("edit", "edit the files"), ("check", "check them"),
                      after={"edit": ["find"]})]  # fmt: skip
    if again := [
        choice for tool in ("search", "read_file", "edit_file", "check_file") for choice in seen.forgotten(tool)
    ]:
        return again
    hits: list[list[str]] = seen.values("search", list[str])
    if not hits:
        return [("search", {"text": "utcnow()", "plan_item": "find"})]
    paths = list(dict.fromkeys(hit.partition(":")[0] for hit in hits[0]))
    texts: list[Text] = seen.values("read_file", Text)
    read = {text.path for text in texts}
    if unread := [path for path in paths if path not in read]:
        return [("read_file", {"path": path, "plan_item": "find"}) for path in unread[:16]]
    proposed = [(text, edits) for text in texts if (edits := edits_of(text.text))]
    left = [f"{text.path}: not a form that I know" for text in texts if not edits_of(text.text)]
    tried = seen.of("edit_file")
    if len(tried) < len(proposed):  # one after the other: what a person says of the first may be true of the second
        text, edits = proposed[len(tried)]
        edit = {"path": text.path, "version": text.version, "edits": msgspec.to_builtins(edits), "plan_item": "edit"}
        return [("edit_file", edit)]
    outcomes = list(zip(proposed, tried, strict=False))
    edited = [text.path for (text, _), result in outcomes if result.ok]
    left += [f"{text.path}: {result.text}" for (text, _), result in outcomes if not result.ok]
    checked = seen.of("check_file")
    if len(checked) < len(edited):
        return [("check_file", {"path": path, "plan_item": "check"}) for path in edited[len(checked) :][:16]]
    return [("finish", {"output": {"edited": edited, "left": left}})]


def edits_of(text: str) -> list[Edit]:
    """Return the edits that a file needs, each with enough of its line to be unique; none where it has another form."""
    edits = [_line(text, match.start()) for match in re.finditer(r"\bdatetime\.utcnow\(\)", text)]
    imports = _IMPORT.search(text)
    if not edits or any(edit is None for edit in edits) or (imports is None and "UTC" not in text):
        return []
    changed = [Edit(imports[0], f"from datetime import UTC, {imports[1]}")] if imports else []
    return [*changed, *dict.fromkeys(edit for edit in edits if edit is not None)]


def _line(text: str, at: int) -> Edit | None:
    """Replace the line around a place, with as many lines before it as make it unique."""
    begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
    end = len(text) if end < 0 else end
    old = text[begin:end]
    if "datetime.datetime" in old or text.count(old) != 1:
        return None
    return Edit(old, old.replace("datetime.utcnow()", "datetime.now(UTC)"))


migrator = app.agent(
    "migrator",
    instructions=(
        "You change a Python code base as the goal says, and nothing else. Search, read each file before you edit it, "
        "propose all edits of a file in one call of edit_file, one file after the other, check each edited file. A person sees every diff; a no is "
        "final: leave that file and say so. Finish with what was edited and what was left."
    ),
    tools=[search, read_file, check_file, edit_file],
    output=Migrated,
    description="Edits the Python files of the worker's folder, each after a person's yes.",
    context_tokens=48_000,
    **models.chosen(decide),
)
GOAL: Final = "Replace datetime.utcnow(), which Python 3.12 warns of, by datetime.now(UTC)."
