"""Logs: one line per fact on stderr, with the task it is about, without secrets."""

import logging
from collections.abc import Iterator

import msgspec
import pytest
import structlog

from outlive.actors.logging import configure

Line = dict[str, object]
LEAKED = "s3cret"


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root, handlers, level = logging.getLogger(), logging.getLogger().handlers[:], logging.getLogger().level
    yield
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(capsys: pytest.CaptureFixture[str]) -> list[Line]:
    out, err = capsys.readouterr()
    assert out == ""
    return [msgspec.json.decode(line, type=Line) for line in err.splitlines()]


def test_lines_carry_what_is_bound(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True)
    with structlog.contextvars.bound_contextvars(tenant="default", task="t1", worker="w", epoch=3):
        structlog.get_logger("outlive.test").info("claimed", found=object)
        logging.getLogger("nats").warning("lost %s", "it")
    first, second = lines(capsys)
    bound = {"tenant": "default", "task": "t1", "worker": "w", "epoch": 3}
    assert list(first) == ["timestamp", "level", "event", *bound, "found"]
    assert {**first, **bound, "event": "claimed", "level": "info"} == first
    assert {**second, **bound, "event": "lost it", "level": "warning"} == second


def test_only_warnings_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True)
    for name in ("nats.client", "asyncpg", "httpx", "asyncio"):
        logging.getLogger(name).info("chatter")
        logging.getLogger(name).warning("trouble in %s", name)
    structlog.get_logger("todo").debug("detail")
    structlog.get_logger("todo").info("a user's own line")
    assert [line["event"] for line in lines(capsys)] == [
        "trouble in nats.client",
        "trouble in asyncpg",
        "trouble in httpx",
        "trouble in asyncio",
        "a user's own line",
    ]


def test_no_secret_gets_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=True)
    log = structlog.get_logger("outlive.test")
    log.info("connecting to nats://s3cret@host:4222", dsn="postgresql://me:s3cret@host/db", nats_token=LEAKED)
    log.info("refused, password='s3cret' (Authorization: Bearer s3cret)", author="kept", tokens=5)
    logging.getLogger("asyncpg").error("postgres://me:s3cret@host/db is away", extra={"password": "s3cret"})
    try:
        int("token=s3cret")
    except ValueError:
        log.exception("failed")
    found = lines(capsys)
    assert "s3cret" not in str(found)
    assert found[0]["dsn"] == "postgresql://***@host/db" and found[1]["author"] == "kept" and found[1]["tokens"] == 5
    assert "token=***" in str(found[3]["exception"])


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    configure(json=False, level="debug")
    structlog.get_logger("outlive.test").debug("looking", task="t1")
    assert "[debug    ] looking" in (err := capsys.readouterr().err) and "task=t1" in err and "\x1b" not in err


def test_away_from_a_terminal_lines_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    configure()
    structlog.get_logger("outlive.test").info("hello")
    assert lines(capsys)[0]["event"] == "hello"


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^log level 'loud' is not known: use debug, info, warning or error$"):
        configure(level="loud")
