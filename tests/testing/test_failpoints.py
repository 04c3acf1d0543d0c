import asyncio
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from outlive.infra import failpoints


async def test_a_point_that_is_not_armed_does_nothing() -> None:
    assert not failpoints.armed
    await failpoints.hit("effect.before")
    failpoints.hit_sync("effect.before")
    assert failpoints.hits("effect.before") == 0


async def test_error_is_raised_at_the_nth_hit_only() -> None:
    failpoints.arm("effect.before", "error", after=2)
    await failpoints.hit("effect.before")
    with pytest.raises(failpoints.FailpointError, match=r"effect\.before"):
        await failpoints.hit("effect.before")
    await failpoints.hit("effect.before")
    assert failpoints.hits("effect.before") == 3


async def test_hang_holds_until_disarmed_and_is_seen_by_the_test() -> None:
    failpoints.arm("publish.before", "hang")
    async with asyncio.TaskGroup() as group:
        held = group.create_task(failpoints.hit("publish.before"))
        await asyncio.wait_for(failpoints.reached("publish.before"), 30)
        assert not held.done()
        failpoints.disarm("publish.before")
    assert not failpoints.armed


async def test_sleep_holds_for_its_seconds() -> None:
    failpoints.arm("publish.before", "sleep:0.05")
    began = time.monotonic()
    await failpoints.hit("publish.before")
    assert time.monotonic() - began > 0.04


async def test_reached_arms_a_point_that_only_counts() -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(failpoints.reached("claim.after"))
        await asyncio.sleep(0)
        await failpoints.hit("claim.after")
        await waiting


def test_a_hanging_thread_is_released() -> None:
    failpoints.arm("effect.after", "hang")
    thread = threading.Thread(target=failpoints.hit_sync, args=("effect.after",))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    failpoints.disarm()
    thread.join(5)
    assert not thread.is_alive()


def test_kill_from_the_environment() -> None:
    code = (
        "from outlive.infra import failpoints as f\n"
        "assert f.armed\n"
        "for n in range(5): print(n, flush=True); f.hit_sync('final.after_commit')\n"
    )
    environment = {**os.environ, failpoints.VARIABLE: "claim.after=hang, final.after_commit=kill@3"}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=False, text=True
    )
    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout.split() == ["0", "1", "2"]


@pytest.mark.parametrize(
    "text", ["nowhere=kill", "claim.after=explode", "claim.after=sleep", "claim.after=kill@x", "claim.after=kill@0"]
)
def test_what_cannot_be_armed_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"claim\.after"):
        failpoints.arm_from(text)


async def test_every_pass_is_told_with_its_number_while_somebody_observes() -> None:
    passed: list[tuple[str, int, str]] = []
    failpoints.observe(lambda *each: passed.append(each))
    assert failpoints.armed
    failpoints.arm("effect.after", "lose", after=2)
    await failpoints.hit("effect.after", "send_mail")
    failpoints.hit_sync("claim.after")
    with pytest.raises(TimeoutError, match="the answer was lost"):
        await failpoints.hit("effect.after", "charge")
    assert passed == [("effect.after", 1, "send_mail"), ("claim.after", 1, ""), ("effect.after", 2, "charge")]
    failpoints.observe(None)
    failpoints.disarm()
    assert not failpoints.armed
    await failpoints.hit("effect.after")
    assert len(passed) == 3


def test_stop_freezes_the_process_at_the_point() -> None:
    code = "from outlive.infra import failpoints; failpoints.hit_sync('claim.after'); print('went on')"
    environment = {**os.environ, failpoints.VARIABLE: "claim.after=stop"}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE) as process:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        process.send_signal(signal.SIGCONT)
        output, _ = process.communicate(timeout=30)
    assert output == b"went on\n"
