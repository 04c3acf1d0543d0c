"""The clerk: applies commands to tasks that have no actor, and carries news between parents and children.

It needs no user code and no worker that has the kind: cancel, pause and resume work on any task, of any version. One
transaction takes the task, decides its mail with the pure `protocol.lifecycle.apply`, writes through the journal's own
statement, and lets go.
"""

import asyncio
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import structlog

from outlive.infra import database, failpoints, happenings, sql
from outlive.infra.announcer import Announcer
from outlive.infra.budgets import raise_limits
from outlive.infra.claims import Claimed, Claims, LedgerEntry, Mail, claimed_row
from outlive.infra.clock import Clock
from outlive.infra.journal import Batch, Line, Link
from outlive.infra.records import AnswerRow, AttemptRow, Claim, Fact, OperationRow, Record, State
from outlive.protocol import codec, lifecycle, steps
from outlive.protocol.answers import Code
from outlive.protocol.budget import Budget
from outlive.protocol.commands import AnyCommand, EditPlan, Internal, Resume
from outlive.protocol.effects import cancel_message, summarize
from outlive.protocol.lifecycle import Decision, Facts
from outlive.protocol.operations import ErrorClass
from outlive.protocol.task import FINAL, Reason, ReasonCode, Status

BATCH: Final = 200
_RECONNECT: Final = 0.2
_UNKNOWN: Final = dict.fromkeys(("status", "name", "result", "operation_id"))
_SAID: Final = {"approve": "approved", "reject": "rejected", "resolve": "resolved", "signal": "answered"}
CANCELLED_BY_PARENT: Final = "the parent was cancelled"
LOST: Final = "its worker ended before the outcome was recorded"

_log = structlog.get_logger("outlive.clerk")
_reasons = msgspec.json.Decoder(list[Reason])
_commands: Final = msgspec.json.Decoder(AnyCommand | Internal)


def read_command(mail: Mail) -> AnyCommand | Internal | str:
    """Decode an inbox row's body by its type; a string says what is wrong with it."""
    try:
        command: AnyCommand | Internal = _commands.decode(mail.body)
    except msgspec.ValidationError as error:
        return f"{mail.verb} is not understood: {error}"
    return command


class _Retry(msgspec.Struct):
    args: msgspec.Raw = msgspec.Raw(b"null")


def corrected(letter: Mail) -> bytes | None:
    """Return the arguments that a retry gives a step, as they will be stored: every digit as it came. None: it gives none."""
    if letter.verb != "retry":
        return None
    args = bytes(msgspec.json.decode(letter.body, type=_Retry).args)
    return None if args == b"null" else codec.canonical(codec.plain(args))


def decided(letter: Mail, decision: Decision, before: Status) -> AnswerRow:
    """Return the answer to a letter, with what the audit trail says of it (nothing of what the system does itself)."""
    who = None if letter.verb == "child" else letter.by or "unknown"
    return AnswerRow(
        letter.pos, str(decision.code), decision.message, who=who, what=letter.verb, before=str(before),
        after=str(decision.status),
    )  # fmt: skip


def is_word(letter: Mail) -> bool:
    """True for a person's word on one step: an answer to what it asks. Other signals are for whoever waits for them."""
    return letter.verb in _SAID and (letter.verb != "signal" or steps.is_answer(letter.name))


def answered(verb: str, by: str | None, at: datetime) -> str:
    """Say who answered a question, for the one who comes second."""
    return f"{by or 'somebody'} {_SAID[verb]} it at {at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


def read_reasons(body: bytes | None) -> tuple[Reason, ...]:
    """Decode the reasons column."""
    return tuple(_reasons.decode(body)) if body else ()


