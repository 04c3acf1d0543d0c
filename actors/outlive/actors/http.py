"""HTTP for tools: the key is sent, the answer is bounded, and what goes wrong says what it means for the effect.

    @app.tool(idempotent=True, key_ttl=86_400)
    async def open_ticket(op: Operation, title: str) -> Ticket:
        return await http.send(op, "POST", f"{URL}/tickets", json={"title": title}, expect=Ticket)

`send` is for effects; `ask` is for looking (in read-only tools and in reconcilers) and leaves the status to its caller.
The twins with ``_sync`` are for synchronous tools, which run in threads. Only GET and HEAD follow redirects, cookies
are not kept, and a request is never sent twice from here: that is for the step to decide.
"""

import asyncio
import functools
import hashlib
import ssl
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, Final, NoReturn, TypedDict, TypeVar, Unpack, overload
from weakref import WeakKeyDictionary

import httpx
import structlog

from outlive.actors.classifier import classify, status_class, wait_of
from outlive.protocol import codec
from outlive.protocol.errors import (
    InvalidArguments,
    NotSent,
    OutcomeUnknown,
    PermissionDenied,
    RateLimited,
    ToolError,
    Unavailable,
)
from outlive.protocol.operations import ErrorClass
from outlive.protocol.tools import Operation

T = TypeVar("T")

MAX_BYTES: Final = 1024 * 1024
"""Bytes of an answer that are read unless a caller wants more."""

CONNECT: Final = 10.0
"""Seconds after which a connection is given up; that it did not come about proves that nothing was sent."""

ASK: Final = 30.0
"""Seconds for a question."""

_SHOWN: Final = 500
"""Characters of an answer that are shown in errors and logs."""

_OPEN_HEADERS: Final = frozenset(
    {
        "accept", "accept-encoding", "connection", "content-length", "content-type", "date", "etag", "host",
        "idempotency-key", "if-match", "if-none-match", "location", "retry-after", "user-agent", "x-request-id",
    }
)  # fmt: skip
"""Headers whose values are shown; of all others only the name is."""

_log = structlog.get_logger("outlive.http")


