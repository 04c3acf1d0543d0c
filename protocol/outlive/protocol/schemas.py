"""JSON Schemas and the AsyncAPI 3 document, made from the types: ``python -m outlive.protocol.schemas`` writes them.

Each file of ``schemas/`` is complete in itself: one for each kind of message, and two for each question of the api.
"""

import copy
import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from outlive.protocol import api
from outlive.protocol.answers import Answer
from outlive.protocol.commands import AnyCommand
from outlive.protocol.events import SEQ_HEADER, AnyEvent, Attention, Tokens

FOLDER: Final = Path(__file__).with_name("schemas")
"""Where the files are, in the source tree and in the installed package."""

VERSION: Final = "1.0.0"
"""Version of the contract (not of the package): it grows when a message does."""

MESSAGES: Final[Mapping[str, Any]] = {
    "command": AnyCommand,
    "answer": Answer,
    "event": AnyEvent,
    "attention": Attention,
    "tokens": Tokens,
    "problem": api.Problem,
}
"""Every message beside the api's, by the name of its schema file."""

_ADDRESSES: Final = {
    "command": ("cmd.{task_id}.{verb}", "Commands to a task. Stored in the stream OUTLIVE_COMMANDS."),
    "answer": ("answer.{task_id}", "The answer to each command of a task. Not stored: ask the api for it later."),
    "event": ("progress.{task_id}", "Progress of a task, numbered from 1. Stored in the stream OUTLIVE_PROGRESS."),
    "attention": ("attention.{task_id}", "When a person must act, and when a task ends. Not stored."),
    "tokens": ("tokens.{task_id}", "What an agent's model writes, while it writes it. Not stored, no facts."),
}
_HEADERS: Final = {
    "command": {"Nats-Msg-Id": "The command id, where the body has none; ids are remembered for a year."},
    "event": {SEQ_HEADER: "The event's number, as in the body."},
}
_PARAMETERS: Final = {
    "tenant": "1 to 32 characters of A-Z a-z 0-9 _ -, not beginning with _. Without tenants: default.",
    "task_id": "1 to 64 characters of A-Z a-z 0-9 _ -, not beginning with _.",
    "verb": "The same as the body's type.",
}
_ATTRIBUTE: Final = re.compile(r"    (\w+(?:, \w+)*): (.*)")


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Make every document, with the name of its file."""
    types = {**MESSAGES}
    for verb, (request, reply) in api.VERBS.items():
        types[f"{verb}.request"], types[f"{verb}.reply"] = request, reply
    for name, declared in types.items():
        yield f"{name}.json", _schema(name, declared)
    yield "asyncapi.json", asyncapi()


def write(folder: Path = FOLDER) -> None:
    """Write all documents, and delete files that are none of them."""
    folder.mkdir(exist_ok=True)
    texts = {name: text(document) for name, document in documents()}
    for name, content in texts.items():
        (folder / name).write_text(content, encoding="utf-8")
    for stale in {path.name for path in folder.glob("*.json")} - texts.keys():
        (folder / stale).unlink()


def text(document: dict[str, Any]) -> str:
    """Return a document as it stands in its file."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def asyncapi() -> dict[str, Any]:
    """Make the AsyncAPI document; its operations are told from Outlive's side."""
    declared = (*MESSAGES.values(), *(part for verb in api.VERBS.values() for part in verb))
    roots, schemas = msgspec.json.schema_components(declared, ref_template="#/components/schemas/{name}")
    names = [*MESSAGES, *(f"{verb}.{part}" for verb in api.VERBS for part in ("request", "reply"))]
    messages = {name: _message(name, root) for name, root in zip(names, roots, strict=True)}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Outlive",
            "version": VERSION,
            "description": "Long tasks over NATS: commands, answers, progress, questions. See protocol/README.md.",
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": _channels(),
        "operations": _operations(),
        "components": {"schemas": _described(schemas, _structs(declared)), "messages": messages},
    }


def _schema(name: str, declared: Any) -> dict[str, Any]:
    (root,), parts = msgspec.json.schema_components((declared,))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:outlive:{name}",
        **root,
        "$defs": _described(parts, _structs((declared,))),
    }