class Clerk:
    """One worker's clerk; those of several workers share the mail by skipping locked rows.

    Args:
        dsn: of the store.
        incarnation: of this worker: owns a task for the length of a transaction.
        committed: as for the journal.
        left: told of each task let go, after `committed`.
        misfit: says why arguments do not fit the tool of a kind, given its name; empty where they do, or nobody here knows.
    """

    def __init__(
        self,
        dsn: str,
        incarnation: uuid.UUID,
        clock: Clock,
        announcer: Announcer,
        *,
        committed: Callable[[Claim, list[Record]], None],
        left: Callable[[Claim], None],
        told: Callable[[Sequence[tuple[str, str, uuid.UUID | None]]], None],
        misfit: Callable[[str, str, bytes], str] = lambda _kind, _tool, _arguments: "",
        poll: float = 1.0,
    ) -> None:
        """See the class."""
        self._dsn, self._incarnation, self._clock, self._announcer = dsn, incarnation, clock, announcer
        self._committed, self._left, self._told, self._misfit, self._poll = committed, left, told, misfit, poll
        self._sql = sql.load("clerk")
        self._journal_sql = sql.load("journal")
        self._work = asyncio.Event()
        self.last_round_at = 0.0

    def wake(self) -> None:
        """There is mail, or news to carry."""
        self._work.set()

    async def run(self) -> None:
        """Serve until cancelled; through outages of Postgres."""
        told = False  # one line an outage
        while True:
            try:
                link = await Link.open(self._dsn, self._incarnation, self._journal_sql)
                told = False
                try:
                    await self._serve(link)
                finally:
                    link.connection.terminate()
            except database.TRANSIENT as error:
                if not told:
                    _log.warning("clerk waits for Postgres", error=str(error))
                told = True
                await asyncio.sleep(_RECONNECT)

    async def _serve(self, link: Link) -> None:
        while True:
            self._work.clear()
            while await self.apply(link) or await self.tell(link):
                pass
            await link.connection.execute(self._sql["stale_mail"])
            self.last_round_at = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self._poll):
                    await self._work.wait()
            except TimeoutError:
                self._work.set()  # a poll: look once more before the next wait

    async def apply(self, link: Link) -> int:
        """Apply the mail of up to `BATCH` tasks in one transaction. Returns how many tasks had some."""
        async with link.connection.transaction():
            rows = await link.connection.fetch(self._sql["take"], self._incarnation, BATCH)
            if not rows:
                return 0
            cases = [Case(_taken(row), row["due_at"], row["ended_at"], self._misfit) for row in rows]
            claims = Claims(link.connection, self._incarnation, [])
            mail = await claims.mail([case.claim for case in cases])
            await self._ledgers(claims, cases, mail)
            await self._about(link, cases, mail)
            now = self._clock.now()
            for case, letters in zip(cases, mail, strict=True):
                for letter in letters:
                    case.decide(letter, now)
            batches = [case.batch() for case in cases]
            if refused := await link.batch(batches):
                raise RuntimeError(f"the clerk's own rows were refused: {refused}")
            await self._forgive(link, cases)
            await raise_limits(link.connection, [(*case.claim.key, raised) for case in cases for raised in case.raised])
            if failpoints.armed:
                await failpoints.hit("clerk.before_commit")
        if failpoints.armed:
            await failpoints.hit("clerk.after_commit")
        for case, batch in zip(cases, batches, strict=True):
            self._say(case, batch.records, now)
        return len(cases)

    async def _forgive(self, link: Link, cases: Sequence["Case"]) -> None:
        """A person let tasks out of quarantine: their deaths count no longer."""
        freed = [case.claim.key for case in cases if case.freed]
        if freed:
            await link.connection.execute(self._sql["forgive"], [k[0] for k in freed], [k[1] for k in freed])

    async def _ledgers(self, claims: Claims, cases: Sequence["Case"], mail: Sequence[Sequence[Mail]]) -> None:
        """Look up what tasks have done that are to be cancelled."""
        cancelled = {
            case.claim.key: case
            for case, letters in zip(cases, mail, strict=True)
            if any(letter.verb == "cancel" for letter in letters)
        }
        if cancelled:
            for key, ledger in (await claims.ledgers(list(cancelled))).items():
                cancelled[key].ledger = ledger

    async def _about(self, link: Link, cases: Sequence["Case"], mail: Sequence[Sequence[Mail]]) -> None:
        """Look up the steps that letters of people are about."""
        named = [
            (case, letter.name)
            for case, letters in zip(cases, mail, strict=True)
            for letter in letters
            if letter.name is not None and (is_word(letter) or letter.verb not in {"signal", "child"})
        ]
        if not named:
            return
        keys = sorted({(*case.claim.key, name) for case, name in named})
        rows = await link.connection.fetch(self._sql["about"], *_columns(keys, 3))
        by_key = {case.claim.key: case for case, _ in named}
        for row in rows:
            case = by_key[row["tenant"], row["task_id"]]
            case.steps[row["step_id"]] = row
            if row["verb"] is not None:
                case.answered[row["step_id"]] = answered(row["verb"], row["by"], row["decided_at"])

    def _say(self, case: "Case", records: list[Record], now: datetime) -> None:
        claim = case.claim
        if case.caught_up:
            self._committed(claim, records)
            self._left(claim)
        for command_id, code, message in case.answers:
            self._announcer.answer(claim.tenant, claim.task_id, command_id, code, message, now)
        if case.notable:
            self._announcer.attention(claim.key, claim.kind, case.status, case.said, now, list(case.reasons))

    async def tell(self, link: Link) -> int:
        """Carry news between relatives: an end to its parent, a cancel to living children. Returns how many tasks had some."""
        async with link.connection.transaction():
            rows = await link.connection.fetch(self._sql["tell_lock"], BATCH)
            telling = [row for row in rows if row["telling"]]
            if not telling:
                return 0
            results = await self._results(link, telling)
            news = [item for row in telling for item in _news(row, rows, results)]
            owners = await link.connection.fetch(self._sql["tell"], *_columns(news, 8))
            await link.connection.execute(
                self._sql["told"], [row["tenant"] for row in telling], [row["task_id"] for row in telling]
            )
            if failpoints.armed:
                await failpoints.hit("tell.before_commit")
        if failpoints.armed:
            await failpoints.hit("tell.after_commit")
        self._told([(row["tenant"], row["task_id"], row["owner"]) for row in owners])
        return len(telling)

    async def _results(self, link: Link, rows: Sequence[Any]) -> dict[tuple[str, str], bytes]:
        ended = [row for row in rows if row["status"] in FINAL and row["parent"] is not None]
        found = await link.connection.fetch(
            self._sql["results"], [r["tenant"] for r in ended], [r["task_id"] for r in ended],
            [r["last_seq"] for r in ended],
        )  # fmt: skip
        return {(row["tenant"], row["task_id"]): row["body"] for row in found}


