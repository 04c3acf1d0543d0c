"""NATS subjects and stream names, built and read in one place.

Grammar (ADR-6's words: a subject is tokens joined by dots): ``{prefix}.{tenant}.{family}...``. Every token that comes
from outside is a checked id, so no subject can hold a wildcard or a further dot.
"""

from typing import NamedTuple

from outlive.protocol import ids


class CommandSubject(NamedTuple):
    """The parts of a command's subject; ``principal`` is fixed by the NATS permission where users log in."""

    tenant: str
    task_id: str
    verb: str
    principal: str | None


class Subjects(NamedTuple):
    """The subjects of one installation; ``prefix`` is one token, ``outlive`` by default."""

    prefix: str = "outlive"

    @property
    def commands_stream(self) -> str:
        """Name of the command stream."""
        return f"{self.prefix.upper()}_COMMANDS"

    @property
    def progress_stream(self) -> str:
        """Name of the progress stream."""
        return f"{self.prefix.upper()}_PROGRESS"

    @property
    def all_commands(self) -> str:
        """Filter of the command stream."""
        return f"{self.prefix}.*.cmd.>"

    @property
    def all_progress(self) -> str:
        """Filter of the progress stream."""
        return f"{self.prefix}.*.progress.*"

    def command(self, tenant: str, task_id: str, verb: str, principal: str | None = None) -> str:
        """Where a command to a task is published."""
        tail = f".{principal}" if principal else ""
        return f"{self.prefix}.{tenant}.cmd.{task_id}.{verb}{tail}"

    def progress(self, tenant: str, task_id: str) -> str:
        """Where a task's progress events appear."""
        return f"{self.prefix}.{tenant}.progress.{task_id}"

    def answer(self, tenant: str, task_id: str) -> str:
        """Where answers to a task's commands appear (not stored by NATS)."""
        return f"{self.prefix}.{tenant}.answer.{task_id}"

    def attention(self, tenant: str, task_id: str) -> str:
        """Where one small message appears when a person must act, and when a task ends."""
        return f"{self.prefix}.{tenant}.attention.{task_id}"

    def tokens(self, tenant: str, task_id: str) -> str:
        """Where a model's words appear while it writes them, if its agent streams (not stored by NATS, no facts)."""
        return f"{self.prefix}.{tenant}.tokens.{task_id}"

    def api(self, tenant: str, verb: str) -> str:
        """Where a question about tasks is asked (request and reply)."""
        return f"{self.prefix}.{tenant}.api.{verb}"

    def chaos(self, tenant: str, verb: str) -> str:
        """Where workers that were started for it are told to break something (request and reply)."""
        return f"{self.prefix}.{tenant}.chaos.{verb}"

    def wake(self, incarnation: str) -> str:
        """Where a worker hears of its tasks' mail, and all of due work (``all``) and pauses (``pauses``). Internal."""
        return f"{self.prefix}._wake.{incarnation}"

    def parse_command(self, subject: str) -> CommandSubject:
        """Read a command's subject.

        Raises:
            outlive.protocol.ids.InvalidId: a token is no valid id, or the shape is another one.
        """
        tokens = subject.split(".")
        match tokens:
            case [self.prefix, tenant, "cmd", task_id, verb] | [self.prefix, tenant, "cmd", task_id, verb, _]:
                principal = ids.check("principal", tokens[5]) if len(tokens) == 6 else None
                return CommandSubject(ids.check_tenant(tenant), ids.check("task_id", task_id), verb, principal)
            case _:
                raise ids.InvalidId(
                    f"subject {subject!r} is not allowed: a command goes to {self.prefix}.TENANT.cmd.TASK_ID.VERB"
                )
