"""All that is stored of one task, piece by piece, each a struct or mapping that becomes one JSON object.

Every piece has one key that says what it is: ``task`` (first, the record with input and result), ``event``, ``step`` (with
its result), ``operation`` (with its attempts and what people said), ``attempt`` (a bad one of a read-only step), ``word`` (of
a person who corrected the arguments of a read-only step), ``command`` (as it came, with its answer), ``audit``. Events and
steps come by number, operations by step, commands by place. Nothing is held but one page. Of a running task it is what
was stored when each page was read.
"""

from collections.abc import AsyncGenerator
from typing import Any, TypeAlias

import msgspec

from outlive.infra.questions import Questions
from outlive.protocol import api, codec

Piece: TypeAlias = dict[str, Any]
"""One key: what it is."""


async def steps(questions: Questions, task_id: str) -> AsyncGenerator[Piece]:
    """Yield the steps of the task's present run that are done, with their results."""
    after: int | None = 0
    while after is not None:
        question = api.GetCheckpoint(task_id=task_id, after=after)
        page = await questions.ask("checkpoint", question, api.CheckpointPage)
        for step in page.checkpoint.completed_steps:
            result = page.checkpoint.tool_results.get(step.step_id)
            if step.seq in page.large:
                result = codec.decode(await questions.whole(task_id, "result", step.seq))
            yield {"step": {**msgspec.structs.asdict(step), "result": result}}
        after = page.next


async def events(questions: Questions, task_id: str) -> AsyncGenerator[Piece]:
    """Yield all progress events, as published."""
    from_seq: int | None = 1
    while from_seq is not None:
        page = await questions.ask("events", api.Events(task_id=task_id, from_seq=from_seq), api.EventPage)
        for event in page.events:
            yield {"event": event}
        if page.large is not None:
            yield {"event": msgspec.Raw(await questions.whole(task_id, "event", page.large))}
        from_seq = page.next


async def operations(questions: Questions, task_id: str) -> AsyncGenerator[Piece]:
    """Yield the ledger: each operation with its bad attempts and what people said; then those of read-only steps."""
    after, first = None, True
    while first or after is not None:
        page = await questions.ask("operations", api.Operations(task_id=task_id, after=after), api.OperationPage)
        ids = {(one.step_id, one.operation_id) for one in page.operations}
        for one in page.operations:
            its = (one.step_id, one.operation_id)
            yield {
                "operation": {
                    **msgspec.structs.asdict(one),
                    "tries": [each for each in page.attempts if (each.step_id, each.operation_id) == its],
                    "words": [each for each in page.words if (each.step_id, each.operation_id) == its],
                }
            }
        for each in page.attempts:
            if (each.step_id, each.operation_id) not in ids:
                yield {"attempt": each}
        for said in page.words:
            if (said.step_id, said.operation_id) not in ids:
                yield {"word": said}
        after, first = page.after, False


async def commands(questions: Questions, task_id: str) -> AsyncGenerator[Piece]:
    """Yield what the task was told, as it came, with the answers."""
    after, first = None, True
    while first or after is not None:
        page = await questions.ask("commands", api.Commands(task_id=task_id, after=after), api.CommandPage)
        for each in page.commands:
            if each.command_id in page.large:
                body = codec.decode(await questions.whole(task_id, "command", command_id=each.command_id))
                yield {"command": msgspec.structs.replace(each, body=body)}
            else:
                yield {"command": each}
        after, first = page.after, False


async def audit(questions: Questions, task_id: str) -> AsyncGenerator[Piece]:
    """Yield who did what to the task, and refused writes."""
    after: int | None = 0
    while after is not None:
        page = await questions.ask("audit", api.Audit(task_id=task_id, after=after), api.AuditPage)
        for line in page.audit:
            yield {"audit": line}
        after = page.after