def _taken(row: Any) -> Claimed:
    task = claimed_row(row)
    task.plan_version, task.plans = row["plan_version"], row["plans"]
    return task


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]


def _news(row: Any, family: Sequence[Any], results: dict[tuple[str, str], bytes]) -> list[tuple[Any, ...]]:
    """Rows for relatives' inboxes: (tenant, task id, command id, verb, name, body, digest, who)."""
    tenant, task_id = row["tenant"], row["task_id"]
    news: list[tuple[Any, ...]] = []
    if row["parent"] is not None and row["status"] in FINAL:
        body = _child_ended(row, results.get((tenant, task_id)))
        command_id = f"_child-{task_id}-{row['last_seq']}"
        news.append((tenant, row["parent"], command_id, "child", task_id, body, codec.digest(body), "_system"))
    if row["cancelling"] or row["status"] == Status.CANCELLED:
        by = f"parent {task_id}"
        undo = bool(row["compensating"])
        order = {"type": "cancel", "by": by, "reason": CANCELLED_BY_PARENT, **({"compensate": True} if undo else {})}
        body, what = codec.encode(order), "compensate" if undo else "cancel"
        news += [
            (tenant, child["task_id"], f"_{what}-{child['task_id']}", "cancel", None, body, codec.digest(body), by)
            for child in family
            if child["tenant"] == tenant and child["parent"] == task_id and child["status"] not in FINAL
        ]
    return news


