"""Recipes that ask over HTTP, against a small real server: look-up, payments, GitHub, S3."""

import operator
from collections.abc import Callable
from typing import Any

import pytest

from outlive.actors.recipes import github, lookup, payments, s3
from outlive.protocol.operations import Outcome
from tests.actors.remote import Remote, Reply, Request, operation

OP = operation()
CREDENTIAL = "t"


def cut(_: Request) -> Reply:
    return Reply(None)


# --- by key


async def test_a_thing_at_an_address_of_its_own(remote: Remote) -> None:
    orders = {f"/orders/{OP.uuid}": {"id": 7}}
    remote.answer = lambda request: Reply(200, orders[request.path]) if request.path in orders else Reply(404)
    assert await lookup.by_key(f"{remote.url}/orders/{OP.uuid}") == Outcome.happened({"id": 7})
    found = await lookup.by_key(f"{remote.url}/orders/{OP.uuid}", result=lambda order: order["id"])
    assert found == Outcome.happened(7)
    assert await lookup.by_key(f"{remote.url}/orders/{operation(step='5').uuid}") == Outcome.did_not_happen()


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503, 302])
async def test_a_remote_that_does_not_say_is_no_no(remote: Remote, status: int) -> None:
    remote.answer = lambda _: Reply(status, {"why": "because"})
    for outcome in (
        await lookup.by_key(f"{remote.url}/orders/x"),
        await lookup.by_search(f"{remote.url}/orders", ours=lambda _: True),
        await payments.payment(OP, f"{remote.url}/v1/charges", headers={}),
        await github.issue(OP, "acme/shop", api=remote.url),
        await s3.stored(OP, f"{remote.url}/bucket/name"),
    ):
        assert outcome.verdict == "unknown" and str(status) in outcome.reason


async def test_a_connection_that_is_cut_is_no_no(remote: Remote) -> None:
    remote.answer = cut
    assert (await lookup.by_key(f"{remote.url}/orders/x")).verdict == "unknown"
    assert (await s3.stored(OP, f"{remote.url}/bucket/name")).verdict == "unknown"
    assert (await github.issue(OP, "acme/shop", api=remote.url)).verdict == "unknown"


# --- by search


def paged(items: list[Any], size: int = 2, form: Callable[[list[Any]], Any] = list) -> Callable[[Request], Reply]:
    """Answer with a list in pages, as GitHub does."""

    def answer(request: Request) -> Reply:
        page = int(request.query.get("page", ["1"])[0])
        part = items[(page - 1) * size : page * size]
        more = {"Link": f'<{request.path}?page={page + 1}>; rel="next"'} if page * size < len(items) else {}
        return Reply(200, form(part), more)

    return answer


async def test_a_thing_among_others(remote: Remote) -> None:
    rows = [{"reference": f"other-{n}", "id": n} for n in range(5)] + [{"reference": OP.key, "id": 99}]
    remote.answer = paged(rows, form=lambda part: {"items": part})

    async def search(key: str) -> Outcome[Any]:
        return await lookup.by_search(
            f"{remote.url}/orders",
            params={"since": "yesterday"},
            headers={"Authorization": "Bearer t"},
            items=lambda page: page["items"],
            ours=lambda item: item["reference"] == key,
            result=lambda item: item["id"],
        )

    assert await search(OP.key) == Outcome.happened(99)
    assert [request.query.get("since") for request in remote.seen] == [["yesterday"], None, None]
    assert all(request.headers["authorization"] == "Bearer t" for request in remote.seen)
    assert await search("nobody's") == Outcome.did_not_happen()
    rows.append({"reference": OP.key, "id": 100})
    assert (await search(OP.key)).matches == 2


async def test_a_list_that_breaks_off_is_no_no_unless_it_was_seen_before(remote: Remote) -> None:
    whole = paged([{"key": "mine"}, {"key": "other"}, {"key": "other"}])
    remote.answer = lambda request: Reply(500) if "page" in request.query else whole(request)
    seen = await lookup.by_search(f"{remote.url}/list", ours=lambda item: item["key"] == "mine")
    assert seen == Outcome.happened({"key": "mine"})
    assert (await lookup.by_search(f"{remote.url}/list", ours=lambda _: False)).verdict == "unknown"


async def test_a_form_that_was_not_expected_is_no_no(remote: Remote) -> None:
    remote.answer = lambda _: Reply(200, {"data": [1]})
    for form in ("items", "data"):
        outcome = await lookup.by_search(
            f"{remote.url}/x", items=operator.itemgetter(form), ours=lambda item: item["key"] == "mine"
        )
        assert outcome.verdict == "unknown" and "not expected" in outcome.reason


async def test_credentials_do_not_follow_a_link_to_another_host(remote: Remote) -> None:
    remote.answer = lambda _: Reply(200, [], {"Link": '<http://127.0.0.2:1/steal>; rel="next"'})
    outcome = await lookup.by_search(f"{remote.url}/x", ours=lambda _: True)
    assert outcome.verdict == "unknown" and "another host" in outcome.reason


