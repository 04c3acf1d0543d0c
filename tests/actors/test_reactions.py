"""What an error means and what follows from it: the whole table, without a service and without a sleep."""

import asyncio
import errno
import http.client
import smtplib
import socket
import sqlite3
import ssl
import subprocess
import sys
import urllib.error
from datetime import UTC, datetime, timedelta
from email.message import Message
from random import Random
from types import SimpleNamespace
from typing import Any

import asyncpg
import httpx
import httpx2
import pydantic_ai.exceptions as models
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlive.actors import App
from outlive.actors.classifier import classify, told_to_wait
from outlive.actors.reactions import Fail, Reaction, Retry, Throttle, Unknown, react
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import NotSent, OutcomeUnknown, PermissionDenied, RateLimited, Unavailable
from outlive.protocol.operations import ErrorClass
from outlive.protocol.tools import AnyTool, RetryPolicy

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def answered(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "http://there")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=named))


def stranger(name: str, bases: tuple[type[BaseException], ...] = (Exception,), **attributes: Any) -> BaseException:
    """An error of a library that is not installed."""
    error: BaseException = type(name, bases, attributes)("no")
    return error


def because(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def mcp(code: int) -> BaseException:
    return stranger("McpError", error=SimpleNamespace(code=code, message="no"))


def locked(code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("database is locked")
    error.sqlite_errorcode = code
    return error


CLASSES: list[tuple[BaseException, str]] = [
    *((answered(status), "permission_denied") for status in (401, 403, 407, 451)),
    *((answered(status), "invalid_arguments") for status in (302, 400, 402, 404, 409, 410, 413, 422, 501)),
    *((answered(status), "rate_limited") for status in (423, 425, 429)),
    *((answered(status), "unavailable") for status in (500, 502, 503, 504, 529)),
    *((answered(status), "timeout") for status in (303, 408)),
    (httpx.ConnectError("refused"), "not_sent"),
    (httpx.ConnectTimeout("late"), "not_sent"),
    (httpx.PoolTimeout("late"), "not_sent"),
    (httpx.UnsupportedProtocol("x://"), "not_sent"),
    (httpx.ProxyError("403"), "not_sent"),
    (httpx.ReadTimeout("late"), "timeout"),
    (httpx.WriteTimeout("late"), "timeout"),
    (httpx.ReadError("cut"), "timeout"),
    (httpx.RemoteProtocolError("cut"), "timeout"),
    (httpx.InvalidURL("bad"), "invalid_arguments"),
    (httpx2.ConnectError("refused"), "not_sent"),
    (httpx2.ReadTimeout("late"), "timeout"),
    (because(models.ModelConnectionError("gpt", "no way"), httpx2.ConnectError("refused")), "not_sent"),
    (because(models.ModelConnectionError("gpt", "cut"), httpx2.ReadError("cut")), "timeout"),
    (models.ModelHTTPError(429, "gpt"), "rate_limited"),
    (models.ModelHTTPError(503, "gpt"), "unavailable"),
    (models.ModelHTTPError(400, "gpt"), "invalid_arguments"),
    (models.ModelQuotaExceededError("gpt", "used up"), "rate_limited"),
    (models.ModelServerError("gpt", "oops"), "unavailable"),
    (models.UnexpectedModelBehavior("garbage"), "unavailable"),
    (asyncpg.UniqueViolationError("twice"), "invalid_arguments"),
    (asyncpg.UndefinedTableError("none"), "invalid_arguments"),
    (asyncpg.InsufficientPrivilegeError("no"), "permission_denied"),
    (asyncpg.InvalidPasswordError("no"), "permission_denied"),
    (asyncpg.SerializationError("again"), "not_sent"),
    (asyncpg.DeadlockDetectedError("again"), "not_sent"),
    (asyncpg.CannotConnectNowError("starting"), "not_sent"),
    (asyncpg.TooManyConnectionsError("full"), "not_sent"),
    (asyncpg.StatementCompletionUnknownError("open"), "timeout"),
    (asyncpg.ConnectionDoesNotExistError("cut"), "timeout"),
    (asyncpg.QueryCanceledError("late"), "timeout"),
    (asyncpg.AdminShutdownError("bye"), "unavailable"),
    (asyncpg.InterfaceError("closed"), "not_sent"),
    (asyncpg.RaiseError("custom"), "bug"),
    (locked(5), "not_sent"),
    (locked(5 | 1 << 8), "not_sent"),
    (locked(19), "invalid_arguments"),
    (ConnectionRefusedError(), "not_sent"),
    (socket.gaierror(-2, "no name"), "not_sent"),
    (OSError(errno.ECONNREFUSED, "no"), "not_sent"),
    (ssl.SSLCertVerificationError(1, "not trusted"), "not_sent"),
    (ConnectionResetError(), "unavailable"),
    (BrokenPipeError(), "unavailable"),
    (OSError(errno.EHOSTUNREACH, "no way"), "unavailable"),
    (OSError(errno.ENOSPC, "full"), "unavailable"),
    (ssl.SSLError(1, "eof"), "unavailable"),
    (TimeoutError(), "timeout"),
    (OSError(errno.ETIMEDOUT, "late"), "timeout"),
    (asyncio.CancelledError(), "timeout"),
    (PermissionError(), "permission_denied"),
    (OSError(errno.EROFS, "read-only"), "permission_denied"),
    (FileNotFoundError(2, "none"), "invalid_arguments"),
    (FileNotFoundError("none"), "invalid_arguments"),
    (NotADirectoryError(), "invalid_arguments"),
    (OSError("odd"), "bug"),
    (urllib.error.HTTPError("http://there", 429, "no", Message(), None), "rate_limited"),
    (urllib.error.URLError(ConnectionRefusedError()), "not_sent"),
    (urllib.error.URLError(TimeoutError()), "timeout"),
    (http.client.BadStatusLine("x"), "timeout"),
    (smtplib.SMTPConnectError(421, "busy"), "not_sent"),
    (smtplib.SMTPServerDisconnected("cut"), "timeout"),
    (smtplib.SMTPDataError(451, "later"), "rate_limited"),
    (smtplib.SMTPDataError(554, "spam"), "invalid_arguments"),
    (smtplib.SMTPRecipientsRefused({"a@b": (550, b"none")}), "invalid_arguments"),
    (smtplib.SMTPRecipientsRefused({"a@b": (450, b"later")}), "rate_limited"),
    (smtplib.SMTPAuthenticationError(535, "no"), "permission_denied"),
    (stranger("APIStatusError", status_code=403), "permission_denied"),
    (stranger("APIStatusError", response=SimpleNamespace(status_code=503)), "unavailable"),
    (stranger("RateLimitError"), "rate_limited"),
    (stranger("ClientError", response={"ResponseMetadata": {"HTTPStatusCode": 403}}), "permission_denied"),
    (stranger("APITimeoutError"), "timeout"),
    (because(stranger("APIConnectionError"), httpx.ConnectError("refused")), "not_sent"),
    (because(stranger("APITimeoutError"), httpx.ReadTimeout("late")), "timeout"),
    (because(stranger("APIConnectionError"), stranger("ConnectError", __module__="httpx2")), "not_sent"),
    (because(stranger("APITimeoutError"), stranger("ConnectTimeout", __module__="httpx2")), "not_sent"),
    (stranger("APIStatusError", status_code=200, body={"error": {"type": "overloaded_error"}}), "unavailable"),
    (stranger("APIStatusError", status_code=200, body={"error": {"type": "rate_limit_error"}}), "rate_limited"),
    (stranger("APIError", code="rate_limit_exceeded", type="tokens", body={}), "rate_limited"),
    (stranger("AuthenticationError", status_code=401, type="invalid_request_error"), "permission_denied"),
    (stranger("APIResponseValidationError", status_code=200, body="<html>"), "bug"),
    (
        stranger(
            "ClientError",
            response={"Error": {"Code": "ThrottlingException"}, "ResponseMetadata": {"HTTPStatusCode": 400}},
        ),
        "rate_limited",
    ),
    (stranger("ModelHTTPError", status_code=429, headers={"retry-after": "3"}), "rate_limited"),
    (stranger("ModelConnectionError", phase="connect"), "not_sent"),
    (stranger("ModelTimeoutError", (type("ModelConnectionError", (Exception,), {}),), phase="read"), "timeout"),
    (
        stranger(
            "ModelOverloadedError",
            (type("ModelAPIError", (Exception,), {"__module__": "pydantic_ai.exceptions"}),),
        ),
        "unavailable",
    ),
    (stranger("MCPError", error=SimpleNamespace(code=-32602, message="no"), code=-32602), "invalid_arguments"),
    (stranger("ClientConnectorError", (OSError,), __module__="aiohttp.client_exceptions"), "not_sent"),
    (stranger("RequestException", (OSError,), __module__="requests.exceptions"), "timeout"),
    (stranger("CardError", http_status=402), "invalid_arguments"),
    (mcp(-32602), "invalid_arguments"),
    (mcp(-32603), "unavailable"),
    (mcp(-32000), "timeout"),
    (mcp(408), "timeout"),
    (mcp(-1), "bug"),
    (ExceptionGroup("several", [httpx.ConnectError("a"), httpx.ReadTimeout("b")]), "timeout"),
    (ExceptionGroup("one", [ExceptionGroup("within", [httpx.ConnectError("a")])]), "not_sent"),
    (RateLimited(), "rate_limited"),
    (NotStorable("$", "no"), "not_storable"),
    (ValueError("mine"), "bug"),
    (SystemExit(404), "bug"),
    (stranger("Odd", code=True, status="404"), "bug"),
    (stranger("Broken", response=property(lambda _: 1 / 0), status_code=property(lambda _: 1 / 0)), "bug"),
]


@pytest.mark.parametrize(
    ("error", "named"), CLASSES, ids=[f"{n}-{type(error).__name__}" for n, (error, _) in enumerate(CLASSES)]
)
def test_an_error_has_its_class(error: BaseException, named: str) -> None:
    assert classify(error) == named


def test_the_library_of_an_error_is_not_imported_to_name_it() -> None:
    libraries = "{'aiohttp', 'botocore', 'mcp', 'openai', 'psycopg', 'requests', 'urllib3'}"
    code = f"import sys; from outlive.actors.reactions import classify; classify(ValueError()); print({libraries} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "set()\n"


def test_a_tool_may_know_better() -> None:
    def own(error: BaseException) -> ErrorClass | None:
        return ErrorClass.NOT_SENT if isinstance(error, KeyError) else None

    def broken(error: BaseException) -> ErrorClass | None:
        raise RuntimeError

    assert classify(KeyError(), own) is ErrorClass.NOT_SENT
    assert classify(TimeoutError(), own) is ErrorClass.TIMEOUT
    assert classify(TimeoutError(), broken) is ErrorClass.TIMEOUT


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (RateLimited(retry_after=3), 3.0),
        (RateLimited(), None),
        (RateLimited(retry_after=float("nan")), None),
        (answered(429, retry_after="7"), 7.0),
        (answered(429, retry_after="Tue, 01 Jan 2030 12:00:30 GMT"), 30.0),
        (
            answered(429, retry_after="Mon, 01 Jan 2035 12:00:30 GMT", date="Mon, 01 Jan 2035 12:00:00 GMT"),
            30.0,
        ),
        (answered(429, retry_after="soon", date="whenever"), None),
        (answered(429, retry_after_ms="1500", retry_after="2"), 1.5),
        (answered(503), None),
        (
            stranger(
                "ClientError",
                response={"ResponseMetadata": {"HTTPStatusCode": 429, "HTTPHeaders": {"retry-after": "9"}}},
            ),
            9.0,
        ),
        (stranger("Odd", headers=["x"]), None),
        (ValueError(), None),
    ],
)
def test_what_the_remote_asks_for_is_read(error: BaseException, seconds: float | None) -> None:
    assert told_to_wait(error, NOW) == seconds


