"""A marked argument is used, and stands in no event, question, ledger, receipt, error message, traceback or log."""

import json

import pytest
from anyio import to_thread
from click.testing import CliRunner

from outlive.actors.console.cli import cli
from outlive.actors.testing import Server
from outlive.infra.client import Client
from outlive.protocol import api, secrets
from outlive.protocol.commands import Approve
from tests.chaos.harness import WorkerProcess, fetch, read_progress, submit_many, until, wait_all_final

APP = "tests.chaos.secrets_app:app"
CANARY = 'correct-"horse"\nbattery-staple'
LINES = ["correct-", "horse", "battery-staple"]
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"
COLUMNS = """
select table_name, column_name from information_schema.columns
 where table_schema = 'outlive_store' and data_type in ('text', 'bytea', 'jsonb') and (table_name, column_name) not in
       (('task', 'input'), ('inbox', 'body'))
   and table_name in (select table_name from information_schema.tables where table_schema = 'outlive_store' and table_type = 'BASE TABLE')
"""


def tells(text: str) -> bool:
    return any(line in text for line in LINES)


async def kept(server: Server) -> dict[str, list[str]]:
    """Where the store holds a part of it, besides the input and the command that brought it."""
    found: dict[str, list[str]] = {}
    for table, column in await fetch(server, COLUMNS):
        rows = await fetch(server, f'select "{column}" as value from outlive_store."{table}"')  # noqa: S608  # our own names
        values = [row["value"] for row in rows if row["value"] is not None]
        texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in values]
        if hits := [text for text in texts if tells(text)]:
            found[f"{table}.{column}"] = hits
    return found


async def typed(*words: str) -> str:
    result = await to_thread.run_sync(CliRunner().invoke, cli, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.output


async def test_a_secret_stands_nowhere(shared: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in shared.environment.items():
        monkeypatch.setenv(name, value)
    async with WorkerProcess(shared, APP) as worker, Client(shared.settings, by="ann") as client:
        await submit_many(shared, "vault", 1, {"user": "ann", "password": CANARY})
        await until(shared, PAUSED)
        (reason,) = (await client.get("vault-0")).reasons
        mark = secrets.mark(json.dumps(CANARY).encode())
        assert f"ann comes in with {mark}" in reason.message
        seen = [await typed(*words) for words in (["waiting"], ["why", "vault-0"], ["show", "vault-0"])]
        await client.command("vault-0", Approve(operation_id="2", digest=reason.digest))
        await worker.restart()  # the step is recognised by its real arguments
        await wait_all_final(shared, ["vault-0"], status="failed")
        assert (await client.get("vault-0")).input == {"user": "ann", "password": mark}
        asked = (["show"], ["show", "--json"], ["receipt"], ["receipt", "--json"], ["export"], ["why"])
        seen += [await typed(words[0], "vault-0", *words[1:]) for words in asked]
        seen += [await typed("list", "--json"), await typed("waiting")]
        assert [text for text in seen if tells(text)] == []
        assert mark in seen[3]
        piece = await client.questions.ask("slice", api.Slice(task_id="vault-0", part="input"), api.Piece)
        assert json.loads(piece.data) == {"user": "ann", "password": mark}
        assert await kept(shared) == {}
        told = [event.decode() for events in (await read_progress(shared)).values() for _, event in events]
        assert [text for text in told if tells(text)] == []
        assert not tells(worker.log), worker.log


def test_what_is_marked_and_what_is_found_in_texts() -> None:
    assert secrets.is_secret(secrets.Secret[str] | None)
    assert secrets.is_secret(list[secrets.Secret[str]])
    assert not secrets.is_secret(dict[str, list[int]])
    body = b'{"a":"x","key":"hunter22","pin":123456}'
    assert secrets.veil(body, ()) == body
    veiled = secrets.veil(body, {"key", "pin"})
    assert secrets.without(veiled, {"key", "pin"}) == b'{"a":"x"}'
    assert json.loads(secrets.unveil(veiled, {"key", "pin"}, body)) == json.loads(body)
    text = secrets.scrub("hunter22 and 123456", {"key", "pin"}, body)
    assert text == " and ".join(map(secrets.mark, (b'"hunter22"', b"123456")))
