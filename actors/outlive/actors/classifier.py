"""What an error means: the class of any exception, without importing the library that raised it.

A tool makes one effect. So an error that proves that its statement or request was refused proves that nothing
happened; an error that only says that the answer did not come proves nothing.
"""

import asyncio
import contextlib
import errno
import math
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

from outlive.protocol import backoff
from outlive.protocol.codec import NotStorable
from outlive.protocol.errors import ToolError
from outlive.protocol.operations import ErrorClass

TIMEOUT: Final = ErrorClass.TIMEOUT
RATE_LIMITED: Final = ErrorClass.RATE_LIMITED
UNAVAILABLE: Final = ErrorClass.UNAVAILABLE
INVALID: Final = ErrorClass.INVALID_ARGUMENTS
DENIED: Final = ErrorClass.PERMISSION_DENIED
NOT_SENT: Final = ErrorClass.NOT_SENT

_BY_STATUS: Final[Mapping[int, ErrorClass]] = {
    303: TIMEOUT,  # "see the answer elsewhere": it was probably done, and what came of it is not here
    401: DENIED,
    403: DENIED,
    407: DENIED,
    408: TIMEOUT,
    423: RATE_LIMITED,  # locked by somebody else: refused, and free again later
    425: RATE_LIMITED,
    429: RATE_LIMITED,
    451: DENIED,
    501: INVALID,
    505: INVALID,
}

_OF_HTTPX: Final[Mapping[str, ErrorClass]] = {
    "ConnectError": NOT_SENT,  # refused, name not found, certificate not trusted
    "ConnectTimeout": NOT_SENT,
    "PoolTimeout": NOT_SENT,
    "ProxyError": NOT_SENT,
    "UnsupportedProtocol": NOT_SENT,
    "InvalidURL": INVALID,
    "RequestError": TIMEOUT,  # reading, writing, a broken answer, anything else on the way
}

_BY_NAME: Final[Mapping[str, ErrorClass]] = {
    # httpx, its successor, and the clients made with them
    **{f"httpx.{name}": found for name, found in _OF_HTTPX.items()},
    **{f"httpx2.{name}": found for name, found in _OF_HTTPX.items()},
    # models by pydantic-ai, where the error came without a status
    "pydantic_ai.ModelRequestTimeout": TIMEOUT,
    "pydantic_ai.ModelRateLimitError": RATE_LIMITED,
    "pydantic_ai.ModelQuotaExceededError": RATE_LIMITED,
    "pydantic_ai.ModelAuthenticationError": DENIED,
    "pydantic_ai.ModelRequestRejectedError": INVALID,
    "pydantic_ai.ModelAPIError": UNAVAILABLE,
    "pydantic_ai.UnexpectedModelBehavior": UNAVAILABLE,  # no answer that could be read
    # requests, aiohttp, botocore, urllib3
    "requests.ConnectTimeout": NOT_SENT,
    "requests.InvalidURL": INVALID,
    "requests.MissingSchema": INVALID,
    "requests.RequestException": TIMEOUT,
    "aiohttp.ClientConnectorError": NOT_SENT,
    "aiohttp.ConnectionTimeoutError": NOT_SENT,
    "aiohttp.InvalidURL": INVALID,
    "aiohttp.ClientError": TIMEOUT,
    "botocore.EndpointConnectionError": NOT_SENT,
    "botocore.ConnectTimeoutError": NOT_SENT,
    "botocore.NoCredentialsError": DENIED,
    "botocore.ParamValidationError": INVALID,
    "botocore.HTTPClientError": TIMEOUT,
    "urllib3.NewConnectionError": NOT_SENT,
    "urllib3.ConnectTimeoutError": NOT_SENT,
    "urllib3.HTTPError": TIMEOUT,
    "http.HTTPException": TIMEOUT,
    # asyncpg: errors of its own side, raised before anything is sent (those of the server have a sqlstate)
    "asyncpg.DataError": INVALID,
    "asyncpg.InterfaceError": NOT_SENT,
    # smtplib: a refusal of the server proves that the mail was not taken
    "smtplib.SMTPAuthenticationError": DENIED,
    "smtplib.SMTPConnectError": NOT_SENT,
    "smtplib.SMTPHeloError": NOT_SENT,
    "smtplib.SMTPNotSupportedError": INVALID,
    "smtplib.SMTPServerDisconnected": TIMEOUT,
    "psycopg.OperationalError": TIMEOUT,  # without a sqlstate: the connection was lost
    "sqlite3.ProgrammingError": INVALID,
}
"""By package and class. The first match along the bases counts, so that a base stands for what is not named."""

