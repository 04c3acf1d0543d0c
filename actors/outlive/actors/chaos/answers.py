"""Answers of tools that are lost: the effect has happened, the caller sees a timeout."""

from typing import Final

import anyio

from outlive.infra import failpoints

POINT: Final = "effect.after"
_AGAIN: Final = 0.2  # seconds after which it is armed again, if another one that ended has disarmed it


async def lose_answers() -> None:
    """Lose the answer of one effect after the other, until cancelled."""
    try:
        while True:
            failpoints.arm(POINT, "lose")
            with anyio.move_on_after(_AGAIN):
                await failpoints.reached(POINT)
    finally:
        failpoints.disarm(POINT)
