"""The generated files are those of the types, and say what the types say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from outlive.protocol import api, codec, schemas
from outlive.protocol.commands import AnyCommand, Command
from outlive.protocol.events import AnyEvent, Event
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import ReasonCode

README = Path(schemas.__file__).parents[2] / "README.md"
DOCUMENTS = dict(schemas.documents())
TYPES = {
    **schemas.MESSAGES,
    **{f"{verb}.request": types.request for verb, types in api.VERBS.items()},
    **{f"{verb}.reply": types.reply for verb, types in api.VERBS.items()},
}
EXAMPLES: list[tuple[str, str]] = re.findall(
    r"^```json (\S+)\n(.*?)^```$", README.read_text("utf-8"), re.MULTILINE | re.DOTALL
)


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(part)


def resolve(document: dict[str, Any], reference: str) -> Any:
    target: Any = document
    for part in reference.removeprefix("#/").split("/"):
        target = target[part]
    return target


def test_the_files_are_not_stale() -> None:
    found = {path.name: path.read_text("utf-8") for path in schemas.FOLDER.glob("*.json")}
    made = {name: schemas.text(document) for name, document in DOCUMENTS.items()}
    assert found == made, "run: python -m outlive.protocol.schemas"


def test_writing_removes_what_is_no_longer_made(tmp_path: Path) -> None:
    (tmp_path / "old.json").touch()
    schemas.write(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == DOCUMENTS.keys()


@pytest.mark.parametrize("name", sorted(DOCUMENTS.keys() - {"asyncapi.json"}))
def test_schemas_are_schemas_complete_in_themselves(name: str) -> None:
    document = DOCUMENTS[name]
    jsonschema.Draft202012Validator.check_schema(document)
    for part in walk(document):
        if "$ref" in part:
            assert resolve(document, part["$ref"])


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_every_type_says_what_it_is(name: str) -> None:
    parts = DOCUMENTS[name].get("$defs") or DOCUMENTS[name]["components"]["schemas"]
    for title, part in parts.items():
        assert part.get("description"), title
        assert "Attributes:" not in part["description"]


def test_attributes_are_described_at_the_property() -> None:
    submit = DOCUMENTS["command.json"]["$defs"]["Submit"]
    assert submit["description"].startswith("Make a task.")
    assert submit["properties"]["priority"]["description"] == "-100 to 100, higher first."
    assert submit["properties"]["command_id"]["description"].startswith("the dedup id. In the body it wins")


def test_the_asyncapi_document_holds_together() -> None:
    document = DOCUMENTS["asyncapi.json"]
    assert document["asyncapi"].startswith("3.")
    assert {"title", "version"} <= document["info"].keys()
    for part in walk(document):
        if "$ref" in part:
            assert resolve(document, part["$ref"])
    for channel in document["channels"].values():
        used = set(re.findall(r"{(\w+)}", channel["address"] or ""))
        assert used == channel.get("parameters", {}).keys()
    for operation in document["operations"].values():
        assert operation["action"] in {"send", "receive"}
        for message in operation["messages"]:
            assert message["$ref"].startswith(operation["channel"]["$ref"])


def test_the_asyncapi_addresses_are_the_subjects() -> None:
    subjects = Subjects()
    addresses = {channel["address"] for channel in DOCUMENTS["asyncapi.json"]["channels"].values()} - {None}
    assert addresses == {
        subjects.command("{tenant}", "{task_id}", "{verb}"),
        subjects.answer("{tenant}", "{task_id}"),
        subjects.progress("{tenant}", "{task_id}"),
        subjects.attention("{tenant}", "{task_id}"),
        subjects.tokens("{tenant}", "{task_id}"),
        *(subjects.api("{tenant}", verb) for verb in api.VERBS),
    }


@pytest.mark.parametrize(("name", "text"), EXAMPLES)
def test_examples_of_the_readme_are_true(name: str, text: str) -> None:
    decoded = codec.decode(text.encode(), TYPES[name])
    known = set(json.loads(text))
    assert known <= json.loads(codec.encode(decoded)).keys() | {"seq"} or name == "get.reply"
    jsonschema.validate(json.loads(text), DOCUMENTS[f"{name}.json"])


def test_the_readme_shows_every_message_and_names_every_question() -> None:
    shown = {name for name, _ in EXAMPLES}
    assert schemas.MESSAGES.keys() <= shown
    questions = README.read_text("utf-8").partition("\n## Questions\n")[2]
    for verb, types in api.VERBS.items():
        (row,) = re.findall(rf"^\| `{verb}` \|(.*)\|$", questions, re.MULTILINE)
        for field in msgspec.structs.fields(types.request):
            assert f"`{field.name}`" in row, (verb, field.name)


@pytest.mark.parametrize("union", [AnyCommand, AnyEvent])
def test_the_readme_names_every_field_of_commands_and_events(union: Any) -> None:
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|(.*)\|$", README.read_text("utf-8"), re.MULTILINE)
    base = Command if union is AnyCommand else Event
    common = {field.name for field in msgspec.structs.fields(base)}
    for message in get_args(union):
        named = f"`{message.__struct_config__.tag}`"
        told = "".join(cells for head, cells in rows if named in head.split(", "))
        missing = {field.name for field in msgspec.structs.fields(message)} - common
        assert {field for field in missing if f"`{field}`" not in told} == set(), named


def test_the_readmes_commands_are_commands() -> None:
    bodies = re.findall(r"nats req outlive\.default\.cmd\.[\w-]+\.(\w+) '(.*)'", README.read_text("utf-8"))
    assert len(bodies) == 2
    for verb, body in bodies:
        command = codec.decode(body.encode(), AnyCommand)
        assert command.__struct_config__.tag == verb


def test_the_readme_explains_every_code() -> None:
    readme = README.read_text("utf-8")
    for code in [*DOCUMENTS["answer.json"]["$defs"]["Code"]["enum"], *api.Trouble, *ReasonCode]:
        assert f"`{code}`" in readme, code
