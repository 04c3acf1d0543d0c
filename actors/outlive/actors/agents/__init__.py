"""Agents: a goal and tools; a model decides each next step, and the system remembers.

Needs pydantic-ai, which the extra ``agents`` brings. Nothing here is imported by an app without agents.
"""

import importlib.util

from outlive.actors.signature import RegistrationError

if importlib.util.find_spec("pydantic_ai") is None:
    raise RegistrationError("app.agent needs pydantic-ai. Run: pip install 'outlive[agents]'")

from outlive.actors.agents.agent import Agent, put
from outlive.actors.agents.decisions import Decided, Usage

__all__ = ["Agent", "Decided", "Usage", "put"]
