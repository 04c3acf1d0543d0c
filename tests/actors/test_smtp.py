"""SMTP for tools: a mail goes to all of its recipients or to none, and what goes wrong says whether it was taken."""

import smtplib
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Any

import pytest

from outlive.actors import smtp
from outlive.actors.classifier import classify
from outlive.actors.recipes import mail
from outlive.protocol.errors import InvalidArguments, NotSent
from outlive.protocol.operations import ErrorClass, Outcome
from tests.actors.postbox import Postbox, postbox
from tests.actors.remote import operation

OP = operation()
OURS = mail.message_id(OP, "shop.example")


@pytest.fixture
def box() -> Iterator[Postbox]:
    with postbox() as running:
        yield running


def letter(**headers: str) -> EmailMessage:
    message = EmailMessage()
    shown = {"From": "Shop <shop@shop.example>", "To": "you@example.com", "Message-ID": OURS, **headers}
    for name, value in shown.items():
        if value:
            message[name.replace("_", "-")] = value
    message.set_content("Grüße\n.\nbelow a dot\n")
    return message


def test_a_mail_is_handed_over_whole_to_all_and_nobody_sees_the_blind_copy(box: Postbox) -> None:
    assert smtp.send(OP, box.smtp, letter(Cc="Ann <ann@example.com>", Bcc="eve@example.com")) == OURS
    (taken,) = box.mails
    assert box.recipients == ["you@example.com", "ann@example.com", "eve@example.com"]
    assert (taken["Message-ID"], taken["Bcc"]) == (OURS, None)
    content: Any = taken.get_payload(decode=True)
    assert content.decode() == "Grüße\r\n.\r\nbelow a dot\r\n"


@pytest.mark.parametrize(
    ("verb", "says", "expected", "taken"),
    [
        ("MAIL", None, ErrorClass.NOT_SENT, 0),  # the line is cut before the mail
        ("MAIL", "550 not from you", ErrorClass.INVALID_ARGUMENTS, 0),
        ("RCPT", "550 nobody of that name", ErrorClass.INVALID_ARGUMENTS, 0),
        ("RCPT", "450 come back later", ErrorClass.RATE_LIMITED, 0),
        ("DATA", "451 not now", ErrorClass.RATE_LIMITED, 0),
        ("mail", "554 looks like spam", ErrorClass.INVALID_ARGUMENTS, 0),
        ("mail", "452 no room", ErrorClass.RATE_LIMITED, 0),
        ("mail", None, ErrorClass.TIMEOUT, 1),  # taken, and the answer is lost
        ("QUIT", None, None, 1),  # taken: how the connection ends does not matter
    ],
)
def test_what_the_server_says_tells_whether_the_mail_was_taken(
    box: Postbox, verb: str, says: str | None, expected: ErrorClass | None, taken: int
) -> None:
    box.says = {verb: says}
    if expected is None:
        smtp.send(OP, box.smtp, letter())
    else:
        with pytest.raises(Exception) as failed:  # noqa: PT011  # whatever it is, its class is what counts
            smtp.send(OP, box.smtp, letter())
        assert classify(failed.value) is expected
    assert len(box.mails) == taken


def test_one_refused_recipient_keeps_the_mail_from_all(box: Postbox) -> None:
    box.says = {"ann@example.com": "550 nobody of that name"}
    with pytest.raises(smtplib.SMTPRecipientsRefused, match="ann"):
        smtp.send(OP, box.smtp, letter(Cc="ann@example.com"))
    assert box.mails == []


def test_a_server_that_is_not_there_was_sent_nothing(box: Postbox) -> None:
    with pytest.raises(NotSent):
        smtp.send(OP, "smtp://127.0.0.1:1", letter())
    with pytest.raises(NotSent, match="not sent"):
        smtp.send(OP, box.smtp.replace("smtp:", "smtps:"), letter())  # it speaks no TLS


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://mail.example.com", {}),
        ("smtp://", {}),
        ("smtp://127.0.0.1:1", {"Message_ID": "", "Message-ID": ""}),
        ("smtp://127.0.0.1:1", {"To": "nobody"}),
        ("smtp://127.0.0.1:1", {"To": ""}),
    ],
)
def test_what_cannot_be_sent_is_refused_before(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidArguments):
        smtp.send(OP, url, letter(**headers))


def test_no_password_is_shown() -> None:
    assert smtp.shown("smtps://me:secret@mail.example.com:465") == "mail.example.com:465"


def test_a_mail_whose_answer_was_lost_is_found_in_the_mailbox(box: Postbox) -> None:
    assert mail.at_imap(OP, box.imap, domain="shop.example") == Outcome.did_not_happen()
    box.says = {"mail": None}
    with pytest.raises(OSError):  # noqa: PT011  # it has many names
        smtp.send(OP, box.smtp, letter())
    assert mail.at_imap(OP, box.imap, domain="shop.example") == Outcome.happened(OURS)
    assert mail.at_imap(OP, f"{box.imap}/Archive", domain="shop.example").verdict == "unknown"
    assert mail.at_imap(OP, "imap://127.0.0.1:1", domain="shop.example").verdict == "unknown"