def tool(**options: Any) -> AnyTool:
    app = App("reactions")
    app.tool(**options)(call)
    return app.tools["call"]


def call() -> None:
    pass


def reaction(error: BaseException, *, attempt: int = 1, elapsed: float = 0, **options: Any) -> Reaction:
    return react(tool(**options), error, attempt, NOW - timedelta(seconds=elapsed), NOW, Random(1))


def test_what_may_have_happened_is_sent_again_only_where_twice_is_once() -> None:
    for error in (OutcomeUnknown("cut"), Unavailable("503")):
        assert isinstance(reaction(error, read_only=True), Retry)
        assert isinstance(reaction(error, idempotent=True), Retry)
        open_ = reaction(error)
        assert isinstance(open_, Unknown) and isinstance(open_.if_not, Retry)
    assert reaction(Unavailable("503"), attempt=5) == Unknown(Fail())


def test_what_is_known_not_to_have_happened_is_tried_again_without_asking() -> None:
    assert isinstance(reaction(NotSent("refused")), Retry)
    assert isinstance(reaction(RateLimited("429")), Retry)
    assert reaction(NotSent("refused"), attempt=5) == Fail()


def test_what_is_useless_is_not_repeated() -> None:
    for nature in ({"read_only": True}, {"idempotent": True}, {}):
        for error in (PermissionDenied("403"), answered(400), ValueError("bug"), NotStorable("$", "x")):
            assert reaction(error, **nature) == Fail()


