"""Recipes that ask a database or a mail folder, real ones."""

import imaplib
import socket
import sqlite3
from collections.abc import Iterator
from email.message import EmailMessage
from mailbox import Maildir
from pathlib import Path

import asyncpg
import pytest

from outlive.actors.recipes import mail, sql
from outlive.actors.testing import Server
from outlive.protocol.operations import Outcome
from tests.actors.postbox import Postbox, postbox
from tests.actors.remote import operation

OP = operation()
SELECT = "select id, total from orders where operation_key = "


# --- SQL


def test_a_row_in_sqlite_is_found_by_its_key(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "shop.db")
    assert sql.row_sqlite(OP, connection, SELECT + "?").verdict == "unknown"  # no such table
    connection.execute("create table orders (id integer, total integer, operation_key text)")
    assert sql.row_sqlite(OP, connection, SELECT + "?") == Outcome.did_not_happen()
    connection.execute("insert into orders values (7, 42, ?)", (OP.key,))
    assert sql.row_sqlite(OP, connection, SELECT + "?") == Outcome.happened({"id": 7, "total": 42})
    assert sql.row_sqlite(OP, connection, SELECT + "? and id > ?", 7) == Outcome.did_not_happen()
    connection.execute("insert into orders values (8, 42, ?)", (OP.key,))
    assert sql.row_sqlite(OP, connection, SELECT + "?").matches == 2
    connection.close()
    assert sql.row_sqlite(OP, connection, SELECT + "?").verdict == "unknown"


async def test_a_row_in_postgres_is_found_by_its_key(shared: Server) -> None:
    assert shared.settings.postgres_dsn is not None
    connection = await asyncpg.connect(shared.settings.postgres_dsn)
    try:
        assert (await sql.row(OP, connection, SELECT + "$1")).verdict == "unknown"
        await connection.execute("create table orders (id int, total int, operation_key text unique)")
        assert await sql.row(OP, connection, SELECT + "$1") == Outcome.did_not_happen()
        await connection.execute("insert into orders values (7, 42, $1)", OP.key)
        assert await sql.row(OP, connection, SELECT + "$1") == Outcome.happened({"id": 7, "total": 42})
        assert await sql.row(OP, connection, SELECT + "$1 and id > $2", 7) == Outcome.did_not_happen()
    finally:
        await connection.close()
    assert (await sql.row(OP, connection, SELECT + "$1")).verdict == "unknown"


# --- mail


def letter(identity: str) -> EmailMessage:
    message = EmailMessage()
    message["Message-ID"] = identity
    message["Subject"] = "The report"
    message.set_content(f"It mentions {mail.message_id(OP, 'shop.example')} in its text only.")
    return message


def test_a_mail_in_a_maildir_is_found_by_its_message_id(tmp_path: Path) -> None:
    folder, ours = tmp_path / "mail", mail.message_id(OP, "shop.example")
    assert mail.in_maildir(OP, folder, domain="shop.example").verdict == "unknown"
    box = Maildir(folder)
    box.add(letter("<somebody@else.example>"))
    (folder / "tmp" / "half").write_bytes(letter(ours).as_bytes())  # not delivered
    assert mail.in_maildir(OP, folder, domain="shop.example") == Outcome.did_not_happen()
    key = box.add(letter(ours))
    assert mail.in_maildir(OP, folder, domain="shop.example") == Outcome.happened(ours)
    (folder / "new" / key).rename(folder / "cur" / f"{key}:2,S")  # it was read
    assert mail.in_maildir(OP, folder, domain="shop.example") == Outcome.happened(ours)
    box.add(letter(ours))
    assert mail.in_maildir(OP, folder, domain="shop.example").matches == 2


@pytest.fixture
def box() -> Iterator[Postbox]:
    with postbox() as running:
        yield running


@pytest.fixture
def imap(box: Postbox) -> Iterator[imaplib.IMAP4]:
    connection = imaplib.IMAP4("127.0.0.1", int(box.imap.rpartition(":")[2]), timeout=5)
    connection.state = "AUTH"
    yield connection
    connection.shutdown()


def test_a_mail_is_found_over_imap(imap: imaplib.IMAP4, box: Postbox) -> None:
    ours = mail.message_id(OP, "shop.example")
    assert mail.over_imap(OP, imap, domain="shop.example") == Outcome.did_not_happen()
    box.mails = [letter("<other@x>"), letter(ours)]
    assert mail.over_imap(OP, imap, domain="shop.example") == Outcome.happened(ours)
    box.mails = [letter(ours), letter(ours)]
    assert mail.over_imap(OP, imap, domain="shop.example").matches == 2
    missing = mail.over_imap(OP, imap, folder='Gesendet "alt"', domain="shop.example")
    assert missing.verdict == "unknown" and "Gesendet" in missing.reason


def test_a_mail_server_that_is_gone_is_no_no(imap: imaplib.IMAP4) -> None:
    imap.sock.shutdown(socket.SHUT_RDWR)
    assert mail.over_imap(OP, imap, domain="shop.example").verdict == "unknown"
