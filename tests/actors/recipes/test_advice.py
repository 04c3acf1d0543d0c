"""Every recipe says what its user must know."""

import importlib
import pkgutil

import pytest

from outlive.actors import recipes
from tests.guarantees.documents import linked, tables

NAMES = sorted(module.name for module in pkgutil.iter_modules(recipes.__path__) if module.name != "asking")


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_says_how_to_ask_when_to_believe_how_long_keys_live_and_how_to_undo(name: str) -> None:
    recipe = importlib.import_module(f"{recipes.__name__}.{name}")
    assert recipe.SETTLE > 0
    assert recipe.KEY_TTL is None or recipe.KEY_TTL >= 0
    text = recipe.__doc__ or ""
    for promise in ("How to ask:", 'When a "no" may be trusted:', "How long keys live:", "How to undo:"):
        assert promise in text


def test_the_recipes_are_those_that_are_listed_with_their_tests() -> None:
    (listed,) = [table for table in tables("actors/README.md") if "recipe" in table.head]
    assert sorted(name for cell in listed.column("recipe") for name, _ in linked("actors/README.md", cell)) == NAMES
    for name, cell in zip(listed.column("recipe"), listed.column("shown by"), strict=True):
        ((recipe, _),) = linked("actors/README.md", name)
        ((_, test),) = linked("actors/README.md", cell)
        assert f"{recipe}." in test.read_text("utf-8"), f"{test} does not call {recipe}"