_BY_WORD: Final[Mapping[str, ErrorClass]] = {
    "rate_limit_error": RATE_LIMITED,
    "rate_limit_exceeded": RATE_LIMITED,
    "overloaded_error": UNAVAILABLE,
    "server_error": UNAVAILABLE,
    "api_error": UNAVAILABLE,
    "timeout_error": TIMEOUT,
    "authentication_error": DENIED,
    "permission_error": DENIED,
    "invalid_request_error": INVALID,
    "not_found_error": INVALID,
}
"""What providers of models call an error inside an open stream, whose status was 200."""

_THROTTLING: Final = frozenset(
    {
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
        "RequestLimitExceeded",
        "ProvisionedThroughputExceededException",
        "SlowDown",
    }
)
"""AWS's codes for "too many", mostly with a status of 400."""

_BY_SQLSTATE: Final[tuple[tuple[str, ErrorClass], ...]] = (
    ("08001", NOT_SENT), ("08004", NOT_SENT), ("08", TIMEOUT),
    ("28", DENIED), ("42501", DENIED),
    ("22", INVALID), ("23", INVALID), ("42", INVALID),
    ("40003", TIMEOUT), ("40", NOT_SENT), ("53", NOT_SENT), ("55P03", NOT_SENT), ("57P03", NOT_SENT),  # rolled back
    ("57014", TIMEOUT), ("57", UNAVAILABLE), ("58", UNAVAILABLE),
)  # fmt: skip
"""By prefix of the SQL state; the first match counts."""

_BY_SQLITE_CODE: Final[Mapping[int, ErrorClass]] = {
    1: INVALID,
    5: NOT_SENT,  # busy or locked: the statement did not begin
    6: NOT_SENT,
    8: DENIED,
    10: UNAVAILABLE,
    13: UNAVAILABLE,
    19: INVALID,
    23: DENIED,
}

_BY_ERRNO: Final[Mapping[int, ErrorClass]] = {
    errno.ECONNREFUSED: NOT_SENT,
    errno.ETIMEDOUT: TIMEOUT,
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), DENIED),
    **dict.fromkeys(
        (errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ENETDOWN, errno.EPIPE, errno.ECONNRESET, errno.ECONNABORTED),
        UNAVAILABLE,
    ),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EIO), UNAVAILABLE),
    **dict.fromkeys(
        (errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.ENOTEMPTY, errno.ENAMETOOLONG, errno.ELOOP),
        INVALID,
    ),
}

_BY_MCP_CODE: Final[Mapping[int, ErrorClass]] = {
    -32700: INVALID,
    -32600: INVALID,
    -32601: INVALID,
    -32602: INVALID,
    -32002: INVALID,
    -32603: UNAVAILABLE,
    -32000: TIMEOUT,  # the connection was closed under the call
    -32001: TIMEOUT,
    -32042: DENIED,  # a person must log in at some address first
}
"""By JSON-RPC code, as the servers and the Python SDK of MCP use it."""

_CAUTION: Final = (
    TIMEOUT,
    UNAVAILABLE,
    ErrorClass.BUG,
    ErrorClass.NOT_STORABLE,
    INVALID,
    DENIED,
    RATE_LIMITED,
    NOT_SENT,
)
"""Of several errors the one counts after which most is open."""


