"""An order, a charge, a mail, a deletion, a change of rights: each once, though its answer is lost or its worker dies."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from mailbox import Maildir
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from outlive.actors.console.cli import cli
from outlive.actors.testing import Server
from outlive.infra.client import Client
from tests.actors.remote import Remote, Reply, Request, serving_http
from tests.chaos.harness import WorkerProcess, assert_progress_gapless, fetch, submit_many, until, wait_all_final

APP = "tests.chaos.paths_app:app"
PAUSED = "select count(*) = 1 from outlive.task where status = 'paused'"


@dataclass
class Shop:
    """The remote: what it has, and what it was asked for. The answer to its first effect may get lost."""

    remote: Remote
    loses: bool = False
    orders: dict[str, Any] = field(default_factory=dict[str, Any])
    charges: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    keeps_keys: bool = True
    documents: set[str] = field(default_factory=lambda: {"draft", "final"})
    roles: dict[str, str] = field(default_factory=lambda: {"ann": "reader"})
    effects: list[str] = field(default_factory=list[str])

    def answer(self, request: Request) -> Reply:
        _, collection, *name = request.path.split("/")
        if request.method == "GET":
            return self._shown(collection, *name)
        self.effects.append(f"{request.method} {collection}")
        body = json.loads(request.body or b"null")
        reply = getattr(self, f"_{collection}")(body, request.headers.get("idempotency-key", ""), *name)
        if self.loses and len(self.effects) == 1:
            return Reply(None)
        return Reply(*reply)

    def _shown(self, collection: str, name: str = "") -> Reply:
        if collection == "charges":
            return Reply(200, {"data": list(self.charges.values()), "has_more": False})
        if collection == "rights":
            return Reply(200, {"role": self.roles[name]})
        return Reply(200 if name in self.documents else 404)

    def _orders(self, body: Any, key: str, name: str) -> tuple[int, Any]:
        self.orders[name] = body
        return 200, None

    def _charges(self, body: Any, key: str) -> tuple[int, Any]:
        number = key if self.keeps_keys else f"{key} {len(self.charges)}"
        return 201, self.charges.setdefault(number, {"id": f"ch_{len(self.charges)}", "status": "succeeded", **body})

    def _documents(self, body: Any, key: str, name: str) -> tuple[int, Any]:
        if name not in self.documents:
            return 404, None
        self.documents.remove(name)
        return 204, None

    def _rights(self, body: Any, key: str, name: str) -> tuple[int, Any]:
        self.roles[name] = body["role"]
        return 200, None


@pytest.fixture
def shop() -> Iterator[Shop]:
    with serving_http() as remote:
        shop = Shop(remote)
        remote.answer = shop.answer
        yield shop


both_ways = pytest.mark.parametrize("lost", ["the answer", "the worker"])


async def declared(tool: str) -> str:
    """What ``outlive check`` says of a tool."""
    done = await asyncio.to_thread(CliRunner().invoke, cli, ["check", APP], env={"COLUMNS": "200"})
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(f"{tool}: ")]
    return line.removeprefix(f"{tool}: ")


async def play(server: Server, shop: Shop, kind: str, lost: str, *, approve: bool = False, **environment: str) -> str:
    """Run one task whose effect is done and whose answer gets lost; its result."""
    shop.loses = lost == "the answer"
    variables = {"PATHS_URL": shop.remote.url, **environment}
    failpoints = "" if shop.loses else "effect.after=kill"
    async with (
        WorkerProcess(server, APP, failpoints=failpoints, environment=variables) as worker,
        Client(server.settings, by="ann") as client,
    ):
        [task] = await submit_many(server, kind, 1)
        if approve:
            await until(server, PAUSED)
            assert shop.effects == [], "it was done before the yes"
            await client.approve(task, (await client.get(task)).reasons[0].operation_id or "")
        if not shop.loses:
            assert await worker.exited() == -9
            await worker.restart()
        await wait_all_final(server, [task])
        await assert_progress_gapless(server, [task])
        return await client.result(task, str)


async def calls(server: Server) -> int:
    """How often the only operation was sent."""
    (row,) = await fetch(server, "select status, attempts from outlive.operation")
    assert row["status"] == "succeeded"
    return int(row["attempts"])


@both_ways
async def test_an_order_at_an_address_of_its_own(shared: Server, shop: Shop, lost: str) -> None:
    assert (await declared("place_order")) == "sent again with the same key"
    number = await play(shared, shop, "order", lost)
    assert shop.orders == {number: {"item": "lamp", "count": 2}}
    assert (shop.effects, await calls(shared)) == (["PUT orders"] * 2, 2)


@both_ways
async def test_a_charge_under_a_key_that_is_known(shared: Server, shop: Shop, lost: str) -> None:
    assert (await declared("charge")) == (
        'sent again with the same key for 1 d, then find_charge is asked, its "no" counts 6 s after the call'
    )
    assert await play(shared, shop, "pay", lost) == "ch_0"
    assert [charge["amount"] for charge in shop.charges.values()] == [1200]
    assert (shop.effects, await calls(shared)) == (["POST charges"] * 2, 2)


@both_ways
async def test_a_charge_under_a_key_that_is_forgotten(shared: Server, shop: Shop, lost: str) -> None:
    shop.keeps_keys = False
    assert await play(shared, shop, "pay", lost, PATHS_KEY_TTL="0.001") == "ch_0"
    assert len(shop.charges) == 1
    assert (shop.effects, await calls(shared)) == (["POST charges"], 1)


async def test_a_mail_is_found_by_its_message_id(shared: Server, shop: Shop, tmp_path: Path) -> None:
    assert (await declared("send_mail")) == (
        'your yes, then once; lost answer -> find_mail is asked, its "no" counts 5 s after the call'
    )
    outbox = tmp_path / "outbox"
    identity = await play(shared, shop, "write", "the worker", approve=True, PATHS_OUTBOX=str(outbox))
    assert [mail["Message-ID"] for mail in Maildir(outbox)] == [identity]
    assert await calls(shared) == 1


@both_ways
async def test_a_deletion_finds_nothing_the_second_time(shared: Server, shop: Shop, lost: str) -> None:
    assert (await declared("delete_document")) == "your yes, then sent again with the same key"
    assert await play(shared, shop, "clear", lost, approve=True) == "gone"
    assert shop.documents == {"final"}
    assert (shop.effects, await calls(shared)) == (["DELETE documents"] * 2, 2)


@both_ways
async def test_a_change_of_rights_is_read_back(shared: Server, shop: Shop, lost: str) -> None:
    assert await declared("grant") == (
        'your yes, then once; lost answer -> read_back is asked, its "no" counts 1.5 s after the call; '
        "undone by take_back: sent again with the same key"
    )
    assert await play(shared, shop, "promote", lost, approve=True) == "admin"
    assert shop.roles == {"ann": "admin"}
    assert (shop.effects, await calls(shared)) == (["PUT rights"], 1)


async def test_a_change_of_rights_is_taken_back(shared: Server, shop: Shop) -> None:
    """The effect of a task that is cancelled with the wish to undo it."""
    async with (
        WorkerProcess(shared, APP, environment={"PATHS_URL": shop.remote.url}),
        Client(shared.settings, by="ann") as client,
    ):
        [task] = await submit_many(shared, "promote_for_now", 1)
        await until(shared, PAUSED)
        await client.approve(task, (await client.get(task)).reasons[0].operation_id or "")
        await until(shared, "select waiting_for = 'signal go' from outlive_store.task")
        assert shop.roles == {"ann": "admin"}
        await client.cancel(task, compensate=True)
        await wait_all_final(shared, [task], status="cancelled")
        assert (shop.roles, shop.effects) == ({"ann": "reader"}, ["PUT rights"] * 2)
        await assert_progress_gapless(shared, [task])