def _message(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    payload.pop("discriminator", None)  # OpenAPI's form; AsyncAPI's own cannot say what ours does
    message = {"name": name, "payload": payload}
    if headers := _HEADERS.get(name):
        properties = {header: {"type": "string", "description": said} for header, said in headers.items()}
        message["headers"] = {"type": "object", "properties": properties}
    if name == "problem":
        code = {"type": "string", "description": "The same as the body's error."}
        message["headers"] = {"type": "object", "properties": {api.ERROR_HEADER: code}, "required": [api.ERROR_HEADER]}
    return message


def _channels() -> dict[str, Any]:
    channels = {
        name: _channel(address, said, (name,), ("tenant", "task_id", *(("verb",) if name == "command" else ())))
        for name, (address, said) in _ADDRESSES.items()
    }
    for verb, (request, _) in api.VERBS.items():
        channels[f"api.{verb}"] = _channel(f"api.{verb}", _summary(request), (f"{verb}.request",), ("tenant",))
        reply = {name: {"$ref": f"#/components/messages/{name}"} for name in (f"{verb}.reply", "problem")}
        channels[f"api.{verb}.reply"] = {"address": None, "messages": reply}
    return channels


def _channel(address: str, said: str, messages: tuple[str, ...], parameters: tuple[str, ...]) -> dict[str, Any]:
    return {
        "address": f"outlive.{{tenant}}.{address}",
        "description": said,
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
        "parameters": {name: {"description": _PARAMETERS[name]} for name in parameters},
    }


def _operations() -> dict[str, Any]:
    operations: dict[str, Any] = {
        name: {
            "action": "receive" if name == "command" else "send",
            "channel": {"$ref": f"#/channels/{name}"},
            "messages": [{"$ref": f"#/channels/{name}/messages/{name}"}],
        }
        for name in _ADDRESSES
    }
    for verb in api.VERBS:
        reply = f"#/channels/api.{verb}.reply"
        operations[f"api.{verb}"] = {
            "action": "receive",
            "channel": {"$ref": f"#/channels/api.{verb}"},
            "messages": [{"$ref": f"#/channels/api.{verb}/messages/{verb}.request"}],
            "reply": {
                "address": {"location": "$message.header#/reply", "description": "NATS's reply subject."},
                "channel": {"$ref": reply},
                "messages": [{"$ref": f"{reply}/messages/{verb}.reply"}, {"$ref": f"{reply}/messages/problem"}],
            },
        }
    return operations


def _structs(declared: tuple[Any, ...]) -> dict[str, Any]:
    """Return the classes within types, by name."""
    found: dict[str, Any] = {}
    queue: list[Any] = list(msgspec.inspect.multi_type_info(declared))
    while queue:
        part = queue.pop()
        if isinstance(part, tuple):
            queue.extend(part)
        elif isinstance(part, msgspec.inspect.StructType) and part.cls.__name__ not in found:
            found[part.cls.__name__] = part.cls
            queue.extend(field.type for field in part.fields)
        elif isinstance(part, msgspec.inspect.Type):
            queue.extend(getattr(part, name) for name in part.__struct_fields__ if name != "fields")
    return found


def _described(schemas: dict[str, Any], classes: dict[str, Any]) -> dict[str, Any]:
    """Move what docstrings say of attributes to the properties."""
    schemas = copy.deepcopy(schemas)
    for name in schemas.keys() & classes.keys():
        schema, cls = schemas[name], classes[name]
        schema["description"] = _summary(cls)
        for base in reversed(cls.__mro__):
            for attribute, said in _attributes(base.__dict__.get("__doc__")).items():
                if attribute in schema["properties"]:
                    schema["properties"][attribute]["description"] = said
    return schemas


def _summary(cls: Any) -> str:
    return (inspect.getdoc(cls) or "").partition("\n\nAttributes:")[0].replace("\n", " ")


def _attributes(doc: str | None) -> dict[str, str]:
    """Read the section Attributes of a docstring, by attribute."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(doc or "").partition("\nAttributes:\n")[2].splitlines():
        if match := _ATTRIBUTE.fullmatch(line):
            names = match[1].split(", ")
            found |= dict.fromkeys(names, match[2])
        else:
            found |= {name: f"{found[name]} {line.strip()}".rstrip() for name in names}
    return found


if __name__ == "__main__":
    write()
