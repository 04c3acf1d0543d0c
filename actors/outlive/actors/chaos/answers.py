"""Answers of tools that are lost: the effect has happened, the caller sees a timeout."""

from outlive.infra import failpoints

POINT = "effect.after"


async def lose_answers() -> None:
    """Lose the answer of one effect after the other, until cancelled."""
    try:
        while True:
            failpoints.arm(POINT, "lose")
            await failpoints.reached(POINT)
    finally:
        failpoints.disarm(POINT)
