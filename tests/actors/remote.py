"""A remote on a loopback port that does what a test tells it."""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

from outlive.protocol.tools import Operation


@dataclass
class Request:
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes


@dataclass
class Reply:
    """What is sent back; without a status the connection is cut."""

    status: int | None = 200
    value: Any = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class Remote:
    url: str
    answer: Callable[[Request], Reply] = lambda _: Reply(404)
    seen: list[Request] = field(default_factory=list[Request])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one piece
    remote: Remote

    def _serve(self) -> None:
        parts = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        names = {name.lower(): value for name, value in self.headers.items()}
        request = Request(self.command, parts.path, parse_qs(parts.query), names, body)
        self.remote.seen.append(request)
        reply = self.remote.answer(request)
        if reply.status is None:
            self.close_connection = True
            return
        value = reply.value
        raw = value if isinstance(value, bytes) else b"" if value is None else json.dumps(value).encode()
        self.send_response_only(reply.status)
        kind = {} if isinstance(value, bytes) else {"Content-Type": "application/json"}
        for name, text in {**kind, "Content-Length": str(len(raw)), **reply.headers}.items():
            self.send_header(name, text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _serve  # noqa: N815  # the names are those of the methods

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name is the base's
        pass


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone away is part of the tests."""


@contextmanager
def serving_http() -> Generator[Remote]:
    """Start a remote; tests set its `answer`."""
    handler = type("Handler", (_Handler,), {})
    with _Server(("127.0.0.1", 0), handler) as server:
        remote = handler.remote = Remote(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield remote
        finally:
            server.shutdown()
            thread.join()


def operation(*, step: str = "4", attempt: int = 1, seconds: float = 5) -> Operation:
    began = datetime.now(UTC)
    return Operation(
        key=f"default/t1:{step}:1", started_at=began, deadline=began + timedelta(seconds=seconds), attempt=attempt
    )
