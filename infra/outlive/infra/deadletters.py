"""Settling messages that could not be read: sent once more, or dropped. The store lists them (`Store.dead_letters`)."""

import json
import secrets
from typing import Final

from outlive.infra import intake, sql
from outlive.infra.bus import Bus
from outlive.infra.database import Pool
from outlive.infra.pull import Message

_SQL: Final = sql.load("deadletters")
_EXPECTATIONS: Final = "nats-expected-"  # headers that held when it was first sent


class NoSuchLetter(LookupError):
    """There is no open dead letter of that tenant and number: never was, or somebody settled it."""

    def __init__(self, tenant: str, number: int) -> None:
        super().__init__(f"tenant {tenant} has no open dead letter {number}: see outlive dead-letters")


async def read(pool: Pool, tenant: str, number: int) -> Message:
    """Return an open dead letter as it came: subject, headers, body. Raises `NoSuchLetter`."""
    letter = await pool.fetchrow(_SQL["open"], tenant, number)
    if letter is None:
        raise NoSuchLetter(tenant, number)
    return Message(letter["stream_seq"], "", letter["subject"], json.loads(letter["headers"]), letter["body"])


async def requeue(pool: Pool, bus: Bus, tenant: str, number: int, *, by: str) -> int:
    """Send a dead letter once more, as it came: useful after an upgrade, or when the store refused it for a while.

    Returns:
        Its new sequence in the command stream. Still unreadable, it becomes a new dead letter.

    Raises:
        NoSuchLetter: see there.
        outlive.infra.bus.BusError: it was not sent, and stays open.
    """
    message = await read(pool, tenant, number)
    command_id = intake.given_id(message)
    await pool.execute(_SQL["forget"], tenant, command_id, message.body)
    headers = {name: text for name, text in message.headers.items() if not name.lower().startswith(_EXPECTATIONS)}
    if command_id is not None:  # in our clients' form: the stream itself must not take it for a repetition
        headers["Nats-Msg-Id"] = f"{command_id}:{secrets.token_hex(8)}"
    ack = await bus.publish_tracked(message.subject, message.body, headers)
    await pool.execute(_SQL["resolve"], tenant, number, f"requeued as {ack.seq}", by, "requeue")
    return ack.seq


async def drop(pool: Pool, tenant: str, number: int, *, by: str, reason: str = "") -> None:
    """Settle a dead letter without doing anything about it; it stays in the store. Raises `NoSuchLetter`."""
    resolution = f"dropped: {reason}" if reason else "dropped"
    if not await pool.fetchval(_SQL["resolve"], tenant, number, resolution, by, "drop"):
        raise NoSuchLetter(tenant, number)
