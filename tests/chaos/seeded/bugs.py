"""Bugs, each by one small patch of a function or of one SQL text: what our proofs must notice.

Each takes `put`, which sets an attribute: for good in a worker process (`sitecustomize.py`), for one test with
``monkeypatch.setattr``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

Put: TypeAlias = Callable[[Any, str, Any], None]


def no_reconcile(put: Put) -> None:
    """A lost answer is sent again without asking."""
    from outlive.actors.effect import Effect

    find_out = Effect[Any]._find_out

    async def finding(self: Any, lost: Any) -> Any:
        return None if self.tool.reconciler is not None else await find_out(self, lost)

    put(Effect, "_find_out", finding)


def yes_not_used_up(put: Put) -> None:
    """The intent does not record that it uses the yes."""
    from outlive.actors.consent import Consented

    approval = Consented[Any]._approval

    def told(self: Any, status: Any, *arguments: Any, **more: Any) -> Any:
        return approval(self, "given" if status == "used" else status, *arguments, **more)

    put(Consented, "_approval", told)


def stale_epoch(put: Put) -> None:
    """A worker takes a refused write for a good one, looks at no lease, and hears late that it was fenced."""
    from outlive.infra.journal import Journal
    from outlive.infra.liveness import Heartbeat

    async def judge(self: Any, _link: Any, refused: Any) -> list[Any]:
        for batch in refused:
            self._applied(batch)
        return []

    renew = Heartbeat._renew

    async def renewing(self: Any, connection: Any) -> None:
        await renew(self, connection)
        if self.fenced.is_set():
            self.fenced.clear()
            await asyncio.sleep(3)
            self.fenced.set()

    put(Journal, "_judge", judge)
    put(Heartbeat, "_renew", renewing)
    put(Heartbeat, "covered", property(lambda _: 60.0))


def cancel_tells_nothing(put: Put) -> None:
    """A cancel says of every effect that it did not happen."""
    from outlive.protocol import effects

    put(effects, "outcome_of", lambda *_, **__: "did_not_happen")


def no_intent(put: Put) -> None:
    """A tool is called before anything says that it is going to be."""
    from outlive.actors.effect import Effect

    async def intend(self: Any) -> None:
        self._phase = "intended"

    put(Effect, "_intend", intend)


def no_settle(put: Put) -> None:
    """A "no" counts as soon as it is said, though the request may still be on its way."""
    from outlive.actors.effect import Effect

    ask = Effect[Any]._ask_the_world

    async def asking(self: Any, lost: Any) -> Any:
        return await ask(self, replace(lost, deadline=lost.started_at - timedelta(days=1)))

    put(Effect, "_ask_the_world", asking)


def no_expected_sequence(put: Put) -> None:
    """Events are published under their ids alone, whatever the stream holds before them."""
    from outlive.infra.relay import _Flow

    heading = _Flow.heading

    def without(self: Any, suffix: str) -> bytes:
        return heading(self, suffix).replace(b"Nats-Expected-Last-Subject-Sequence", b"Unheeded")

    put(_Flow, "heading", without)


def no_sweep(put: Put) -> None:
    """What an owner left unpublished stays so."""
    from outlive.infra.relay import Relay

    async def nothing(_self: Any) -> None:
        """Look for nothing."""

    put(Relay, "_sweep_once", nothing)


def no_inbox_key(put: Put) -> None:
    """A command is stored under an id of its own each time that it comes."""
    _rewrite(put, "ingest", "admit", "select x.tenant, x.command_id,", "select x.tenant, gen_random_uuid()::text,")


def no_consumer_sequence(put: Put) -> None:
    """Whatever message comes is taken for the next one."""
    from outlive.infra import pull

    accept = pull.Feed._accept

    def accepting(self: Any, raw: Any) -> None:
        self._expected = pull._read(raw)[0]
        accept(self, raw)

    put(pull.Feed, "_accept", accepting)


def no_version_check(put: Put) -> None:
    """A record is written whatever it follows."""
    _rewrite(put, "journal", "batch", " and t.version = b.after", "")


def any_call_at_a_place(put: Put) -> None:
    """A step is taken for done by its place alone, whatever the code calls there now."""
    from outlive.actors.flow import Flow

    def recall(self: Any, step_id: str, *_: Any) -> Any:
        self.history.unvisited.discard(step_id)
        return self.history.done.get(step_id)

    put(Flow, "recall", recall)


def no_death_count(put: Put) -> None:
    """Nobody looks at how often a task's workers have died."""
    from outlive.actors.supervisor import Supervisor

    async def run(_self: Any, actor: Any, _task: Any) -> Any:
        return await actor.run()

    put(Supervisor, "_run", run)


def _rewrite(put: Put, stem: str, name: str, old: str, new: str) -> None:
    """Give one statement another text."""
    from outlive.infra import sql

    load, text = sql.load, sql.load(stem)[name]
    assert old in text, f"{stem}.{name} has changed"
    changed = {**load(stem), name: text.replace(old, new)}

    def loading(asked: str, package: str = "outlive.infra") -> Any:
        return changed if (asked, package) == (stem, "outlive.infra") else load(asked, package)

    put(sql, "load", loading)
