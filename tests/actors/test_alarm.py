"""A wait ends by the clock as it is known at its end, not as it was known at its beginning."""

import asyncio
from datetime import timedelta

from outlive.actors.alarm import Alarm
from outlive.infra.clock import Clock, boottime


async def test_a_clock_that_is_corrected_meanwhile_ends_no_wait_early() -> None:
    clock, event = Clock(), asyncio.get_running_loop().create_future()
    moment = clock.now() + timedelta(milliseconds=20)
    Alarm(clock, moment, event)
    read = boottime()
    clock.observe(clock.now() - timedelta(milliseconds=100), read, read)  # it was ahead of the database
    assert await event is False
    assert clock.now() >= moment


async def test_a_wait_that_has_ended_is_not_rung() -> None:
    clock, event = Clock(), asyncio.get_running_loop().create_future()
    Alarm(clock, clock.now(), event)
    event.set_result(True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await event is True
