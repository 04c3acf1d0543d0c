"""The fake remote service: a process of its own with a file of its own, so that no crash of a worker touches its count.

Standard library only, and started as a file: it is up in a few hundredths of a second. It prints one JSON line with
its URL and ends when its standard input ends, so with the process that started it, however that dies.

===========================  =====================================================================================
``POST /effect/{name}``      Performs an effect: a row. Header ``Idempotency-Key``: once per key; a repeat gets the
                             stored answer and ``Idempotent-Replayed: true``, another body under the key gets 422.
                             ``?keys=off``: keys are written down and not honoured.
                             Header ``Outlive-Cause`` (JSON): on whose behalf, kept with the effect.
``GET /effects``             All effects ``{id, name, key, body, at, cause}``, oldest first; ``?key=`` and ``?name=`` filter.
``GET /counts``              ``{"keys": {key: effects}, "names": {name: effects}, "requests": {key: requests}}``.
``POST /behave``             Adds a behaviour (see `Behaviour`); ``DELETE /behave`` removes all.
===========================  =====================================================================================
"""

import json
import os
import socketserver
import sqlite3
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

ACTIONS: Final = ("lose_answer", "drop", "hang", "late", "throttle", "fail")

SCHEMA: Final = """
pragma journal_mode = wal;
pragma synchronous = off;
create table if not exists effect (id integer primary key, name text, key text, body text, at real, cause text);
create index if not exists effect_key on effect (key);
create table if not exists request (id integer primary key, name text, key text, behaviour text, at real);
"""


@dataclass(slots=True)
class Behaviour:
    """How the next matching requests are treated.

    Attributes:
        action: ``lose_answer`` (does it, then drops the connection), ``drop`` (drops the connection and never does
            it), ``hang`` (does it, answers after `seconds`), ``late`` (drops the connection, does it after `seconds`),
            ``throttle`` (429 with ``Retry-After: seconds``), ``fail`` (answers `status` and does nothing).
        name: of the effects it is for; None = all.
        times: how many requests; None = all.
        after: matching requests to let pass first.
        seconds: for hang, late and throttle.
        status: for fail.
    """

    action: str
    name: str | None = None
    times: int | None = 1
    after: int = 0
    seconds: float = 1.0
    status: int = 500

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"there is no behaviour {self.action!r}; there are: {', '.join(ACTIONS)}")

    def takes(self, name: str) -> bool:
        """Whether it treats this request; counts it."""
        if (self.name is not None and self.name != name) or self.times == 0:
            return False
        if self.after > 0:
            self.after -= 1
            return False
        if self.times is not None:
            self.times -= 1
        return True


