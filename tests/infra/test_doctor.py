"""The doctor: finds each thing that is broken on purpose, and says what to do."""

import asyncpg
import msgspec

from outlive.actors.testing import Server
from outlive.infra import streams
from outlive.infra.bus import Bus
from outlive.infra.doctor import Finding, diagnose

TASK = "insert into outlive_store.task (tenant, task_id, kind, digest, input, {}) values ('t', $1, 'k', '', '', {})"


async def look(server: Server) -> dict[str, Finding]:
    return {finding.name: finding for finding in await diagnose(server.settings)}


async def test_a_healthy_installation_has_every_finding_good_but_the_missing_worker(shared: Server) -> None:
    found = await look(shared)
    assert {name for name, finding in found.items() if not finding.ok} == {"workers"}
    assert found["workers"].fix == "start one with: outlive worker APP"
    assert found["durability"].message.endswith("yes")
    assert found["pooler"].message == "none"
    assert found["jetstream"].message == "enabled"
    assert all(finding.fix == "" for finding in found.values() if finding.ok)


async def test_what_waits_too_long_is_told(shared: Server) -> None:
    connection = await asyncpg.connect(shared.postgres_dsn)
    for task_id, columns, values in (
        ("late", "due_at", "now() - interval '1 hour'"),
        ("soon", "due_at", "now() - interval '1 second'"),
        ("mail", "mail_at", "now() - interval '1 hour'"),
        ("sweep", "sweep_at", "now() - interval '1 hour'"),
        ("orphan", "owner", "gen_random_uuid()"),
    ):
        await connection.execute(TASK.format(columns, values), task_id)
    await connection.execute(
        "insert into outlive_store.inbox (tenant, command_id, task_id, verb, digest, body, received_at) "
        "values ('t', 'c', 'late', 'pause', '', '', now() - interval '1 hour')"
    )
    await connection.execute(
        "insert into outlive_store.dead_letter (tenant, subject, stream_seq, reason, body, at) "
        "values ('t', 's', 1, 'r', '', now() - interval '1 hour')"
    )
    await connection.close()
    found = await look(shared)
    bad = {name for name, finding in found.items() if not finding.ok}
    assert bad == {"workers", "due", "mail", "unpublished", "orphans", "undecided", "dead letters"}
    assert found["due"].message.startswith("1 of k since ")
    assert all(found[name].fix for name in bad)


async def test_a_missing_schema_and_stream_are_told(shared: Server) -> None:
    connection = await asyncpg.connect(shared.postgres_dsn)
    await connection.execute("drop schema outlive_store cascade; drop schema outlive cascade")
    await connection.close()
    async with Bus(shared.nats_url) as bus:
        await bus.api(f"STREAM.DELETE.{shared.subjects.commands_stream}")
        found = await look(shared)
        await streams.ensure(bus, shared.subjects, shared.settings)
    assert found["schema"].fix == "outlive migrate"
    assert "0001_spine.sql" in found["schema"].message
    assert not found["streams"].ok
    assert "workers" not in found  # there is nothing to ask


async def test_servers_that_cannot_be_reached_are_told_without_their_secrets(shared: Server) -> None:
    settings = msgspec.structs.replace(
        shared.settings, nats_url="nats://secret@127.0.0.1:9", postgres_dsn="postgresql://u:secret@127.0.0.1:9/d"
    )
    findings = await diagnose(settings)
    assert [finding.name for finding in findings] == ["postgres", "nats"]
    assert not any(finding.ok for finding in findings)
    assert "secret" not in str(findings)
    assert "OUTLIVE_POSTGRES_DSN" in findings[0].fix
