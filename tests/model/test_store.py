"""What the model restates of SQL is what the statements do: the same schedules on both, moves, answers and rows compared."""

import pytest

from outlive.actors.testing import Server
from tests.model.side_by_side import side_by_side

long = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=long) for seed in range(3, 80))])
async def test_model_and_statements_agree(shared: Server, seed: int) -> None:
    async with side_by_side(shared, seed) as both:
        await both.play(250)


async def test_they_agree_on_what_is_accepted_and_on_what_is_refused(shared: Server) -> None:
    async with side_by_side(shared, 0) as both:
        await both.play(800)
    moves = (
        "take",
        "restart",
        "admit",
        "claim",
        "take_over",
        "fence",
        "beat",
        "write",
        "leave drained",
        "leave always",
    )
    assert {(move, accepted) for move in moves for accepted in (True, False)} <= both.agreed


@pytest.mark.parametrize("bug", ["no fence", "no version check", "no fence of the cursor", "no inbox key"])
async def test_a_model_that_leaves_out_a_rule_is_told_from_the_statements(shared: Server, bug: str) -> None:
    with pytest.raises(AssertionError, match=r"Postgres (says|has)"):
        async with side_by_side(shared, 1, frozenset({bug})) as both:
            await both.play(600)
