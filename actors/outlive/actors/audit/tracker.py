"""A small ticket tracker: a process of its own with its own SQLite file, as a stand-in for the world outside.

    python -m outlive.actors.audit.tracker FILE [LOSE]

prints its URL and serves ``POST /tickets`` (JSON with ``title`` and ``body``) and ``GET /tickets?contains=TEXT`` (those
with this text in their body) on a free loopback port until its standard input ends, which it does when the parent dies.

Like many trackers it knows no idempotency keys: what is sent twice is there twice. The answer to the ticket with the
number LOSE gets lost: the ticket is made, ``lost LOSE`` is printed, and the connection stays silent until the other
side has given up or died.
"""

import asyncio
import contextlib
import json
import sqlite3
import sys
import threading
import urllib.parse
from collections.abc import AsyncGenerator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec

SCHEMA: Final = (
    "create table if not exists ticket (number integer primary key, title text not null, body text not null) strict"
)
_LONGEST_BODY: Final = 1 << 20
_DEADLINE: Final = 30.0
TIMEOUT: Final = 8.0
"""Seconds after which a caller gives up."""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One ticket."""

    number: int
    title: str
    body: str


class TicketRefused(Exception):
    """The tracker does not take the ticket. Cause: it is not JSON with title and body."""


class Tickets:
    """The tracker's file. Used from one thread."""

    def __init__(self, file: str) -> None:
        """Open the file, or make it."""
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute(SCHEMA)

    def add(self, title: str, body: str) -> int:
        """Make a ticket and return its number."""
        number = self._db.execute("insert into ticket (title, body) values (?, ?)", (title, body)).lastrowid
        assert number is not None
        return number

    def containing(self, text: str) -> list[Ticket]:
        """Return the tickets with this text in their body, oldest first."""
        return _select(self._db, text)


def tickets_in(file: str | Path) -> list[Ticket]:
    """Read the tickets from a tracker's file, without asking the tracker (or anything of Outlive)."""
    with contextlib.closing(sqlite3.connect(f"{Path(file).resolve().as_uri()}?mode=ro", uri=True)) as db:
        return _select(db)


def _select(db: sqlite3.Connection, text: str = "") -> list[Ticket]:
    rows = db.execute("select number, title, body from ticket where instr(body, ?) > 0 order by number", (text,))
    return [Ticket(number=number, title=title, body=body) for number, title, body in rows]


class _Handler(BaseHTTPRequestHandler):
    tickets: Tickets
    lose: int = 0
    timeout = 10

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if url.path != "/tickets":
            return self._answer(HTTPStatus.NOT_FOUND, {"error": "there is only /tickets"})
        text = urllib.parse.parse_qs(url.query).get("contains", [""])[0]
        return self._answer(HTTPStatus.OK, msgspec.to_builtins(self.tickets.containing(text)))

    def do_POST(self) -> None:
        if self.path != "/tickets":
            return self._answer(HTTPStatus.NOT_FOUND, {"error": "there is only /tickets"})
        try:
            number = self._add()
        except TicketRefused as refused:
            return self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, {"error": str(refused)})
        if number == self.lose:
            return self._say_nothing(number)
        return self._answer(HTTPStatus.CREATED, {"number": number})

    def _add(self) -> int:
        size = int(self.headers.get("Content-Length") or 0)
        try:
            ticket = json.loads(self.rfile.read(min(size, _LONGEST_BODY)))
            title, body = str(ticket["title"]), str(ticket["body"])
        except (ValueError, KeyError, TypeError):
            raise TicketRefused("send JSON with title and body") from None
        return self.tickets.add(title, body)

    def _say_nothing(self, number: int) -> None:
        print(f"lost {number}", flush=True)  # noqa: T201  # read by the parent
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.settimeout(_DEADLINE)
            self.connection.recv(1)  # returns when the other side is gone

    def _answer(self, status: HTTPStatus, value: Any) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class calls it so
        """Say nothing: the process that started it shows the tickets."""


def serve(file: str, lose: int = 0) -> None:
    """Serve until standard input ends; print the URL once it listens."""
    server = HTTPServer(("127.0.0.1", 0), _Handler)

    def answer() -> None:
        _Handler.tickets, _Handler.lose = Tickets(file), lose
        server.serve_forever()

    threading.Thread(target=answer, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)  # noqa: T201  # read by the parent
    sys.stdin.buffer.read()


class Tracker:
    """A tracker that runs; `url` is where it listens."""

    def __init__(self, url: str, lines: asyncio.StreamReader) -> None:
        """Wrap a process by what it printed first, and by what it prints later."""
        self.url: Final = url
        self._lines = lines

    async def lost(self) -> int | None:
        """Wait until it has made the ticket whose answer gets lost, and return its number; None: it ended before."""
        line = (await self._lines.readline()).decode().split()
        return int(line[1]) if line else None


@contextlib.asynccontextmanager
async def running(file: Path, lose: int = 0) -> AsyncGenerator[Tracker]:
    """Run a tracker on ``file`` that loses the answer to ticket ``lose``; it ends with the block, and with this process.

    Raises:
        RuntimeError: it did not start within 30 s.
    """
    command = (sys.executable, "-P", "-m", __spec__.name, str(file), str(lose))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=pipe,
        stdout=pipe,
        start_new_session=True,  # a terminal's Ctrl-C is not for it
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(_DEADLINE):
            url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise RuntimeError(f"the tracker did not start: {' '.join(command)}")
        yield Tracker(url, process.stdout)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


def send(url: str, *, title: str, body: str, timeout: float = TIMEOUT) -> int:
    """Open a ticket and return its number: another one each time it is sent.

    Raises:
        httpx.HTTPStatusError: the tracker refused it.
        httpx.ConnectError: nothing was sent.
        httpx.TransportError: no answer; it may have been opened.
    """
    ticket = {"title": title, "body": body}
    answer = httpx.post(f"{url}/tickets", json=ticket, timeout=timeout, trust_env=False)
    number: int = answer.raise_for_status().json()["number"]
    return number


def find(url: str, text: str) -> list[int]:
    """Return the numbers of the tickets with this text in their body, oldest first. Raises like `send`."""
    answer = httpx.get(f"{url}/tickets", params={"contains": text}, timeout=TIMEOUT, trust_env=False)
    return [ticket["number"] for ticket in answer.raise_for_status().json()]


if __name__ == "__main__":
    serve(sys.argv[1], *map(int, sys.argv[2:]))
