"""A small ticket tracker: a process of its own with its own SQLite file, as a stand-in for the world outside.

    python -m outlive.actors.audit.tracker FILE

prints its URL and serves ``POST /tickets`` (JSON with ``title`` and ``body``, header ``Idempotency-Key``) and
``GET /tickets`` on a free loopback port until its standard input ends, which it does when the parent dies.
The same key with the same ticket answers with the ticket it made the first time; with another ticket it is refused.
"""

import asyncio
import contextlib
import json
import sqlite3
import sys
import threading
from collections.abc import AsyncGenerator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

SCHEMA: Final = """
create table if not exists ticket (
  number integer primary key,
  key text unique,
  title text not null,
  body text not null,
  requests integer not null default 1
) strict
"""
_LONGEST_BODY: Final = 1 << 20
_DEADLINE: Final = 30.0


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One ticket: its number, and how many requests came for it (more than one: sent again with the same key)."""

    number: int
    key: str | None
    title: str
    body: str
    requests: int


class TicketRefused(Exception):
    """The tracker does not take the ticket. Causes: not JSON with title and body; a key used for another ticket."""


class Tickets:
    """The tracker's file. Used from one thread."""

    def __init__(self, file: str) -> None:
        """Open the file, or make it."""
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute(SCHEMA)

    def add(self, title: str, body: str, key: str | None) -> tuple[int, bool]:
        """Return the ticket's number and whether this call made it, or raise `TicketRefused`."""
        ticket = {"title": title, "body": body, "key": key}
        insert = "insert into ticket (key, title, body) values (:key, :title, :body) on conflict (key) do nothing"
        made = self._db.execute(insert, ticket)
        if made.rowcount and made.lastrowid:
            return made.lastrowid, True
        again = "update ticket set requests = requests + 1 where key = :key and title = :title and body = :body"
        row = self._db.execute(f"{again} returning number", ticket).fetchone()
        if row is None:
            raise TicketRefused(f"the key {key} was used for another ticket")
        return int(row[0]), False

    def all(self) -> list[Ticket]:
        """Return all tickets, oldest first."""
        return _select(self._db)


def tickets_in(file: str | Path) -> list[Ticket]:
    """Read the tickets from a tracker's file, without asking the tracker (or anything of Outlive)."""
    with contextlib.closing(sqlite3.connect(f"{Path(file).resolve().as_uri()}?mode=ro", uri=True)) as db:
        return _select(db)


def _select(db: sqlite3.Connection) -> list[Ticket]:
    rows = db.execute("select number, key, title, body, requests from ticket order by number")
    return [Ticket(number=n, key=key, title=title, body=body, requests=seen) for n, key, title, body, seen in rows]


class _Handler(BaseHTTPRequestHandler):
    tickets: Tickets
    timeout = 10

    def do_GET(self) -> None:
        if self.path != "/tickets":
            return self._answer(HTTPStatus.NOT_FOUND, {"error": "there is only /tickets"})
        return self._answer(HTTPStatus.OK, msgspec.to_builtins(self.tickets.all()))

    def do_POST(self) -> None:
        if self.path != "/tickets":
            return self._answer(HTTPStatus.NOT_FOUND, {"error": "there is only /tickets"})
        try:
            number, new = self._add()
        except TicketRefused as refused:
            return self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(refused)})
        return self._answer(HTTPStatus.CREATED if new else HTTPStatus.OK, {"number": number})

    def _add(self) -> tuple[int, bool]:
        size = int(self.headers.get("Content-Length") or 0)
        try:
            ticket = json.loads(self.rfile.read(min(size, _LONGEST_BODY)))
            title, body = str(ticket["title"]), str(ticket["body"])
        except (ValueError, KeyError, TypeError):
            raise TicketRefused("send JSON with title and body") from None
        return self.tickets.add(title, body, self.headers.get("Idempotency-Key"))

    def _answer(self, status: HTTPStatus, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class calls it so
        """Say nothing: the process that started it shows the tickets."""


def serve(file: str) -> None:
    """Serve until standard input ends; print the URL once it listens."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)

    def answer() -> None:
        _Handler.tickets = Tickets(file)
        server.serve_forever()

    threading.Thread(target=answer, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201  # read by the parent
    sys.stdin.buffer.read()


@contextlib.asynccontextmanager
async def running(file: Path) -> AsyncGenerator[str]:
    """Run a tracker on ``file`` and yield its URL; it ends with the block, and with this process.

    Raises:
        RuntimeError: it did not start within 30 s.
    """
    command = (sys.executable, "-P", "-m", __spec__.name, str(file))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_DEADLINE):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise RuntimeError(f"the tracker did not start: {' '.join(command)}")
        yield url
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def send(url: str, *, title: str, body: str, key: str) -> int:
    """Open a ticket and return its number: the same number for the same key, however often it is sent.

    Raises:
        httpx.HTTPStatusError: the tracker refused it.
        httpx.TransportError: no answer; it may have been opened.
    """
    answer = httpx.post(
        f"{url}/tickets",
        json={"title": title, "body": body},
        headers={"Idempotency-Key": key},
        timeout=_DEADLINE,
        trust_env=False,
    )
    number: int = answer.raise_for_status().json()["number"]
    return number


if __name__ == "__main__":
    serve(sys.argv[1])
