from hypothesis import given
from hypothesis import strategies as st

from outlive.protocol import ids
from outlive.protocol.steps import place

PATHS = st.lists(st.integers(1, 10**6), max_size=20).map(tuple)


def test_a_place_is_the_branch_and_a_count() -> None:
    assert place((), 3) == place("", 3) == "3"
    assert place((4, 2), 1) == place("4-2", 1) == "4-2-1"
    assert place((), 3, run=2) == "r2-3"
    assert place((4, 2), 1, run=12) == "r12-4-2-1"


@given(PATHS, st.integers(1, 10**9), st.integers(1, 10**6))
def test_every_place_is_an_id(path: tuple[int, ...], n: int, run: int) -> None:
    made = place(path, n, run=run)
    assert ids.check("step_id", made) == made
    assert made == place("-".join(map(str, path)), n, run=run)


def test_long_places_differ_in_their_tail() -> None:
    path = tuple(range(1000, 1020))
    first, second = place(path, 1), place(path, 2)
    assert len(first) == len(second) == 64
    assert first[:39] == second[:39] == "-".join(map(str, path))[:39]
    assert first != second