async def test_an_endless_list_ends(remote: Remote) -> None:
    remote.answer = lambda request: Reply(200, [], {"Link": f'<{request.path}>; rel="next"'})
    outcome = await lookup.by_search(f"{remote.url}/x", ours=lambda _: True)
    assert outcome.verdict == "unknown" and "narrow" in outcome.reason


# --- payments


def intents(remote: Remote, *items: dict[str, Any]) -> None:
    def answer(request: Request) -> Reply:
        assert int(request.query["created[gte]"][0]) < OP.started_at.timestamp()
        after = request.query.get("starting_after", [""])[0]
        begin = next((n + 1 for n, item in enumerate(items) if item["id"] == after), 0)
        return Reply(200, {"object": "list", "data": items[begin : begin + 2], "has_more": begin + 2 < len(items)})

    remote.answer = answer


async def pay(remote: Remote) -> Outcome[Any]:
    return await payments.payment(OP, f"{remote.url}/v1/payment_intents", headers={"Authorization": "Bearer sk"})


async def test_a_payment_is_found_by_its_metadata_on_any_page(remote: Remote) -> None:
    others = [{"id": f"pi_{n}", "metadata": {}, "status": "succeeded"} for n in range(4)]
    ours = {"id": "pi_9", "metadata": payments.metadata(OP), "status": "processing"}
    intents(remote, *others)
    assert await pay(remote) == Outcome.did_not_happen()
    intents(remote, *others, ours)
    assert await pay(remote) == Outcome.happened(ours)
    intents(remote, ours, *others, {**ours, "id": "pi_10"})
    assert (await pay(remote)).matches == 2


async def test_a_declined_payment_is_refused_and_one_nobody_tried_to_pay_is_there(remote: Remote) -> None:
    ours = {"id": "pi_9", "metadata": payments.metadata(OP), "status": "requires_payment_method"}
    intents(remote, {**ours, "last_payment_error": {"message": "card declined"}})
    assert await pay(remote) == Outcome.refused("card declined")
    intents(remote, ours)
    assert await pay(remote) == Outcome.happened(ours)
    charge = {"id": "ch_1", "metadata": payments.metadata(OP), "status": "failed", "failure_message": "no money"}
    intents(remote, charge, {**charge, "id": "ch_2", "status": "succeeded"})
    assert await pay(remote) == Outcome.happened({**charge, "id": "ch_2", "status": "succeeded"})


async def test_what_is_no_list_is_no_no(remote: Remote) -> None:
    remote.answer = lambda _: Reply(200, {"object": "account"})
    assert (await pay(remote)).verdict == "unknown"


# --- GitHub


async def test_an_issue_is_found_by_the_marker_in_its_body(remote: Remote) -> None:
    other = {"number": 1, "body": None}
    ours = {"number": 7, "body": "It is broken." + github.marker(OP)}
    remote.answer = paged([other, other, ours])
    assert await github.issue(OP, "acme/shop", token=CREDENTIAL, api=remote.url) == Outcome.happened(7)
    first = remote.seen[0]
    assert first.path == "/repos/acme/shop/issues" and first.headers["authorization"] == f"Bearer {CREDENTIAL}"
    assert first.query["state"] == ["all"] and first.query["since"][0].endswith("Z")
    remote.answer = paged([other])
    assert await github.issue(OP, "acme/shop", api=remote.url) == Outcome.did_not_happen()


async def test_a_repository_that_cannot_be_seen_is_no_no(remote: Remote) -> None:
    assert (await github.issue(OP, "acme/secret", api=remote.url)).verdict == "unknown"


# --- S3


def store(remote: Remote) -> None:
    """Keep objects as a store does, in memory."""
    objects: dict[str, tuple[str, str | None]] = {}

    def answer(request: Request) -> Reply:
        if request.method == "PUT":
            objects[request.path] = s3.etag(request.body), request.headers.get(s3.HEADER)
            return Reply(200)
        if request.path not in objects:
            return Reply(404)
        tag, key = objects[request.path]
        return Reply(200, None, {"ETag": tag, **({s3.HEADER: key} if key else {})})

    remote.answer = answer


async def put(url: str, body: bytes, headers: dict[str, str] | None = None) -> None:
    from outlive.actors import http

    await http.send(OP, "PUT", url, content=body, headers=headers or {})


async def test_an_object_is_found_by_its_name_its_etag_or_its_key(remote: Remote) -> None:
    store(remote)
    url = f"{remote.url}/bucket/report?X-Signature=abc"
    assert await s3.stored(OP, url) == Outcome.did_not_happen()
    await put(url, b"report")
    assert await s3.stored(OP, url) == Outcome.happened(s3.etag(b"report"))
    assert await s3.stored(OP, url, expected=s3.etag(b"report")) == Outcome.happened(s3.etag(b"report"))
    assert (await s3.stored(OP, url, expected=s3.etag(b"other"))).verdict == "unknown"
    await put(url, b"report", s3.metadata(OP))
    assert await s3.stored(OP, url, expected="parts") == Outcome.happened(s3.etag(b"report"))
    assert (await s3.stored(operation(step="5"), url)).verdict == "unknown"
