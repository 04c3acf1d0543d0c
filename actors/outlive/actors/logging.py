"""Structured logs to stderr: one line per fact, carrying tenant, task, worker and epoch where they are bound.

Code binds them with ``structlog.contextvars.bound_contextvars(tenant=..., task=..., epoch=...)``; asyncio tasks and
tool threads inherit them. Lines of libraries that use the standard library's logging take the same way out.
"""

import logging
import re
import sys
from typing import Any, Final

import msgspec
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_QUIET: Final = ("asyncio", "asyncpg", "httpcore", "httpx", "nats", "urllib3")
"""Libraries of which only warnings are worth a line."""

_FIRST: Final = ("timestamp", "level", "event", "tenant", "task", "worker", "epoch")

_USER_INFO: Final = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_ASSIGNED: Final = re.compile(
    r"(?i)((?:password|passwd|token|secret|authorization|api_?key)['\"]?\s*[=:]\s*(?:basic\s|bearer\s)?)[^\s,;)}]+"
)
_SECRET_NAME: Final = re.compile(r"(?i)(^|_)(password|passwd|token|secret|authorization|credentials|api_?key)$")
_HIDDEN: Final = "***"

_SHARED: Final[list[Processor]] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.stdlib.ExtraAdder(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]


def configure(json: bool | None = None, *, level: str = "info") -> None:
    """Send all logs of this process to stderr.

    Args:
        json: one JSON object per line, or lines for people; by default lines for people on a terminal only.
        level: the least level that is shown: debug, info, warning or error. `ValueError` for another word.
    """
    threshold = logging.getLevelNamesMapping().get(level.upper())
    if threshold is None:
        raise ValueError(f"log level {level!r} is not known: use debug, info, warning or error")
    structlog.configure(
        processors=[*_SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter(json=not sys.stderr.isatty() if json is None else json))
    logging.basicConfig(handlers=[handler], level=threshold, force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(threshold, logging.WARNING))


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Hide what looks like a secret: by the field's name, in a URL, or assigned within a text."""
    return {name: _HIDDEN if _SECRET_NAME.search(name) else _redacted(value) for name, value in event.items()}


def _redacted(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return _ASSIGNED.sub(rf"\1{_HIDDEN}", _USER_INFO.sub(_HIDDEN, value))


def _formatter(*, json: bool) -> logging.Formatter:
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=_SHARED,
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,  # to text first: no local variables, and secrets are hidden in it
            redact,
            _to_json if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), sort_keys=False),
        ],
    )


def _to_json(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    first = {name: event.pop(name) for name in _FIRST if name in event}
    return msgspec.json.encode({**first, **event}, enc_hook=repr).decode()