class World:
    """What this service has done, in its file, and how it behaves; safe for threads."""

    def __init__(self, file: Path) -> None:
        """Open or make the file."""
        self._lock = threading.Lock()
        self._db = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._db.row_factory = sqlite3.Row
        self._db.executescript(SCHEMA)
        self._behaviours: list[Behaviour] = []

    def behave(self, behaviour: Behaviour | None) -> None:
        """Add a behaviour; None removes all."""
        with self._lock:
            self._behaviours = [*self._behaviours, behaviour] if behaviour else []

    def arrived(self, name: str, key: str | None) -> Behaviour | None:
        """Write a request down and tell how to treat it."""
        with self._lock:
            behaviour = next((each for each in self._behaviours if each.takes(name)), None)
            self._db.execute(
                "insert into request (name, key, behaviour, at) values (?, ?, ?, ?)",
                (name, key, behaviour.action if behaviour else None, time.time()),
            )
            return behaviour

    def perform(
        self, name: str, key: str | None, body: str, *, honour: bool, cause: str = "null"
    ) -> tuple[int, dict[str, Any], bool]:
        """Do the effect, once per key where keys are honoured; gives status, answer, and whether it is a repeat."""
        with self._lock:
            query = "select id, name, body from effect where key = ? order by id limit 1"
            known = self._db.execute(query, (key,)).fetchone() if honour and key else None
            if known is None:
                row = (name, key, body, time.time(), cause)
                done = self._db.execute("insert into effect (name, key, body, at, cause) values (?, ?, ?, ?, ?)", row)
                return 200, {"effect": done.lastrowid, "name": name, "key": key}, False
        if (known["name"], known["body"]) != (name, body):
            return 422, {"error": f"the key {key} was used with another body"}, True
        return 200, {"effect": known["id"], "name": name, "key": key}, True

    def effects(self, key: str | None, name: str | None) -> list[dict[str, Any]]:
        """All effects, oldest first."""
        query = "select * from effect where (?1 is null or key = ?1) and (?2 is null or name = ?2) order by id"
        with self._lock:
            rows = self._db.execute(query, (key, name)).fetchall()
        return [{**dict(row), "body": json.loads(row["body"]), "cause": json.loads(row["cause"])} for row in rows]

    def counts(self) -> dict[str, dict[str, int]]:
        """Effects by key and by name, and requests by key."""
        queries = {
            "keys": "select key, count(*) from effect where key is not null group by key",
            "names": "select name, count(*) from effect group by name",
            "requests": "select key, count(*) from request where key is not null group by key",
        }
        with self._lock:
            return {what: dict(map(tuple, self._db.execute(query))) for what, query in queries.items()}


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # headers and body leave in one segment

    @property
    def _world(self) -> World:
        assert isinstance(self.server, Service)
        return self.server.world

    def do_GET(self) -> None:
        """Tell what was done."""
        url = urlsplit(self.path)
        asked = parse_qs(url.query)
        if url.path == "/counts":
            self._answer(200, self._world.counts())
        elif url.path == "/effects":
            self._answer(200, self._world.effects(*(asked.get(field, [None])[0] for field in ("key", "name"))))
        else:
            self._answer(404, {"error": "GET /effects or /counts"})

    def do_DELETE(self) -> None:
        """Behave well again."""
        self._world.behave(None)
        self._answer(200, {})

    def do_POST(self) -> None:
        """Do an effect, or learn a behaviour."""
        url = urlsplit(self.path)
        length = int(self.headers.get("Content-Length") or 0)
        sent = self.rfile.read(length)
        if len(sent) < length:  # the caller died amid its request: nothing was asked for
            self.close_connection = True
            return
        body = sent.decode() or "null"
        if url.path == "/behave":
            self._learn(body)
        elif url.path.startswith("/effect/"):
            self._effect(url.path.removeprefix("/effect/"), body, honour=url.query != "keys=off")
        else:
            self._answer(404, {"error": "POST /effect/NAME or /behave"})

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is the base's
        """Say nothing: the counts tell it all."""

    def _learn(self, body: str) -> None:
        try:
            self._world.behave(Behaviour(**json.loads(body)))
        except (TypeError, ValueError) as error:
            self._answer(400, {"error": str(error)})
        else:
            self._answer(200, {})

    def _effect(self, name: str, body: str, *, honour: bool) -> None:
        key, cause = self.headers.get("Idempotency-Key"), self.headers.get("Outlive-Cause", "null")
        world = self._world
        behaviour = world.arrived(name, key)
        match behaviour:
            case Behaviour(action="fail", status=status):
                return self._answer(status, {"error": "as told"})
            case Behaviour(action="throttle", seconds=seconds):
                return self._answer(429, {"error": "slow down"}, {"Retry-After": f"{seconds:g}"})
            case Behaviour(action="drop"):
                return self._hang_up()
            case Behaviour(action="late", seconds=seconds):
                later = threading.Timer(seconds, world.perform, (name, key, body), {"honour": honour, "cause": cause})
                later.daemon = True
                later.start()
                return self._hang_up()
            case _:
                status, answer, repeat = world.perform(name, key, body, honour=honour, cause=cause)
        if behaviour and behaviour.action == "lose_answer":
            return self._hang_up()
        if behaviour and behaviour.action == "hang":
            time.sleep(behaviour.seconds)
        return self._answer(status, answer, {"Idempotent-Replayed": "true"} if repeat else {})

    def _hang_up(self) -> None:
        self.close_connection = True

    def _answer(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()


class Service(ThreadingHTTPServer):
    """The server on a free loopback port."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, world: World, port: int) -> None:
        """Listen; port 0 takes a free one."""
        self.world = world
        super().__init__(("127.0.0.1", port), Handler)

    def server_bind(self) -> None:
        """Bind without asking the resolver for this machine's name, which can take seconds."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that was killed in the middle of a request is what this service is for."""


def _end_with_parent() -> None:
    while sys.stdin.buffer.read(1024):
        pass
    os._exit(0)


def main() -> None:
    """Serve until standard input ends: ``FILE [PORT]``."""
    file, port = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    service = Service(World(file), port)
    print(json.dumps({"url": f"http://127.0.0.1:{service.server_port}"}), flush=True)  # noqa: T201  # for the starter
    threading.Thread(target=_end_with_parent, daemon=True).start()
    service.serve_forever(poll_interval=3600)


if __name__ == "__main__":
    main()