class Options(TypedDict, total=False):
    """What a request carries, as in httpx."""

    json: Any
    content: bytes | str
    data: Mapping[str, Any]
    params: Mapping[str, Any]
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What was sent and what came back, as it may be shown: no credentials, no long texts. Logged at debug.

    Attributes:
        method: of the request.
        url: without user and without the values of its query, which may sign it.
        headers: as sent; values only of harmless ones.
        digest: of the request's body (blake2b, hex); empty without one.
        status: of the answer; None when none came.
        answer: the beginning of its body, or what went wrong.
        took: seconds.
    """

    method: str
    url: str
    headers: Mapping[str, str]
    digest: str
    status: int | None
    answer: str
    took: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer of a remote, whatever its status.

    Attributes:
        status: 200 to 599.
        headers: names in lower case.
        body: at most the allowed bytes of it.
        whole: the body is complete.
        links: URLs of the ``Link`` header by relation, for instance "next".
    """

    status: int
    headers: Mapping[str, str]
    body: bytes
    whole: bool
    links: Mapping[str, str]

    @property
    def ok(self) -> bool:
        """The remote did what it was asked."""
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body as text; what is no UTF-8 is replaced."""
        return self.body.decode("utf-8", "replace")

    def decode(self, expect: Any = Any) -> Any:
        """Return the body as the expected type: `bytes`, `str`, None's type, or what its JSON is decoded into.

        Any: JSON where the remote says that it is, else text; None for an empty body.

        Raises:
            codec.NotStorable: it is longer than allowed, or does not fit.
        """
        if not self.whole:
            raise codec.NotStorable(
                "$", f"the answer is longer than {len(self.body):,} bytes: allow more by max_bytes="
            )
        if expect is None or expect is type(None):
            return None
        if expect is bytes:
            return self.body
        is_json = "json" in self.headers.get("content-type", "")
        if expect is str:
            return self.text
        if expect is Any and not (is_json and self.body):
            return self.text or None
        return codec.unpack(self.body, expect)


@overload
async def send(
    op: Operation, method: str, url: str, *, expect: type[T], max_bytes: int = ..., **options: Unpack[Options]
) -> T: ...
@overload
async def send(op: Operation, method: str, url: str, *, max_bytes: int = ..., **options: Unpack[Options]) -> Any: ...
async def send(
    op: Operation, method: str, url: str, *, expect: Any = Any, max_bytes: int = MAX_BYTES, **options: Unpack[Options]
) -> Any:
    """Make an effect and return what the remote says of it.

    Args:
        op: its key goes along as ``Idempotency-Key`` (unless that header is given); its deadline bounds the request.
        method: POST, PUT, ...
        url: whole.
        expect: see `Answer.decode`.
        max_bytes: a longer answer is an error: the effect happened, its result cannot be kept.
        options: json, content, data, params, headers.

    Raises:
        ToolError: of the class that the answer, or its absence, stands for.
        codec.NotStorable: it happened, and its answer is too long or does not fit.
    """
    answer = await ask(method, url, within=_seconds(op), max_bytes=max_bytes, **_with_key(op, options))
    return _result(op, f"{method} {shown_url(url)}", answer, expect)


@overload
def send_sync(
    op: Operation, method: str, url: str, *, expect: type[T], max_bytes: int = ..., **options: Unpack[Options]
) -> T: ...
@overload
def send_sync(op: Operation, method: str, url: str, *, max_bytes: int = ..., **options: Unpack[Options]) -> Any: ...
def send_sync(
    op: Operation, method: str, url: str, *, expect: Any = Any, max_bytes: int = MAX_BYTES, **options: Unpack[Options]
) -> Any:
    """Make an effect from a synchronous tool; as `send`."""
    answer = ask_sync(method, url, within=_seconds(op), max_bytes=max_bytes, **_with_key(op, options))
    return _result(op, f"{method} {shown_url(url)}", answer, expect)


async def ask(
    method: str, url: str, *, within: float = ASK, max_bytes: int = MAX_BYTES, **options: Unpack[Options]
) -> Answer:
    """Send one request and return its answer, whatever its status.

    Args:
        method: GET, HEAD, ...
        url: whole.
        within: seconds for all of it.
        max_bytes: a longer body is cut off (`Answer.whole`).
        options: json, content, data, params, headers.

    Raises:
        ToolError: no answer came; its class says whether the request may have arrived.
    """
    call = _Call(method, url)
    try:
        client = await _client()
        request = call.request = client.build_request(method, url, timeout=_phases(within), **options)
        async with asyncio.timeout(within):
            response = await client.send(request, stream=True, follow_redirects=_may_follow(method))
            try:
                async for chunk in response.aiter_bytes():
                    if not call.more(chunk, max_bytes):
                        break
            finally:
                await response.aclose()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        call.failed(error)
    return call.answered(response)


def ask_sync(
    method: str, url: str, *, within: float = ASK, max_bytes: int = MAX_BYTES, **options: Unpack[Options]
) -> Answer:
    """Send one request from a thread; as `ask`. Its parts are bounded one by one, so it may take longer in all."""
    call = _Call(method, url)
    try:
        client = _client_sync()
        request = call.request = client.build_request(method, url, timeout=_phases(within), **options)
        response = client.send(request, stream=True, follow_redirects=_may_follow(method))
        try:
            for chunk in response.iter_bytes():
                if call.took > within:
                    raise TimeoutError(f"the answer was not complete after {within:g} s")
                if not call.more(chunk, max_bytes):
                    break
        finally:
            response.close()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        call.failed(error)
    return call.answered(response)


def shown_url(url: str) -> str:
    """Return a URL without its user and without the values of its query, which may sign it."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return url.partition("?")[0]
    bare = parsed.copy_with(username=None, password=None, query=None, fragment=None)
    names = "&".join(f"{name}=***" for name in parsed.params)
    return f"{bare}?{names}" if names else str(bare)


def joined(url: str, link: str) -> str:
    """Return the whole URL of a link found in the answer of a URL."""
    return str(httpx.URL(url).join(link))


def origin(url: str) -> tuple[str, str, int | None]:
    """Return scheme, host and port: credentials are meant for one origin."""
    parsed = httpx.URL(url)
    return parsed.scheme, parsed.host, parsed.port


async def close() -> None:
    """Close the connections of this event loop; the next request opens new ones."""
    client = _clients.pop(asyncio.get_running_loop(), None)
    if client is not None:
        await client.aclose()


def close_sync() -> None:
    """Close the connections of all threads, at the end of a program."""
    if _client_sync.cache_info().currsize:
        _client_sync().close()
        _client_sync.cache_clear()


