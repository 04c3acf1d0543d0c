"""Agents: a goal and tools; a model decides each next step, and the system remembers.

Needs pydantic-ai, which the extra ``agents`` brings. Nothing here is imported by an app without agents.
"""

from typing import Final

from outlive.actors.signature import RegistrationError

try:
    import pydantic_ai as _pydantic_ai
except ImportError as _missing:
    raise RegistrationError("app.agent needs pydantic-ai. Run: pip install 'outlive[agents]'") from _missing

from outlive.actors.agents.agent import Agent, declare, output_of
from outlive.actors.agents.decisions import Decided, Usage

__all__ = ["Agent", "Decided", "Usage", "declare", "output_of"]

VERSION: Final = _pydantic_ai.__version__
"""The version of pydantic-ai that is used."""
