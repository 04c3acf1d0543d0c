"""A row in a database, found by a column that holds the key.

How to ask: give the table a column for the key with a unique constraint, insert it with the row, and select by it:
``select id, total from orders where operation_key = $1``. With ``insert ... on conflict (operation_key) do nothing``
the same statement may be sent again: declare the tool ``idempotent=True`` and nothing needs to be asked.

When a "no" may be trusted: `SETTLE` after the deadline. A row of a transaction that is still open is not visible, and
the server may commit it after its client has died. Bound it: ``statement_timeout`` and
``idle_in_transaction_session_timeout`` below `SETTLE`. Ask the primary: a replica lags.

How long keys live: as long as the rows (`KEY_TTL` is None); who deletes rows deletes the memory.

How to undo: delete by the key in a tool of its own, if nothing refers to the row and no trigger has acted on it.
"""

import sqlite3
from collections.abc import Sequence
from typing import Any, Final, Protocol

from outlive.actors.classifier import classify
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import Operation

SETTLE: Final = 60.0
"""Seconds."""

KEY_TTL: Final = None
"""For ever."""


class Connection(Protocol):
    """What is used of an ``asyncpg`` connection or pool."""

    async def fetch(self, query: str, *args: Any) -> Sequence[Any]:
        """Return the rows of a query."""
        ...


async def row(op: Operation, connection: Connection, query: str, *arguments: Any) -> Outcome[dict[str, Any]]:
    """Ask Postgres for the row of this operation; happened gives its columns by name.

    Args:
        op: the operation whose answer was lost.
        connection: an asyncpg connection or pool (see `Connection`), outside of a transaction that began earlier.
        query: selects by ``$1``, the key.
        arguments: for ``$2`` and so on.
    """
    try:
        rows = [dict(found) for found in await connection.fetch(query, op.key, *arguments)]
    except Exception as error:  # noqa: BLE001  # whatever it is, it is no answer
        return _unanswered(error)
    return _outcome(rows)


def row_sqlite(op: Operation, connection: sqlite3.Connection, query: str, *arguments: Any) -> Outcome[dict[str, Any]]:
    """Ask SQLite for the row of this operation, from a synchronous function; as `row`.

    Args:
        op: the operation whose answer was lost.
        connection: to the file, outside of a transaction that began earlier.
        query: selects by the first ``?``, the key.
        arguments: for the others.
    """
    try:
        cursor = connection.execute(query, (op.key, *arguments))
        names = [column[0] for column in cursor.description]
        rows = [dict(zip(names, found, strict=True)) for found in cursor.fetchall()]
    except sqlite3.Error as error:
        return _unanswered(error)
    return _outcome(rows)


def _outcome(rows: list[dict[str, Any]]) -> Outcome[dict[str, Any]]:
    return Outcome.happened(rows[0], matches=len(rows)) if rows else Outcome.did_not_happen()


def _unanswered(error: Exception) -> Outcome[Any]:
    return Outcome.unknown(f"the database could not be asked ({classify(error)}): {type(error).__name__}: {error}")