class _Call:
    """One request under way."""

    def __init__(self, method: str, url: str) -> None:
        self.method, self.url = method, url
        self.request: httpx.Request | None = None
        self.began = time.monotonic()
        self.body = bytearray()
        self.whole = True

    @property
    def took(self) -> float:
        return time.monotonic() - self.began

    def more(self, chunk: bytes, most: int) -> bool:
        """Keep a piece of the answer; False when there is no room for more."""
        self.body += chunk[: most - len(self.body) + 1]
        self.whole = len(self.body) <= most
        del self.body[most:]
        return self.whole

    def answered(self, response: httpx.Response) -> Answer:
        headers = {name.lower(): value for name, value in response.headers.items()}
        links = {name: link["url"] for name, link in response.links.items() if name and "url" in link}
        answer = Answer(
            status=response.status_code, headers=headers, body=bytes(self.body), whole=self.whole, links=links
        )
        self._log(answer.status, answer.text[:_SHOWN])
        return answer

    def failed(self, error: Exception) -> NoReturn:
        said = f"{type(error).__name__}: {error}"
        self._log(None, said)
        error_class = classify(error)
        if error_class is ErrorClass.BUG:
            raise error
        raise _error(error_class, f"{self.method} {shown_url(self.url)}: {said}") from error

    def _log(self, status: int | None, answer: str) -> None:
        _log.debug("http exchange", **asdict(_exchange(self, status, answer)))


def _exchange(call: _Call, status: int | None, answer: str) -> Exchange:
    headers = {} if call.request is None else call.request.headers
    shown = {name: value if name.lower() in _OPEN_HEADERS else "***" for name, value in headers.items()}
    content = b"" if call.request is None else call.request.read()
    digest = hashlib.blake2b(content, digest_size=16).hexdigest() if content else ""
    return Exchange(
        method=call.method, url=shown_url(call.url), headers=shown, digest=digest, status=status, answer=answer,
        took=round(call.took, 6),
    )  # fmt: skip


def _result(op: Operation, what: str, answer: Answer, expect: Any) -> Any:
    if answer.ok:
        return answer.decode(expect)
    said = f"{what} answered {answer.status}: {answer.text[:_SHOWN]}"
    if answer.status == 409 and op.attempt > 1:
        # remotes answer so while the first request with this key is still under way
        raise Unavailable(said, retry_after=_told(answer))
    raise _error(status_class(answer.status), said, _told(answer))


def _told(answer: Answer) -> float | None:
    return wait_of(answer.headers, datetime.now(UTC))


def _error(error_class: ErrorClass, message: str, retry_after: float | None = None) -> ToolError:
    match error_class:
        case ErrorClass.RATE_LIMITED:
            return RateLimited(message, retry_after=retry_after)
        case ErrorClass.UNAVAILABLE:
            return Unavailable(message, retry_after=retry_after)
        case ErrorClass.PERMISSION_DENIED:
            return PermissionDenied(message)
        case ErrorClass.NOT_SENT:
            return NotSent(message)
        case ErrorClass.INVALID_ARGUMENTS:
            return InvalidArguments(message)
        case _:
            return OutcomeUnknown(message)


def _with_key(op: Operation, options: Options) -> Options:
    given = options.get("headers", {})
    named = {name.lower() for name in given}
    return {**options, "headers": given if "idempotency-key" in named else {"Idempotency-Key": op.key, **given}}


def _seconds(op: Operation) -> float:
    """Return how long the operation may take: a span of the database's time, so no clock of ours need be right."""
    return max(0.001, (op.deadline - op.started_at).total_seconds())


def _phases(seconds: float) -> httpx.Timeout:
    """Give up connecting well before the whole is over: then it is known that nothing was sent."""
    return httpx.Timeout(seconds, connect=min(CONNECT, seconds / 2), pool=min(CONNECT, seconds / 2))


def _may_follow(method: str) -> bool:
    return method.upper() in {"GET", "HEAD"}


# --- clients: one per event loop, one for all threads

_clients: Final[WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]] = WeakKeyDictionary()
_LIMITS: Final = httpx.Limits(max_connections=200, max_keepalive_connections=50, keepalive_expiry=2.0)
# A connection that idles is used again only for a moment: one that the remote has closed meanwhile loses an effect.


async def _client() -> httpx.AsyncClient:
    loop = asyncio.get_running_loop()
    if loop not in _clients:
        tls = await asyncio.to_thread(_tls)  # reads files
        _clients.setdefault(loop, httpx.AsyncClient(verify=tls, limits=_LIMITS, cookies=_no_cookies()))
    return _clients[loop]


@functools.cache
def _client_sync() -> httpx.Client:
    return httpx.Client(verify=_tls(), limits=_LIMITS, cookies=_no_cookies())


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx.create_ssl_context()


def _no_cookies() -> CookieJar:
    """Make a jar that stays empty: tools of many tenants share the client."""
    return CookieJar(DefaultCookiePolicy(allowed_domains=[]))
