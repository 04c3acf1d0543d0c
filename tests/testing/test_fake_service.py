import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest

from outlive.actors.testing import FakeClient, FakeService, fake_service


async def test_an_effect_happens_once_for_a_key(service: FakeService) -> None:
    first = await service.effect("mail", {"to": "a"}, key="k1")
    again = await service.effect("mail", {"to": "a"}, key="k1")
    other = await service.effect("mail", {"to": "a"})
    assert first == again != other
    counts = await service.counts()
    assert (counts.keys, counts.names, counts.requests) == ({"k1": 1}, {"mail": 2}, {"k1": 2})
    assert [effect.body for effect in await service.effects(key="k1")] == [{"to": "a"}]


async def test_many_at_once_happen_once(service: FakeService) -> None:
    await asyncio.gather(*(service.effect("mail", n % 10, key=str(n % 10)) for n in range(100)))
    assert (await service.counts()).keys == {str(n): 1 for n in range(10)}


async def test_another_body_under_a_key_is_refused(service: FakeService) -> None:
    await service.effect("mail", 1, key="k")
    with pytest.raises(httpx.HTTPStatusError, match="422"):
        await service.effect("mail", 2, key="k")


async def test_keys_may_be_ignored(service: FakeService) -> None:
    for _ in range(2):
        await service.effect("mail", 1, key="k", keys=False)
    assert (await service.counts()).keys == {"k": 2}


async def test_a_lost_answer_is_an_effect(service: FakeService) -> None:
    await service.behave("lose_answer", times=2, after=1)
    await service.effect("mail", 1, key="a")
    for key in ("b", "b"):
        with pytest.raises(httpx.TransportError):
            await service.effect("mail", 1, key=key)
    assert await service.effect("mail", 1, key="b") == 2
    assert (await service.counts()).requests == {"a": 1, "b": 3}


async def test_a_dropped_request_is_none(service: FakeService) -> None:
    await service.behave("drop", name="mail")
    await service.effect("post", 1, key="b")
    with pytest.raises(httpx.TransportError):
        await service.effect("mail", 1, key="a")
    assert (await service.counts()).keys == {"b": 1}


async def test_half_a_request_is_none(service: FakeService) -> None:
    url = httpx.URL(service.url)
    _, writer = await asyncio.open_connection(url.host, url.port)
    writer.write(b"POST /effect/mail HTTP/1.1\r\nHost: x\r\nIdempotency-Key: a\r\nContent-Length: 9\r\n\r\n[1")
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await asyncio.sleep(0.1)
    assert (await service.counts()).keys == {}
    await service.effect("mail", [1], key="a")


async def test_it_throttles_and_fails_as_told(service: FakeService) -> None:
    await service.behave("throttle", seconds=7)
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await service.effect("mail", 1, key="a")
    assert (refused.value.response.status_code, refused.value.response.headers["retry-after"]) == (429, "7")
    await service.behave("fail", status=503, times=None)
    for _ in range(2):
        with pytest.raises(httpx.HTTPStatusError, match="503"):
            await service.effect("mail", 1, key="a")
    await service.calm()
    await service.effect("mail", 1, key="a")


async def test_it_hangs_and_acts_late(service: FakeService) -> None:
    await service.behave("hang", seconds=0.1)
    began = time.monotonic()
    await service.effect("mail", 1, key="a")
    assert time.monotonic() - began > 0.1
    await service.behave("late", seconds=0.5)
    with pytest.raises(httpx.TransportError):
        await service.effect("mail", 1, key="b")
    assert not await service.effects(key="b")
    async with asyncio.timeout(30):
        while not await service.effects(key="b"):  # noqa: ASYNC110  # it tells no event
            await asyncio.sleep(0.02)


async def test_an_unknown_behaviour_is_named(service: FakeService) -> None:
    wrong = urllib.request.Request(f"{service.url}/behave", data=b'{"action": "explode"}', method="POST")  # noqa: S310
    with pytest.raises(urllib.error.HTTPError) as refused:
        await asyncio.to_thread(urllib.request.urlopen, wrong)
    assert "lose_answer" in json.load(refused.value)["error"]
    refused.value.close()


def test_its_file_outlives_it(tmp_path: Path) -> None:
    for effects in (1, 2):
        with fake_service(tmp_path / "effects.sqlite") as client:
            client.effect("mail", 1, key=f"k{effects}")
            assert len(client.effects()) == effects


def test_it_ends_with_the_process_that_started_it_and_not_before() -> None:
    code = (
        "import time\n"
        "from outlive.actors.testing import fake_service\n"
        "with fake_service() as service: print(service.url, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        client = FakeClient(starter.stdout.readline().strip())
        client.effect("mail", 1)
        starter.send_signal(signal.SIGSTOP)
        client.effect("mail", 1)
        starter.kill()
    deadline = time.monotonic() + 30
    with contextlib.suppress(httpx.TransportError):
        while client.counts():
            assert time.monotonic() < deadline, "it lives on"
            time.sleep(0.02)
    client.close()
