"""Puts one bug into a worker process: Python imports this at its start where PYTHONPATH names this folder.

``SEEDED_BUG`` names the bug (see `bugs.py`); only workers get it, never the process that examines them.
"""

import importlib
import os
import sys
from typing import Final

_WORKERS: Final = {"worker", "tests.chaos.worker_main", "outlive.actors.chaoskit.fork_main"}

if (bug := os.environ.get("SEEDED_BUG")) and _WORKERS.intersection(sys.orig_argv):
    getattr(importlib.import_module("bugs"), bug)(setattr)