def test_nobody_returns_before_the_time_that_was_told() -> None:
    retry = reaction(RateLimited(retry_after=30), idempotent=True)
    assert isinstance(retry, Retry) and 30 <= retry.after <= 30.1
    retry = reaction(answered(503, retry_after="20"), read_only=True)
    assert isinstance(retry, Retry) and 20 <= retry.after <= 20.1


def test_a_wait_that_is_too_long_pauses_the_task() -> None:
    assert reaction(RateLimited(retry_after=7200)) == Throttle(NOW + timedelta(hours=2))
    assert isinstance(reaction(RateLimited(retry_after=7200), retries=RetryPolicy(max_wait=8000)), Retry)
    huge = reaction(answered(429, retry_after="999999999"))
    assert huge == Throttle(NOW + timedelta(days=365))
    assert reaction(answered(503, retry_after="7200")) == Unknown(Throttle(NOW + timedelta(hours=2)))


def test_turned_away_too_often_pauses_the_task() -> None:
    assert reaction(RateLimited(), attempt=5) == Throttle(None)
    assert reaction(RateLimited(retry_after=5), attempt=5) == Throttle(None)


def test_the_time_of_all_attempts_is_bounded() -> None:
    policy = RetryPolicy(max_attempts=1000, max_elapsed=60)
    assert isinstance(reaction(Unavailable("503"), elapsed=50, read_only=True, retries=policy), Retry)
    assert reaction(Unavailable("503"), elapsed=61, read_only=True, retries=policy) == Fail()
    assert reaction(RateLimited(retry_after=20), elapsed=50, retries=policy) == Throttle(None)


