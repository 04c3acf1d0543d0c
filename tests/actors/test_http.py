"""What a tool gets from the HTTP helper: the key is sent, errors say what they mean, answers are bounded."""

import asyncio
import functools
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
import structlog

from outlive.actors import App, http
from outlive.actors.testing import Server
from outlive.actors.worker import Worker
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import (
    InvalidArguments,
    NotSent,
    OutcomeUnknown,
    PermissionDenied,
    RateLimited,
    ToolError,
    Unavailable,
)
from tests.actors.remote import Remote, Reply, Request, operation

Send = Callable[..., Awaitable[Any]]


async def in_thread(*args: Any, **kwargs: Any) -> Any:
    return await asyncio.to_thread(functools.partial(http.send_sync, *args, **kwargs))


@pytest.fixture(params=[http.send, in_thread], ids=["async", "sync"])
def send(request: pytest.FixtureRequest) -> Send:
    twin: Send = request.param
    return twin


class Ticket(msgspec.Struct):
    number: int


async def test_the_key_goes_along_and_the_answer_is_decoded(remote: Remote, send: Send) -> None:
    remote.answer = lambda _: Reply(201, {"number": 7})
    op = operation()
    assert await send(op, "POST", f"{remote.url}/tickets", json={"title": "x"}, expect=Ticket) == Ticket(7)
    assert await send(op, "POST", f"{remote.url}/tickets", headers={"idempotency-key": "mine"}) == {"number": 7}
    first, second = remote.seen
    assert first.headers["idempotency-key"] == op.key and first.body == b'{"title":"x"}'
    assert second.headers["idempotency-key"] == "mine"


async def test_a_worker_closes_the_connections_of_its_tools_at_its_end(remote: Remote, shared: Server) -> None:
    remote.answer = lambda _: Reply(200, {"number": 7})
    async with Worker(App("http"), shared.settings):
        await http.ask("GET", remote.url)
        client = http._clients[asyncio.get_running_loop()]
    assert client.is_closed and asyncio.get_running_loop() not in http._clients


async def test_text_bytes_and_nothing_are_answers_too(remote: Remote, send: Send) -> None:
    remote.answer = lambda request: Reply(200, b"done" if request.body else b"")
    assert await send(operation(), "POST", remote.url, content=b"x") == "done"
    assert await send(operation(), "POST", remote.url, content=b"x", expect=bytes) == b"done"
    assert await send(operation(), "POST", remote.url) is None


@pytest.mark.parametrize(
    ("status", "raised"),
    [
        (303, OutcomeUnknown),
        (307, InvalidArguments),
        (400, InvalidArguments),
        (401, PermissionDenied),
        (403, PermissionDenied),
        (404, InvalidArguments),
        (408, OutcomeUnknown),
        (409, InvalidArguments),
        (410, InvalidArguments),
        (422, InvalidArguments),
        (425, RateLimited),
        (429, RateLimited),
        (500, Unavailable),
        (503, Unavailable),
    ],
)
async def test_a_status_says_what_it_means_and_is_sent_once(
    remote: Remote, send: Send, status: int, raised: type[ToolError]
) -> None:
    remote.answer = lambda _: Reply(status, {"why": "because"}, {"Location": "/elsewhere"})
    with pytest.raises(raised, match=f"answered {status}.*because"):
        await send(operation(), "POST", remote.url)
    assert len(remote.seen) == 1


async def test_retry_after_is_handed_on(remote: Remote, send: Send) -> None:
    headers = {"Retry-After": "Tue, 01 Jan 2030 12:00:30 GMT", "Date": "Tue, 01 Jan 2030 12:00:00 GMT"}
    remote.answer = lambda _: Reply(429, None, {"Retry-After": "7"})
    with pytest.raises(RateLimited) as limited:
        await send(operation(), "POST", remote.url)
    assert limited.value.retry_after == 7
    remote.answer = lambda _: Reply(503, None, headers)
    with pytest.raises(Unavailable) as unavailable:
        await send(operation(), "POST", remote.url)
    assert unavailable.value.retry_after is not None and 29 <= unavailable.value.retry_after <= 31


async def test_a_conflict_on_a_later_attempt_is_no_refusal(remote: Remote, send: Send) -> None:
    remote.answer = lambda _: Reply(409)
    with pytest.raises(Unavailable):
        await send(operation(attempt=2), "POST", remote.url)


async def test_no_connection_proves_that_nothing_was_sent(remote: Remote, send: Send) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    for url in (f"http://127.0.0.1:{port}", "nothing://there"):
        with pytest.raises(NotSent):
            await send(operation(), "POST", url)
    with pytest.raises(InvalidArguments):
        await send(operation(), "POST", "http://there:port")


async def test_an_answer_that_does_not_come_leaves_it_open(remote: Remote, send: Send) -> None:
    remote.answer = lambda _: Reply(None)
    with pytest.raises(OutcomeUnknown):
        await send(operation(), "POST", remote.url)

    def slow(_: Request) -> Reply:
        time.sleep(3)
        return Reply()

    remote.answer = slow
    with pytest.raises(OutcomeUnknown):
        await send(operation(seconds=1.5), "POST", remote.url)
    assert len(remote.seen) == 2


async def test_a_result_that_cannot_be_kept_is_no_failure_of_the_effect(remote: Remote, send: Send) -> None:
    remote.answer = lambda _: Reply(200, {"number": "seven", "long": "x" * 5000})
    with pytest.raises(NotStorable, match="longer than 1,000 bytes"):
        await send(operation(), "POST", remote.url, max_bytes=1000)
    with pytest.raises(NotStorable, match="number"):
        await send(operation(), "POST", remote.url, expect=Ticket)


async def test_only_questions_follow_redirects_and_no_cookie_is_kept(remote: Remote) -> None:
    def answer(request: Request) -> Reply:
        return Reply(302, None, {"Location": "/b", "Set-Cookie": "who=me"}) if request.path == "/a" else Reply(200, 1)

    remote.answer = answer
    assert (await http.ask("GET", f"{remote.url}/a")).decode() == 1
    assert (await http.ask("POST", f"{remote.url}/a")).status == 302
    assert (await asyncio.to_thread(http.ask_sync, "GET", f"{remote.url}/b")).decode() == 1
    assert all("cookie" not in request.headers for request in remote.seen)


async def test_what_was_sent_is_logged_without_secrets(remote: Remote) -> None:
    remote.answer = lambda _: Reply(200, {"number": 7})
    with structlog.testing.capture_logs() as logs:
        await http.send(
            operation(), "POST", f"{remote.url}/t?signature=abc", json={"n": 1}, headers={"X-Secret": "s3cr3t"}
        )
    (line,) = logs
    assert line["url"] == f"{remote.url}/t?signature=***" and line["status"] == 200 and line["log_level"] == "debug"
    assert line["headers"]["x-secret"] == "***" and line["headers"]["idempotency-key"] == operation().key
    assert len(line["digest"]) == 32 and "s3cr3t" not in str(line)
