"""The service that answers questions about tasks over NATS; every worker runs one, any of them answers.

One endpoint a verb (`outlive.protocol.api.VERBS`) for all tenants, in one queue group: a NATS micro service, so
``nats micro ls`` shows it. Nothing waits without a bound: too many questions at once are told so, a database that
does not answer or a pool that is used up becomes a `Problem`, never silence.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import asyncpg
import msgspec
import nats.errors
from anyio.abc import TaskGroup, TaskStatus
from nats.micro import add_service
from nats.micro.request import ERROR_HEADER, Request
from nats.micro.service import EndpointConfig, Service, ServiceConfig

from outlive.infra.bus import Bus, BusError
from outlive.infra.database import TRANSIENT, Pool
from outlive.infra.store import Store, token
from outlive.infra.wire import WireClient
from outlive.protocol import api, ids
from outlive.protocol.api import Problem, Trouble
from outlive.protocol.subjects import Subjects

VERSION: Final = "1.0.0"
"""Of the contract, as service discovery shows it."""

_ENVELOPE: Final = 2048
"""Bytes of a reply that are kept free for what stands around the page's items."""

_log = logging.getLogger(__name__)

T = TypeVar("T")
_Handler = Callable[[str, Any], Awaitable[msgspec.Struct]]


class _Refused(Exception):
    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(error=trouble, message=message)