def test_a_key_that_will_be_forgotten_by_then_is_not_sent_again() -> None:
    options: dict[str, Any] = {"idempotent": True, "key_ttl": 100.0}
    assert isinstance(reaction(Unavailable("503"), attempt=2, elapsed=50, **options), Retry)
    assert isinstance(reaction(Unavailable("503"), attempt=2, elapsed=100, **options), Unknown)
    assert isinstance(reaction(RateLimited(retry_after=60), attempt=2, elapsed=50, **options), Unknown)
    assert isinstance(reaction(RateLimited(retry_after=200), **options), Retry)  # nothing was done under it yet
    assert reaction(PermissionDenied("403"), attempt=2, elapsed=100, **options) == Fail()


def test_the_tools_own_classifier_decides() -> None:
    def own(error: BaseException) -> ErrorClass | None:
        return ErrorClass.NOT_SENT

    assert isinstance(reaction(ValueError(), classify=own), Retry)


def test_ten_minutes_of_503_with_a_key_grow_and_are_capped() -> None:
    patient = tool(idempotent=True, retries=RetryPolicy(max_attempts=1000, cap=60, max_elapsed=600))
    now, waits = NOW, list[float]()
    following: Reaction = Retry(0)
    while isinstance(following, Retry):
        waits.append(following.after)
        now += timedelta(seconds=following.after)
        following = react(patient, Unavailable("503"), len(waits), NOW, now, Random(len(waits)))
    assert following == Fail()
    assert 12 <= len(waits) <= 60 and max(waits) <= 60 and sum(waits) <= 600
    assert max(waits[:4]) <= 2 and max(waits[10:]) > 20


errors = st.sampled_from([error for error, _ in CLASSES])


@given(
    errors, st.integers(1, 7), st.floats(0, 10_000), st.sampled_from([{"read_only": True}, {"idempotent": True}, {}])
)
def test_there_is_a_reaction_to_everything(
    error: BaseException, attempt: int, elapsed: float, nature: dict[str, Any]
) -> None:
    following = reaction(error, attempt=attempt, elapsed=elapsed, **nature)
    assert not (nature.get("read_only") and isinstance(following, Unknown))
    if isinstance(following, Retry):
        assert following.after >= (told_to_wait(error, NOW) or 0)
        assert attempt < 5
