"""The read side of the store: rows as the contract's structs.

Values of users (inputs, arguments, results) are handed on as `msgspec.Raw`: the JSON text as it was stored, neither
decoded nor encoded again. Pages are cut by bytes where values may be large, so that each fits into one message.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

import asyncpg
import msgspec

from outlive.infra import plans, sql, why
from outlive.infra.database import Pool
from outlive.protocol import api, secrets
from outlive.protocol.answers import Answer, Code
from outlive.protocol.budget import MILLIONTHS, Budget
from outlive.protocol.checkpoint import Checkpoint, CompletedStep, PendingStep
from outlive.protocol.commands import Approve, Reject, Resolve, Retry
from outlive.protocol.keys import operation_key, split_operation
from outlive.protocol.operations import AttemptRecord, ErrorClass, OperationRecord, OperationStatus, WordRecord
from outlive.protocol.task import FINAL, Done, Failure, Reason, Spending, Status, TaskRecord, Versions

UNBOUNDED: Final = 1 << 40
"""Bytes of a page that is not cut."""

RESULT_BYTES: Final = 10_000
"""Bytes of a result that the ledger shows; longer ones are in the checkpoint alone."""

_ROWS: Final = 10_000

_read_reasons: Final = msgspec.json.Decoder(list[Reason]).decode
_read_word: Final = msgspec.json.Decoder(Approve | Reject | Resolve | Retry).decode
_read_labels: Final = msgspec.json.Decoder(dict[str, str]).decode
_read_failure: Final = msgspec.json.Decoder(Failure).decode


class _Input(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw(b"{}")
    goal: str | None = None


class _Kind(msgspec.Struct):
    kind: str = ""


_read_kind: Final = msgspec.json.Decoder(_Kind).decode
_read_input: Final = msgspec.json.Decoder(_Input).decode


class Store:
    """Answers questions about tasks from one pool; None means that there is no such thing."""

    def __init__(self, pool: Pool) -> None:
        """Read over `pool`."""
        self._pool = pool
        self._sql = sql.load("store")

    async def task(
        self, tenant: str, task_id: str, *, with_input: bool = True, with_result: bool = True
    ) -> TaskRecord | None:
        """Return one task; a result only when it has succeeded, a failure only when it has failed."""
        records = await self._records(tenant, [task_id], with_input=with_input, with_result=with_result)
        if not records:
            return None
        spent = await self._pool.fetchrow(self._sql["spending"], tenant, task_id)
        record = msgspec.structs.replace(records[0], spending=None if spent is None else _spending(spent))
        return plans.planned(record, await self._plan(tenant, task_id)) if record.total_steps else record

    async def _plan(self, tenant: str, task_id: str) -> plans.Standing:
        return plans.standing(await self._pool.fetch(self._sql["plan"], tenant, task_id, plans.VERSIONS))

    async def tasks(self, tenant: str, question: api.List) -> api.TaskPage:
        """Return a page of tasks, newest first, without inputs and results.

        Raises:
            ValueError: ``after`` is no token of a page.
        """
        at, last = _place(question.after)
        rows = await self._pool.fetch(
            self._sql["page"], tenant, at, last, question.status, question.kind, question.parent,
            msgspec.json.encode(question.labels).decode(), question.limit + 1,
        )  # fmt: skip
        ids = [row["task_id"] for row in rows[: question.limit]]
        records = await self._records(tenant, ids, with_input=False, with_result=False)
        more = len(rows) > question.limit and records
        return api.TaskPage(tasks=records, after=token(records[-1]) if more else None)

    async def waiting(self, tenant: str, question: api.Waiting) -> api.TaskPage:
        """Return a page of the tasks that wait for a person."""
        paused = api.List(status=[Status.PAUSED], limit=question.limit, after=question.after)
        return await self.tasks(tenant, paused)

    async def _records(
        self, tenant: str, ids: Sequence[str], *, with_input: bool, with_result: bool
    ) -> list[TaskRecord]:
        rows = await self._pool.fetch(self._sql["records"], tenant, ids, with_input, with_result)
        return [_record(tenant, row) for row in rows]

    async def checkpoint(
        self, tenant: str, task_id: str, *, after: int = 0, limit_bytes: int = UNBOUNDED
    ) -> api.CheckpointPage | None:
        """Return a task's checkpoint with its steps after number `after`, as many as fit into `limit_bytes`.

        A step's result above a quarter of that is left out and its number named in ``large``; so are the input and
        the pending step's arguments where they do not fit (they come with the first page only).
        """
        head = await self._pool.fetchrow(self._sql["checkpoint"], tenant, task_id)
        if head is None:
            return None
        room = limit_bytes
        task_input, room = _fitting(_shown_input(head) if not after else None, room)
        arguments, room = _fitting(_raw(head["arguments"]) if not after else None, room)
        steps = await self._pool.fetch(
            self._sql["steps"], tenant, task_id, after, room, min(room, limit_bytes // 4), _ROWS
        )
        page = _checkpoint(task_id, head, steps, task_input, arguments)
        if after or not head["plan_version"]:
            return page
        last = (await self._plan(tenant, task_id)).plans[-1]
        checkpoint = msgspec.structs.replace(page.checkpoint, plan=last.items, plan_version=last.version)
        return msgspec.structs.replace(page, checkpoint=checkpoint)

    async def operations(
        self, tenant: str, question: api.Operations, *, limit_bytes: int = UNBOUNDED
    ) -> api.OperationPage:
        """Return a page of a task's ledger, results in up to half as many bytes beside it; what is too large is left out."""
        first = question.after or ("", "")
        rows = await self._pool.fetch(
            self._sql["operations"], tenant, question.task_id, *first, limit_bytes, question.limit
        )
        last = (rows[-1]["step_id"], rows[-1]["operation_id"]) if rows else None
        attempts = await self._pool.fetch(
            self._sql["attempts"], tenant, question.task_id, *first, *(last or (None, None))
        )
        results = await self._results(tenant, question.task_id, rows, limit_bytes // 2)
        return api.OperationPage(
            operations=[_operation(tenant, question.task_id, row, results) for row in rows],
            attempts=[_attempt(row) for row in attempts],
            words=await self._words(tenant, question.task_id, rows, first=question.after is None),
            after=last,
        )

    async def _results(
        self, tenant: str, task_id: str, operations: Sequence[asyncpg.Record], limit_bytes: int
    ) -> dict[str, bytes]:
        steps = [row["step_id"] for row in operations if row["answers"]]
        if not steps:
            return {}
        rows = await self._pool.fetch(self._sql["results"], tenant, task_id, steps, RESULT_BYTES, limit_bytes)
        return {row["step_id"]: row["body"] for row in rows}

    async def _words(
        self, tenant: str, task_id: str, operations: Sequence[asyncpg.Record], *, first: bool
    ) -> list[WordRecord]:
        """Read what people said of these operations; with the first page also of read-only steps, which have none."""
        shown = {(row["step_id"], row["operation_id"]) for row in operations}
        steps = {step for step, _ in shown}
        rows = await self._pool.fetch(self._sql["words"], tenant, task_id, sorted(steps), first)
        return [
            word for word in _words(rows) if word.step_id not in steps or (word.step_id, word.operation_id) in shown
        ]

    async def events(
        self, tenant: str, task_id: str, from_seq: int = 1, limit_bytes: int = UNBOUNDED
    ) -> api.EventPage | None:
        """Return consecutive events from a number on, as published, as many as fit into `limit_bytes`."""
        rows = await self._pool.fetch(self._sql["events"], tenant, task_id, from_seq, limit_bytes, _ROWS)
        if not rows:
            return None
        last_seq = rows[0]["last_seq"]
        events = [msgspec.Raw(row["event"]) for row in rows if row["event"] is not None]
        large = rows[0]["seq"] if rows[0]["seq"] is not None and not events else None
        end = rows[-1]["seq"] or last_seq
        return api.EventPage(
            events=events, last_seq=last_seq, final=rows[0]["status"] in FINAL,
            next=end + 1 if end < last_seq else None, large=large,
        )  # fmt: skip

    async def piece(self, tenant: str, question: api.Slice, limit_bytes: int) -> api.Piece | None:
        """Return at most `limit_bytes` of a large value from its offset on."""
        if question.part == "input":
            row = await self._pool.fetchrow(self._sql["input"], tenant, question.task_id)
            return None if row is None else _piece(bytes(_shown_input(row)), question.offset, limit_bytes)
        seq = question.seq
        if question.part == "command":
            found = await self._pool.fetch(self._sql["command_piece"], tenant, question.task_id, question.command_id)
            bodies = await self._bodies(found)
            return _piece(bodies[0] or b"", question.offset, limit_bytes) if bodies else None
        if seq is None and question.part == "result":
            seq = await self._pool.fetchval(self._sql["final"], tenant, question.task_id)
        row = await self._pool.fetchrow(
            self._sql["piece"], tenant, question.task_id, seq, question.part == "event", question.offset, limit_bytes
        )
        if row is None or row["total"] is None:
            return None
        return api.Piece(total=row["total"], data=row["data"])

    async def command(self, tenant: str, command_id: str) -> api.CommandRecord | None:
        """Return what became of a command that has arrived."""
        row = await self._pool.fetchrow(self._sql["command"], tenant, command_id)
        return None if row is None else _command(row)

    async def commands(self, tenant: str, question: api.Commands, *, limit_bytes: int = UNBOUNDED) -> api.CommandPage:
        """Return a page of what a task was told; a body above a quarter of `limit_bytes` is left out and named."""
        rows = await self._pool.fetch(
            self._sql["commands"], tenant, question.task_id, *(question.after or (0, "")), limit_bytes,
            limit_bytes // 4, question.limit,
        )  # fmt: skip
        return api.CommandPage(
            commands=[_command(row, _raw(body)) for row, body in zip(rows, await self._bodies(rows), strict=True)],
            large=[row["command_id"] for row in rows if row["body"] is None],
            after=(rows[-1]["pos"] or 0, rows[-1]["command_id"]) if rows else None,
        )

    async def _bodies(self, rows: Sequence[asyncpg.Record]) -> list[bytes | None]:
        """The bodies of commands as they are given out: submits without what their kinds hide."""
        submits = {i: row["body"] for i, row in enumerate(rows) if row["verb"] == "submit" and row["body"] is not None}
        kinds = {i: _kind_of(body) for i, body in submits.items()}
        asked = await self._pool.fetch(self._sql["hidden"], sorted(set(kinds.values()))) if kinds else []
        hidden = {row["name"]: row["hidden"] for row in asked if row["hidden"]}
        return [
            _veiled_submit(row["body"], hidden[kinds[i]]) if i in kinds and kinds[i] in hidden else row["body"]
            for i, row in enumerate(rows)
        ]

    async def audit(self, tenant: str, question: api.Audit, *, limit_bytes: int = UNBOUNDED) -> api.AuditPage:
        """Return a page of a task's audit trail, oldest first."""
        rows = await self._pool.fetch(
            self._sql["audit"], tenant, question.task_id, question.after, limit_bytes, question.limit
        )
        lines = [api.AuditRecord(**dict(row)) for row in rows]
        return api.AuditPage(audit=lines, after=lines[-1].id if lines else None)

    async def stats(self, tenant: str, question: api.Stats) -> api.StatsPage:
        """Return how the tools fared in one page of tasks. Raises like `tasks`."""
        at, last = _place(question.after)
        rows = await self._pool.fetch(
            self._sql["recent"], tenant, at, last, question.within, question.kind, question.limit
        )
        tools = await self._pool.fetch(self._sql["stats"], tenant, [row["task_id"] for row in rows])
        more = len(rows) == question.limit
        return api.StatsPage(
            tools=[_tool(row) for row in tools], tasks=len(rows),
            after=_token(rows[-1]["created_at"], rows[-1]["task_id"]) if more else None,
        )  # fmt: skip

    async def why(self, tenant: str, task_id: str) -> str | None:
        """Return one paragraph: why a task is where it is, who holds it, what happens next, what a person could do."""
        record = await self.task(tenant, task_id, with_input=False, with_result=False)
        row = await self._pool.fetchrow(self._sql["why"], tenant, task_id)
        if record is None or row is None:
            return None
        return why.explain(record, why.Circumstances(**dict(row)))

    async def kinds(self) -> list[api.KindRecord]:
        """Return every kind that a worker has ever registered."""
        rows = await self._pool.fetch(self._sql["kinds"])
        return [_kind(row) for row in rows]

    async def health(self, commands_stream: str) -> tuple[api.HealthReport, int | None]:
        """Return the report without the stream's lag, and the sequence up to which the stream is taken in."""
        workers = await self._pool.fetch(self._sql["workers"])
        row = await self._pool.fetchrow(self._sql["lags"], commands_stream)
        assert row is not None
        at: datetime = row["at"]
        held = row["owner"] is not None and row["until"] is not None and row["until"] > at
        report = api.HealthReport(
            at=at,
            workers=[_worker(worker) for worker in workers],
            due_for=_seconds(at, row["due_at"]),
            mail_for=_seconds(at, row["mail_at"]),
            unpublished_for=_seconds(at, row["sweep_at"]),
            commands_behind=None,
            ingester=str(row["owner"]) if held else None,
        )
        return report, row["seq"]

    async def dead_letters(self, tenant: str, question: api.DeadLetters) -> api.DeadLetterPage:
        """Return messages that could not be read and are not resolved, oldest first."""
        rows = await self._pool.fetch(self._sql["dead_letters"], tenant, question.after, question.limit)
        letters = [api.DeadLetterRecord(**dict(row)) for row in rows]
        return api.DeadLetterPage(
            dead_letters=letters, after=letters[-1].id if len(letters) == question.limit else None
        )


def token(record: TaskRecord) -> str:
    """Return the ``after`` that goes on behind this task."""
    return _token(record.created_at, record.task_id)


def _token(created_at: datetime, task_id: str) -> str:
    return f"{created_at.isoformat()}/{task_id}"


def _place(after: str | None) -> tuple[datetime | None, str]:
    if after is None:
        return None, ""
    at, separator, task_id = after.partition("/")
    place = datetime.fromisoformat(at)
    if not separator or place.tzinfo is None:
        raise ValueError(f"after {after!r} is no page's token: pass the after of the page before")
    return place, task_id


def _shown_input(row: asyncpg.Record) -> msgspec.Raw:
    """A task's input as it is given out."""
    return msgspec.Raw(secrets.veil(bytes(_read_input(row["input"]).input), row["hidden"]))


def _kind_of(submit: bytes) -> str:
    try:
        return _read_kind(submit).kind
    except msgspec.MsgspecError:
        return ""


def _veiled_submit(body: bytes, names: Sequence[str]) -> bytes:
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    given = bytes(fields.get("input", msgspec.Raw(b"{}")))
    return msgspec.json.encode({**fields, "input": msgspec.Raw(secrets.veil(given, names))})


def _piece(whole: bytes, offset: int, most: int) -> api.Piece:
    return api.Piece(total=len(whole), data=whole[offset : offset + most])


def _raw(body: bytes | None) -> msgspec.Raw | None:
    return None if body is None else msgspec.Raw(body)


def _fitting(value: msgspec.Raw | None, room: int) -> tuple[msgspec.Raw | None, int]:
    size = 0 if value is None else len(bytes(value))
    return (value, room - size) if size <= room else (None, room)


def _seconds(now: datetime, since: datetime | None) -> float | None:
    return None if since is None else (now - since).total_seconds()


def _record(tenant: str, row: asyncpg.Record) -> TaskRecord:
    status = Status(row["status"])
    given = _read_input(row["input"]) if row["input"] is not None else None
    reasons = _read_reasons(row["reasons"]) if row["reasons"] else []
    body = row["body"]
    return TaskRecord(
        task_id=row["task_id"], tenant=tenant, kind=row["kind"], status=status, created_at=row["created_at"],
        updated_at=row["updated_at"], input=cast("dict[str, Any] | None", given and _shown_input(row)),
        goal=given.goal if given else None, reasons=reasons, current_step=row["current_step"], total_steps=row["plan_total"] or None,
        checkpoint=f"{row['task_id']}.{row['last_seq']}",
        versions=Versions(
            code=row["code_version"], schema=row["schema_version"], model=row["model_version"], prompt=row["prompt_version"]
        ), labels=_read_labels(row["labels"]),
        priority=row["priority"], parent=row["parent"], owner=row["owner"] and str(row["owner"]), epoch=row["epoch"],
        last_seq=row["last_seq"], cancelling=row["cancelling"], compensating=row["compensating"], waiting_for=row["waiting_for"],
        wait_until=row["wait_until"], done=Done(count=row["steps"], last=row["last"][::-1]),
        doing=why.doing(status, row["current_step"], row["step_name"], row["waiting_for"], row["wait_until"]),
        needs=[reason.do for reason in reasons], result=_raw(body) if status is Status.SUCCEEDED else None,
        failure=_read_failure(body) if status is Status.FAILED and body else None,
    )  # fmt: skip


def _spending(row: asyncpg.Record) -> Spending:
    money = row["money_limit"]
    limits = Budget(
        tokens=row["token_limit"], money=None if money is None else money / MILLIONTHS, steps=row["step_limit"],
        seconds=row["second_limit"],
    )  # fmt: skip
    return Spending(
        requests=row["requests"], lost=row["lost"], kept=row["kept"], unpriced=row["unpriced"], tokens=row["used"][0],
        money=row["used"][1] / MILLIONTHS, lent=row["lent"][0], budget=limits or None,
    )  # fmt: skip


def _checkpoint(
    task_id: str,
    head: asyncpg.Record,
    steps: Sequence[asyncpg.Record],
    task_input: msgspec.Raw | None,
    arguments: msgspec.Raw | None,
) -> api.CheckpointPage:
    completed = [
        CompletedStep(
            step_id=row["step_id"], name=row["name"], status=row["status"], digest=(row["digest"] or b"").hex(),
            seq=row["seq"],
        )
        for row in steps
    ]  # fmt: skip
    checkpoint = Checkpoint(
        checkpoint_id=f"{task_id}.{head['last_seq']}", task_id=task_id, kind=head["kind"], input=task_input,
        step_index=head["steps"], completed_steps=completed, pending_step=_pending(head, arguments),
        tool_results={row["step_id"]: _raw(row["body"]) for row in steps if row["body"] is not None},
        state_version=head["version"], created_at=head["updated_at"], schema_version=head["schema_version"],
        model_version=head["model_version"], prompt_version=head["prompt_version"],
    )  # fmt: skip
    large = [row["seq"] for row in steps if row["size"] is not None and row["body"] is None]
    return api.CheckpointPage(checkpoint=checkpoint, next=completed[-1].seq if completed else None, large=large)


def _pending(head: asyncpg.Record, arguments: msgspec.Raw | None) -> PendingStep | None:
    if head["step_id"] is not None:
        return PendingStep(
            step_id=head["step_id"], name=head["name"], status=head["status"], operation_id=head["operation_id"],
            attempt=head["attempt"], arguments=arguments, wait_until=head["wait_until"],
        )  # fmt: skip
    if head["current_step"] is None or head["waiting_for"] is None:
        return None
    return PendingStep(
        step_id=head["current_step"], name=head["waiting_for"], status="waiting", wait_until=head["wait_until"]
    )


def _operation(tenant: str, task_id: str, row: asyncpg.Record, results: Mapping[str, bytes]) -> OperationRecord:
    return OperationRecord(
        operation_id=row["operation_id"], step_id=row["step_id"],
        key=operation_key(tenant, task_id, row["step_id"], row["operation_id"]), name=row["name"],
        status=OperationStatus(row["status"]), digest=row["digest"].hex(), attempts=row["attempt"],
        epoch=row["epoch"], started_at=row["started_at"], ended_at=row["ended_at"], arguments=_raw(row["arguments"]),
        note=row["note"], doubt=row["doubt"],
        result=_raw(results.get(row["step_id"])) if row["answers"] else None,
    )  # fmt: skip


def _words(rows: Sequence[asyncpg.Record]) -> Iterator[WordRecord]:
    """Read the words about some steps, in order: each one that begins an operation gives it the next number."""
    begun: dict[str, int] = {}
    for row in rows:
        said = _read_word(row["body"])
        fields: dict[str, Any] = {"step_id": row["step_id"]}
        match said:
            case Retry(args=None):
                continue
            case Retry():
                number = begun[row["step_id"]] = begun.get(row["step_id"], 1) + 1
                fields["operation_id"] = str(number)
            case Resolve():
                begun[row["step_id"]] = begun.get(row["step_id"], 1) + said.new_operation
                fields.update(
                    verdict=said.verdict, reference=said.reference, reason=said.reason, new_operation=said.new_operation
                )
            case _:
                fields["reason"] = said.reason
        if not isinstance(said, Retry):
            fields["operation_id"] = split_operation(said.operation_id)[1]
        yield WordRecord(verb=row["verb"], at=row["decided_at"], by=row["by"], proven=not row["claimed"], **fields)


def _attempt(row: asyncpg.Record) -> AttemptRecord:
    fields: dict[str, Any] = dict(row)
    fields["worker"] = str(row["worker"])
    fields["error_class"] = row["error_class"] and ErrorClass(row["error_class"])
    return AttemptRecord(**fields)


def _answer(row: asyncpg.Record) -> Answer | None:
    if row["code"] is None:
        return None
    code = Code(row["code"])
    return Answer(
        command_id=row["command_id"], task_id=row["task_id"], ok=code in {Code.APPLIED, Code.DUPLICATE}, code=code,
        message=row["message"] or "", at=row["decided_at"] or row["received_at"],
    )  # fmt: skip


def _command(row: asyncpg.Record, body: msgspec.Raw | None = None) -> api.CommandRecord:
    return api.CommandRecord(
        command_id=row["command_id"], task_id=row["task_id"], verb=row["verb"], by=row["by"],
        digest=row["digest"].hex(), received_at=row["received_at"], answer=_answer(row), pos=row["pos"], body=body,
    )  # fmt: skip


def _tool(row: asyncpg.Record) -> api.ToolStats:
    fields: dict[str, Any] = dict(row)
    fields["errors"] = msgspec.json.decode(row["errors"])
    return api.ToolStats(**fields)


def _kind(row: asyncpg.Record) -> api.KindRecord:
    fields: dict[str, Any] = dict(row)
    fields["input_schema"] = msgspec.Raw(row["input_schema"].encode())
    return api.KindRecord(**fields)


def _worker(row: asyncpg.Record) -> api.WorkerRecord:
    fields: dict[str, Any] = dict(row)
    fields["incarnation"] = str(row["incarnation"])
    fields["health"] = msgspec.Raw(row["health"].encode())
    return api.WorkerRecord(**fields)