def classify(error: BaseException, own: Callable[[BaseException], ErrorClass | None] | None = None) -> ErrorClass:
    """Name the class of a tool's exception.

    Args:
        error: what the tool raised. One of `outlive.protocol.errors` says its class itself.
        own: asked first, the tool's `classify`; when it returns None or fails itself, the rest decides.
    """
    if own is not None:
        try:
            named = own(error)
        except Exception:  # noqa: BLE001  # a broken classifier must not hide the error that it was asked about
            named = None
        if named is not None:
            return ErrorClass(named)
    for find in (_ours, _group, _mcp, _database, _smtp, _throttling, _status, _word, _connection, _named, _standard):
        if (found := find(error)) is not None:
            return found
    return ErrorClass.BUG


def status_class(status: int) -> ErrorClass:
    """Return what an HTTP status of 300 or more says of the request: an effect behind a 5xx may have happened."""
    return _BY_STATUS.get(status) or (UNAVAILABLE if status >= 500 else INVALID)


def told_to_wait(error: BaseException, now: datetime) -> float | None:
    """Return the seconds for which the remote wants to be left alone; None when it did not say so readably.

    Args:
        error: with ``retry_after`` in seconds, or headers of an answer with ``Retry-After``.
        now: from which a date counts (aware).
    """
    seconds = _attribute(error, "retry_after")
    if isinstance(seconds, int | float) and not isinstance(seconds, bool):
        return float(seconds) if math.isfinite(seconds) and seconds >= 0 else None
    return wait_of(_headers(error), now)


def wait_of(headers: Mapping[str, str], now: datetime) -> float | None:
    """Return the seconds that the headers of an answer (names in lower case) ask to wait; None: none, or unreadable.

    A date is compared with the remote's own ``Date``, so that neither clock need be right; else with `now`.
    """
    milliseconds = backoff.retry_after(headers.get("retry-after-ms"), now)  # of OpenAI and Azure
    if milliseconds is not None:
        return milliseconds / 1000
    with contextlib.suppress(ValueError):
        sent = parsedate_to_datetime(headers.get("date", ""))
        now = sent if sent.tzinfo else now
    return backoff.retry_after(headers.get("retry-after"), now)


# --- each looks at one kind of errors; None: not of this kind


def _ours(error: BaseException) -> ErrorClass | None:
    if isinstance(error, ToolError):
        return error.error_class
    return ErrorClass.NOT_STORABLE if isinstance(error, NotStorable) else None


def _group(error: BaseException) -> ErrorClass | None:
    if not isinstance(error, BaseExceptionGroup):
        return None
    members = cast("BaseExceptionGroup[BaseException]", error).exceptions
    return min((classify(member) for member in members), key=_CAUTION.index)


def _mcp(error: BaseException) -> ErrorClass | None:
    told = _attribute(error, "error")
    code = _attribute(told, "code")
    if not isinstance(code, int) or not isinstance(_attribute(told, "message"), str):
        return None
    return status_class(code) if 400 <= code < 600 else _BY_MCP_CODE.get(code, ErrorClass.BUG)


def _database(error: BaseException) -> ErrorClass | None:
    state = _attribute(error, "sqlstate")
    if isinstance(state, str):
        return next((found for prefix, found in _BY_SQLSTATE if state.startswith(prefix)), ErrorClass.BUG)
    code = _attribute(error, "sqlite_errorcode")
    return _BY_SQLITE_CODE.get(code & 0xFF) if isinstance(code, int) else None


def _smtp(error: BaseException) -> ErrorClass | None:
    codes = [_attribute(error, "smtp_code")]
    if isinstance(refused := _attribute(error, "recipients"), dict):
        codes = [answer[0] for answer in cast("dict[str, tuple[int, bytes]]", refused).values()]
    if not codes or not all(isinstance(code, int) for code in codes) or _by_name(error) is not None:
        return None
    return INVALID if any(isinstance(code, int) and code >= 500 for code in codes) else RATE_LIMITED


def _throttling(error: BaseException) -> ErrorClass | None:
    code = _entry(_entry(_attribute(error, "response"), "Error"), "Code")
    return RATE_LIMITED if isinstance(code, str) and code in _THROTTLING else None