class ApiService:
    """Answers from the database, for as long as `run` runs.

    Args:
        pool: what is asked; its size bounds how many questions are worked on at once.
        bus: where questions come from.
        subjects: of this installation.
        at_once: questions accepted at the same time; the next ones are answered ``busy``.
    """

    def __init__(self, pool: Pool, bus: Bus, subjects: Subjects, *, at_once: int = 256) -> None:
        self._store = Store(pool)
        self._bus = bus
        self._subjects = subjects
        self._at_once = at_once
        self._open = 0
        self._service: Service | None = None
        self._tasks: TaskGroup
        self._handlers: dict[str, _Handler] = {
            "get": self._get,
            "list": self._list,
            "waiting": self._waiting,
            "why": self._why,
            "checkpoint": self._checkpoint,
            "operations": self._operations,
            "events": self._events,
            "slice": self._slice,
            "command": self._command,
            "commands": self._commands,
            "audit": self._audit,
            "stats": self._stats,
            "kinds": self._kinds,
            "health": self._health,
            "dead_letters": self._dead_letters,
        }

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled; started once the questions reach us."""
        async with anyio.create_task_group() as self._tasks:
            try:
                await self._bus.wait_connected()
                await self._bus.attach(self._attach)
                task_status.started()
                await anyio.sleep_forever()
            finally:
                self._bus.detach(self._attach)
                await self._stop()

    async def _attach(self, client: WireClient) -> None:
        config = ServiceConfig(
            name=self._subjects.prefix, version=VERSION, description="Outlive: questions about tasks", queue_group="api"
        )
        self._service = service = await add_service(client, config)
        for verb in self._handlers:
            await service.add_endpoint(
                EndpointConfig(name=verb, subject=self._subjects.api("*", verb), handler=partial(self._receive, verb))
            )
        await client.written()  # the ping of a flush overtakes what is pending
        await client.flush()

    async def _stop(self) -> None:
        with anyio.move_on_after(1.0, shield=True), contextlib.suppress(nats.errors.Error):
            if self._service is not None:
                await self._service.stop()

    async def _receive(self, verb: str, request: Request) -> None:
        if self._open >= self._at_once:
            await self._reply(request, Problem(error=Trouble.BUSY, message="too many questions at once: ask again"))
            return
        self._open += 1
        self._tasks.start_soon(self._answer, verb, request)

    async def _answer(self, verb: str, request: Request) -> None:
        try:
            await self._reply(request, await self._reply_to(verb, request))
        finally:
            self._open -= 1

    async def _reply(self, request: Request, reply: msgspec.Struct) -> None:
        body = msgspec.json.encode(reply)
        if len(body) > self._bus.nc.max_payload:
            reply = Problem(
                error=Trouble.TOO_LARGE,
                message=f"the answer has {len(body):,} bytes, a NATS message here at most {self._bus.nc.max_payload:,}: "
                "leave input and result out (with_input, with_result) and read them in pieces (slice)",
            )
            body = msgspec.json.encode(reply)
        headers = None
        if isinstance(reply, Problem):
            headers = {ERROR_HEADER: reply.message.replace("\n", " ")[:500], api.ERROR_HEADER: reply.error}
        try:
            # The service's own respond would buffer while the link is down.
            await self._bus.publish(request._msg.reply, body, headers)  # noqa: SLF001  # no public way to the reply
        except BusError as error:
            _log.info("a question could not be answered: %s", error)

    async def _reply_to(self, verb: str, request: Request) -> msgspec.Struct:
        try:
            tenant = ids.check_tenant(request.subject.split(".")[1])
            question = msgspec.json.decode(request.data or b"{}", type=api.VERBS[verb].request)
            for field in ("task_id", "command_id"):
                if (given := getattr(question, field, None)) is not None:
                    ids.check(field, given)
            return await self._handlers[verb](tenant, question)
        except _Refused as refused:
            return refused.problem
        except (msgspec.MsgspecError, ValueError, asyncpg.DataError) as error:
            return Problem(error=Trouble.INVALID, message=f"{verb}: {error}")
        except Exception as error:  # noqa: BLE001  # one question must not end the service
            passing = isinstance(error, TRANSIENT)
            _log.log(logging.INFO if passing else logging.ERROR, "api.%s failed", verb, exc_info=not passing)
            return Problem(
                error=Trouble.UNAVAILABLE, message=f"{verb} cannot be answered now: {error or type(error).__name__}"
            )

    @property
    def _room(self) -> int:
        return max(self._bus.nc.max_payload - _ENVELOPE, _ENVELOPE)

    async def _get(self, tenant: str, question: api.Get) -> msgspec.Struct:
        return _known(
            await self._store.task(
                tenant, question.task_id, with_input=question.with_input, with_result=question.with_result
            ),
            tenant,
            question.task_id,
        )

    async def _list(self, tenant: str, question: api.List) -> msgspec.Struct:
        return _cut(await self._store.tasks(tenant, question), self._room)

    async def _waiting(self, tenant: str, question: api.Waiting) -> msgspec.Struct:
        return _cut(await self._store.waiting(tenant, question), self._room)

    async def _why(self, tenant: str, question: api.Why) -> msgspec.Struct:
        text = _known(await self._store.why(tenant, question.task_id), tenant, question.task_id)
        return api.Explanation(task_id=question.task_id, text=text)

    async def _checkpoint(self, tenant: str, question: api.GetCheckpoint) -> msgspec.Struct:
        page = await self._store.checkpoint(tenant, question.task_id, after=question.after, limit_bytes=self._room)
        return _known(page, tenant, question.task_id)

    async def _operations(self, tenant: str, question: api.Operations) -> msgspec.Struct:
        page = await self._store.operations(tenant, question, limit_bytes=self._room // 2)
        if not page.operations and question.after is None:
            _known(await self._store.task(tenant, question.task_id, with_input=False), tenant, question.task_id)
        return page

    async def _events(self, tenant: str, question: api.Events) -> msgspec.Struct:
        room = min(self._room, question.max_bytes or self._room)
        page = await self._store.events(tenant, question.task_id, question.from_seq, room)
        return _known(page, tenant, question.task_id)

    async def _slice(self, tenant: str, question: api.Slice) -> msgspec.Struct:
        piece = await self._store.piece(tenant, question, self._room * 3 // 4)  # base64 makes four of three
        if piece is None:
            of = f"number {question.seq} of " if question.seq is not None else ""
            of = f"{question.command_id} of " if question.command_id is not None else of
            raise _Refused(
                Trouble.NOT_FOUND, f"{of}task {question.task_id!r} of tenant {tenant!r} has no {question.part}"
            )
        return piece

    async def _command(self, tenant: str, question: api.FindCommand) -> msgspec.Struct:
        record = await self._store.command(tenant, question.command_id)
        if record is None:
            raise _Refused(
                Trouble.UNKNOWN_COMMAND,
                f"no command {question.command_id!r} of tenant {tenant!r} has arrived (yet). Sending it again is safe",
            )
        return record

    async def _commands(self, tenant: str, question: api.Commands) -> msgspec.Struct:
        page = await self._store.commands(tenant, question, limit_bytes=self._room)
        if not page.commands and question.after is None:
            _known(await self._store.task(tenant, question.task_id, with_input=False), tenant, question.task_id)
        return page

    async def _audit(self, tenant: str, question: api.Audit) -> msgspec.Struct:
        return await self._store.audit(tenant, question, limit_bytes=self._room)

    async def _stats(self, tenant: str, question: api.Stats) -> msgspec.Struct:
        return await self._store.stats(tenant, question)

    async def _kinds(self, _tenant: str, _question: api.Kinds) -> msgspec.Struct:
        return api.KindPage(kinds=await self._store.kinds())

    async def _health(self, _tenant: str, _question: api.Health) -> msgspec.Struct:
        report, taken_in = await self._store.health(self._subjects.commands_stream)
        with contextlib.suppress(BusError):
            state = (await self._bus.api(f"STREAM.INFO.{self._subjects.commands_stream}", timeout=2.0))["state"]
            behind = max(state["last_seq"] - (taken_in or 0), 0)
            report = msgspec.structs.replace(report, commands_behind=behind)
        return report

    async def _dead_letters(self, tenant: str, question: api.DeadLetters) -> msgspec.Struct:
        return await self._store.dead_letters(tenant, question)


def _known(value: T | None, tenant: str, task_id: str) -> T:
    if value is None:
        raise _Refused(Trouble.UNKNOWN_TASK, f"there is no task {task_id!r} of tenant {tenant!r}")
    return value


def _cut(page: api.TaskPage, room: int) -> api.TaskPage:
    while len(page.tasks) > 1 and len(msgspec.json.encode(page)) > room:
        kept = page.tasks[: len(page.tasks) // 2]
        page = api.TaskPage(tasks=kept, after=token(kept[-1]))
    return page
