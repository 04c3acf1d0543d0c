"""An OpenAI-compatible endpoint on loopback: the analyst's script answers, and every request is counted outside."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from outlive.actors.examples.analyst import decide
from outlive.actors.examples.scripted import Seen


class Endpoint:
    """Serves ``/v1/chat/completions``.

    Args:
        hold: this request (from 1) is answered only after `go_on`.

    Attributes:
        asked: what each request asked, in order.
        held: the request to hold has come.
        go_on: set by the test.
    """

    def __init__(self, hold: int = 0) -> None:
        self.asked: list[str] = []
        self.held = threading.Event()
        self.go_on = threading.Event()
        self._hold = hold
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self._answer))

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The base URL for clients."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def _answer(self, body: dict[str, Any]) -> dict[str, Any]:
        text = body["messages"][-1]["content"]
        self.asked.append(text)
        if len(self.asked) == self._hold:
            self.held.set()
            self.go_on.wait(60)
        calls = [
            {"id": f"call-{n}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
            for n, (name, arguments) in enumerate(decide(Seen.read(text)))
        ]
        message = {"role": "assistant", "content": None, "tool_calls": calls}
        return {
            "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-test-1",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
        }  # fmt: skip


def _handler(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answered = json.dumps(answer(body)).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answered)))
                self.end_headers()
                self.wfile.write(answered)
            except ConnectionError:
                return  # whoever asked was killed

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the base names it so
            """Say nothing."""

    return Handler