def _child_ended(row: Any, result: bytes | None) -> bytes:
    ended = {"type": "child", "child": row["task_id"], "status": row["status"]}
    if result:
        ended["result" if row["status"] == Status.SUCCEEDED else "failure"] = msgspec.Raw(result)
    return codec.encode(ended)


class Case:
    """One task on the clerk's desk: its state, moved by each letter."""

    def __init__(
        self,
        task: Claimed,
        due_at: datetime | None,
        ended_at: datetime | None,
        misfit: Callable[[str, str, bytes], str],
    ) -> None:
        """Begin with what the table says."""
        self.claim = task.claim
        self.status = Status(task.status)
        self.reasons = read_reasons(task.reasons)
        self.cancelling = task.cancelling
        self.compensating = task.compensating
        self.ledger: list[LedgerEntry] = []  # of tasks that are to be cancelled
        self.steps: dict[str, Any] = {}  # how the steps stand that letters name
        self.answered: dict[str, str] = {}  # who answered what was asked about a step
        self.answers: list[tuple[str, Code, str]] = []
        self.caught_up = task.claim.published == task.claim.last_seq  # else the sweep publishes, in order
        self.said = ""
        self.raised: list[Budget] = []
        self._before = (self.status, self.reasons)
        self._plans, self._plan_version = task.plans, task.plan_version
        self._plan_total: int | None = None  # of a new plan
        self._was_cancelling = (self.cancelling, self.compensating)
        self._started = task.code_version is not None  # its first record says by which code
        self._ended_at = ended_at
        self._misfit = misfit
        self._due_at = due_at
        self._facts: list[Fact] = []
        self._rows: list[AnswerRow] = []
        self._lost: list[tuple[OperationRow, AttemptRow]] = []
        self._applied = task.claim.applied

    def decide(self, letter: Mail, now: datetime) -> None:
        """Apply one letter."""
        self._applied = letter.pos
        command = read_command(letter)
        before = self.status
        decision = self._apply(command, letter, now)
        if decision.ok and is_word(letter):
            self.answered[letter.name or ""] = answered(letter.verb, letter.by, now)
        self.answers.append((letter.command_id, decision.code, decision.message))
        reopened = before in FINAL and decision.status not in FINAL
        if (reopened or before not in FINAL) and letter.verb != "child":
            self._facts.append(
                happenings.command(
                    self.claim, now, letter.command_id, letter.verb, decision.code, decision.message, by=letter.by
                )
            )
        if decision.ok and isinstance(command, Resume) and command.raise_budget is not None:
            self.raised.append(command.raise_budget)
        if decision.ok and isinstance(command, EditPlan):
            plan = command.plan(letter.by)
            self._facts.append(happenings.plan(self.claim, now, plan, inbox_pos=letter.pos))
            self._plan_version, self._plan_total = plan.version, len(plan.items)
        self._move(decision, letter, now)
        self._rows.append(decided(letter, decision, before))

    def _apply(self, command: AnyCommand | Internal | str, letter: Mail, now: datetime) -> Decision:
        if isinstance(command, str):
            return self._invalid(command)
        step = self.steps.get(letter.name or "") or _UNKNOWN
        facts = Facts(
            task_id=self.claim.task_id, status=self.status, reasons=self.reasons, started=self._started,
            cancelling=self.cancelling, compensating=self.compensating, ended_at=self._ended_at, step=step["status"], name=step["name"] or "",
            result=(step["result"] or b"").decode(), operation=step["operation_id"] or "",
            answered=self.answered.get(letter.name or "", ""), plans=self._plans, plan_version=self._plan_version,
        )  # fmt: skip
        decision = lifecycle.apply(facts, command, now=now)
        arguments = corrected(letter) if decision.ok else None
        if arguments is not None and (why := self._misfit(self.claim.kind, facts.name, arguments)):
            return self._invalid(f"The arguments do not fit: {why}. Nothing was changed.")
        return decision

    def _invalid(self, message: str) -> Decision:
        return Decision(
            code=Code.INVALID, message=message, status=self.status, reasons=self.reasons, cancelling=self.cancelling,
            compensating=self.compensating,
        )  # fmt: skip

    def _move(self, decision: Decision, letter: Mail, now: datetime) -> None:
        if decision.wake:
            self._due_at = now
        if decision.status is not self.status or decision.reasons != self.reasons:
            lifecycle.check_transition(self.status, decision.status)
            final = decision.status in FINAL
            effects = summarize([one.entry for one in self.ledger]) if final else None
            self.said = (
                decision.message
                if effects is None
                else cancel_message(letter.by, effects, compensated=self.compensating)
            )
            self._facts.append(
                happenings.status(
                    self.claim, now, decision.status, self.said, reasons=decision.reasons, final=final, effects=effects
                )
            )
            if final:
                self._lost = [lost(one, now) for one in self.ledger if one.status == "started"]
        self.status, self.reasons = decision.status, decision.reasons
        self.cancelling, self.compensating = decision.cancelling, decision.compensating

    @property
    def freed(self) -> bool:
        """True when it was in quarantine and is not any more."""
        return _quarantined(self._before[1]) and not _quarantined(self.reasons)

    @property
    def notable(self) -> bool:
        """True when a person should hear of it."""
        return self.status != self._before[0] and (self.status in FINAL or self.status is Status.PAUSED)

    def batch(self) -> Batch:
        """All of it as one record that lets the task go."""
        waits = self.status in {Status.QUEUED, Status.RUNNING}
        state = State(
            status=str(self.status) if self.status != self._before[0] else None,
            reasons=codec.encode(list(self.reasons)) if self.reasons != self._before[1] else None,
            cancelling=self.cancelling or None,
            compensating=self.compensating if self.compensating != self._was_cancelling[1] else None,
            leave="always",
            due_at=self._due_at if waits else ends_by_itself(self.reasons),
            tell=(self.status is Status.CANCELLED and self._before[0] is not Status.CANCELLED)
            or (self.cancelling, self.compensating) > self._was_cancelling,
            plan_version=self._plan_version if self._plan_total is not None else None,
            plan_total=self._plan_total,
        )
        line = Line(self.claim, _unqueued)
        operations, attempts = [one[0] for one in self._lost], [one[1] for one in self._lost]
        line.hand_in(
            Record(
                facts=self._facts, answers=self._rows, state=state, applied=self._applied, operations=operations,
                attempts=attempts,
            )
        )  # fmt: skip
        return line.take()


def lost(one: LedgerEntry, at: datetime) -> tuple[OperationRow, AttemptRow]:
    """What the ledger says of an operation that was begun, and whose worker ended before its outcome was recorded."""
    row = OperationRow(
        one.step_id, one.operation_id, one.name, "unknown", one.attempt, one.digest, codec.CODEC_JSON, b"",
        one.started_at, one.deadline, at,
    )  # fmt: skip
    attempt = AttemptRow(
        one.step_id, one.operation_id, one.attempt, one.worker, one.started_at, None, ErrorClass.TIMEOUT, LOST
    )
    return row, attempt


def ends_by_itself(reasons: Sequence[Reason]) -> datetime | None:
    """When the first of these reasons runs out; an operator's pause stops this clock as well."""
    if any(reason.reason is ReasonCode.OPERATOR for reason in reasons):
        return None
    return min((reason.until for reason in reasons if reason.until is not None), default=None)


def _quarantined(reasons: Sequence[Reason]) -> bool:
    return any(reason.reason is ReasonCode.QUARANTINED for reason in reasons)


def _unqueued(_line: Line) -> None:
    """The clerk writes its lines itself."""
