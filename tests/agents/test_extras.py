"""What needs other packages is optional: the core imports none of them, and what is missing is told in one sentence."""

import subprocess
import sys

import pytest

HEAVY = "pydantic_ai", "mcp", "openai", "anthropic", "genai_prices"


def _python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_core_imports_none_of_them() -> None:
    core = "outlive.actors, outlive.actors.worker, outlive.actors.console.cli, outlive.infra.client"
    assert _python(f"import sys, {core}; print([each for each in {HEAVY} if each in sys.modules])") == "[]"


@pytest.mark.parametrize(
    ("module", "package", "told"),
    [
        ("mcp", "mcp", "MCPServer needs the package mcp. Run: pip install 'outlive[mcp]'"),
        ("agents.existing", "pydantic_ai", "app.agent needs pydantic-ai. Run: pip install 'outlive[agents]'"),
    ],
)
def test_what_is_missing_is_told_with_the_command(module: str, package: str, told: str) -> None:
    code = f"""
import sys
sys.modules[{package!r}] = None
try:
    import outlive.actors.{module}
except Exception as error:
    print(error)
"""
    assert _python(code) == told
