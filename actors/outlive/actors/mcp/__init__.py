"""Servers of the Model Context Protocol as sets of tools: started or reached by each worker, called as durable steps.

Needs the official SDK, which the extra ``mcp`` brings.
"""

import importlib.util

from outlive.actors.signature import RegistrationError

if importlib.util.find_spec("mcp") is None:
    raise RegistrationError("MCPServer needs the package mcp. Run: pip install 'outlive[mcp]'")

from outlive.actors.mcp.server import MCPServer
from outlive.actors.mcp.toolset import CallFailed, MCPTools

__all__ = ["CallFailed", "MCPServer", "MCPTools"]
