"""Types are part of the product: a file of users' code is checked by mypy and pyright, both strict."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHECKERS = {
    "mypy": ["-m", "mypy", "--warn-unused-ignores", "--disable-error-code=ignore-without-code"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.parametrize(
    "checker", [pytest.param("mypy", marks=pytest.mark.slow), "pyright"]
)  # mypy begins with nothing
def test_users_code_has_the_types_it_should(checker: str) -> None:
    command = [sys.executable, *CHECKERS[checker], "tests/typing/api.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
