"""Named queries."""

import pytest

from outlive.infra import sql


def test_statements_have_names() -> None:
    statements = sql.load("migrate")
    assert set(statements) == {"exists", "applied", "prepare", "record"}
    assert statements["exists"] == "select to_regclass('outlive_store.migration')"
    assert sql.load("migrate") is statements
    with pytest.raises(TypeError):
        statements["exists"] = ""  # type: ignore[index]


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        sql.load("no_such_file")