def _word(error: BaseException) -> ErrorClass | None:
    body = _attribute(error, "body")
    told = _entry(body, "error") or body
    words = (
        *(_attribute(error, name) for name in ("code", "type")),
        *(_entry(told, name) for name in ("code", "type")),
    )
    return next((_BY_WORD[word] for word in words if isinstance(word, str) and word in _BY_WORD), None)


def _status(error: BaseException) -> ErrorClass | None:
    status = status_of(error)
    return None if status is None else status_class(status)


def _connection(error: BaseException) -> ErrorClass | None:
    """A provider's SDK wraps the error of its HTTP client: what lies beneath may prove that nothing was sent."""
    names = {base.__name__ for base in type(error).__mro__}
    if not names & {"APIConnectionError", "APITimeoutError", "ModelConnectionError"}:
        return None
    if _attribute(error, "phase") in ("pool", "connect"):  # pydantic-ai's word for "no request left"
        return NOT_SENT
    cause = error.__cause__ or error.__context__
    return NOT_SENT if cause is not None and classify(cause) is NOT_SENT else TIMEOUT


def _named(error: BaseException) -> ErrorClass | None:
    if type(error).__name__ == "RateLimitError":
        return RATE_LIMITED
    return _by_name(error)


def _standard(error: BaseException) -> ErrorClass | None:
    match error:
        case socket.gaierror() | socket.herror() | ssl.SSLCertVerificationError():
            return NOT_SENT
        case TimeoutError() | asyncio.CancelledError():
            return TIMEOUT
        case ssl.SSLError() | EOFError():
            return UNAVAILABLE
        case OSError():
            return _os_error(error)
        case _:
            return None


def _os_error(error: OSError) -> ErrorClass | None:
    reason = _attribute(error, "reason")  # urllib's URLError
    if isinstance(reason, BaseException):
        return classify(reason)
    if error.errno is not None and error.errno in _BY_ERRNO:
        return _BY_ERRNO[error.errno]
    by_type = {
        ConnectionRefusedError: NOT_SENT,
        ConnectionError: UNAVAILABLE,
        PermissionError: DENIED,
        FileNotFoundError: INVALID,
        FileExistsError: INVALID,
        IsADirectoryError: INVALID,
        NotADirectoryError: INVALID,
    }
    return next((found for base, found in by_type.items() if isinstance(error, base)), None)


def _by_name(error: BaseException) -> ErrorClass | None:
    names = (f"{base.__module__.partition('.')[0]}.{base.__name__}" for base in type(error).__mro__)
    return next((_BY_NAME[name] for name in names if name in _BY_NAME), None)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status (300 to 599) that an exception carries; None when it carries none."""
    if not isinstance(error, Exception):
        return None
    return next((value for value in _statuses(error) if type(value) is int and 300 <= value < 600), None)


def _statuses(error: Exception) -> Iterator[object]:
    response = _attribute(error, "response")
    if isinstance(response, dict):  # botocore
        yield _metadata(error).get("HTTPStatusCode")
    for source in (error, response):
        for name in ("status_code", "http_status", "status", "code"):
            yield _attribute(source, name)


def _metadata(error: BaseException) -> Mapping[str, Any]:
    response: Any = _attribute(error, "response")
    found: Any = response.get("ResponseMetadata") if isinstance(response, dict) else None
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _entry(source: object, name: str) -> Any:
    return cast("dict[str, Any]", source).get(name) if isinstance(source, dict) else None


def _attribute(source: object, name: str) -> Any:
    try:
        return getattr(source, name, None)
    except Exception:  # noqa: BLE001  # a property of a stranger's class may raise anything
        return None


def _headers(error: BaseException) -> Mapping[str, str]:
    """Return the headers of the answer that an exception carries, names in lower case."""
    places = (_attribute(error, "response"), error)
    found: Any = next((value for place in places if (value := _attribute(place, "headers"))), None)
    found = found or _metadata(error).get("HTTPHeaders") or {}
    try:
        return {str(name).lower(): str(value) for name, value in found.items()}
    except (AttributeError, TypeError, ValueError):
        return {}
