"""A task's rows and events written by hand, where no worker is wanted."""

import asyncio
import itertools
import json
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

from outlive.infra import happenings
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.records import Claim, Fact
from outlive.protocol.events import SEQ_HEADER
from outlive.protocol.subjects import Subjects
from outlive.protocol.task import Status

START: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Pencil:
    """Writes as an actor, the journal and the relay would."""

    def __init__(self, pool: Pool, bus: Bus, subjects: Subjects, tenant: str = "default") -> None:
        self.pool = pool
        self.bus = bus
        self.subjects = subjects
        self.tenant = tenant

    async def insert(self, table: str, **columns: Any) -> None:
        names = ", ".join(columns)
        places = ", ".join(f"${n}" for n in range(1, len(columns) + 1))
        statement = f"insert into {table} ({names}) values ({places})"  # noqa: S608  # names from tests
        await self.pool.execute(statement, *columns.values())

    async def task(self, task_id: str, status: str = "running", **columns: Any) -> Claim:
        row: dict[str, Any] = {"kind": "collect", "digest": b"", "input": b'{"input":{"folder":"src"},"goal":null}'}
        await self.insert("task", tenant=self.tenant, task_id=task_id, status=status, **{**row, **columns})
        return Claim(self.tenant, task_id, str(columns.get("kind", "collect")), 1, 0, 0, 0, 0, 0, 0, 0)

    async def worker(self, **columns: Any) -> uuid.UUID:
        incarnation = uuid.uuid4()
        now = await self.pool.fetchval("select outlive.clock()")
        row: dict[str, Any] = {
            "server_started": now, "until": datetime(2200, 1, 1, tzinfo=UTC), "host": "here", "pid": 4711,
            "version": "0.1.0", "protocol": 1, "kinds": ["collect"], "slots": 10,
        }  # fmt: skip
        await self.insert("worker", incarnation=incarnation, **{**row, **columns})
        return incarnation

    async def kind(self, name: str, **columns: Any) -> None:
        row: dict[str, Any] = {"code_version": "c1", "input_schema": json.dumps({"type": "object"})}
        await self.insert("kind", name=name, **{**row, **columns})

    async def write(self, claim: Claim, facts: Sequence[Fact]) -> None:
        """Make facts durable, as one commit of the journal."""
        await self.pool.execute(
            "insert into fact (tenant, task_id, seq, type, step_id, name, status, digest, body, event) "
            "select $1, $2, u.* from unnest($3::bigint[], $4::text[], $5::text[], $6::text[], $7::text[], $8::bytea[], $9::bytea[], "
            "$10::bytea[]) as u",
            claim.tenant, claim.task_id, *(
                [getattr(fact, name) for fact in facts]
                for name in ("seq", "type", "step_id", "name", "status", "digest", "body", "event")
            ),
        )  # fmt: skip
        completed = sum(fact.type == "step" and fact.status == "completed" for fact in facts)
        claim.steps += completed
        await self.pool.execute(
            "update task set last_seq = $3, version = version + 1, steps = steps + $4 where tenant = $1 and task_id = $2",
            claim.tenant, claim.task_id, claim.last_seq, completed,
        )  # fmt: skip

    async def publish(self, claim: Claim, facts: Sequence[Fact]) -> None:
        """Put committed events into the stream, in order."""
        subject = self.subjects.progress(claim.tenant, claim.task_id)
        await asyncio.gather(
            *(self.bus.publish_tracked(subject, fact.event, {SEQ_HEADER: str(fact.seq)}) for fact in facts)
        )

    async def say(self, claim: Claim, count: int = 1, *, publish: bool = True) -> list[Fact]:
        """Write notes, and publish them."""
        facts = [happenings.note(claim, START, "n", f"note {claim.last_seq + 1}") for _ in range(count)]
        await self.write(claim, facts)
        if publish:
            await self.publish(claim, facts)
        return facts

    async def steps(self, claim: Claim, *names: str, result: bytes = b"null") -> list[Fact]:
        """Complete steps, unpublished."""
        places = itertools.count(claim.steps + 1)
        facts = [
            happenings.step(
                claim, START, str(place), name, "completed", f"{name} done", digest=b"d" * 16, body=result
            )
            for place, name in zip(places, names, strict=False)
        ]  # fmt: skip
        await self.write(claim, facts)
        return facts

    async def end(
        self,
        claim: Claim,
        status: Status = Status.SUCCEEDED,
        body: bytes | None = b"null",
        message: str = "done",
        *,
        publish: bool = True,
    ) -> None:
        """End the task; `body` is its result or failure."""
        final = happenings.status(claim, START, status, message, final=True, body=body)
        await self.pool.execute(
            "update task set status = $3, ended_at = $4, owner = null where tenant = $1 and task_id = $2",
            claim.tenant, claim.task_id, status, START,
        )  # fmt: skip
        await self.write(claim, [final])
        if publish:
            await self.publish(claim, [final])
