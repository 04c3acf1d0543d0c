"""Outlive: what a task's author needs, in one line: ``from outlive.actors import App, Task, Operation, Outcome, Client``.

What needs servers or the actor's machinery is imported when it is first asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from outlive.actors.app import App
from outlive.protocol.bucket import Limit
from outlive.protocol.budget import Budget
from outlive.protocol.errors import (
    InvalidArguments,
    NotSent,
    OutcomeUnknown,
    PermissionDenied,
    RateLimited,
    StepFailed,
    TaskCancelled,
    TaskFailed,
    Unavailable,
)
from outlive.protocol.operations import Outcome
from outlive.protocol.secrets import Secret
from outlive.protocol.tools import Operation, RetryPolicy

if TYPE_CHECKING:
    from outlive.actors.task import Task
    from outlive.actors.worker import Worker
    from outlive.infra.client import Client

__all__ = [
    "App",
    "Budget",
    "Client",
    "InvalidArguments",
    "Limit",
    "NotSent",
    "Operation",
    "Outcome",
    "OutcomeUnknown",
    "PermissionDenied",
    "RateLimited",
    "RetryPolicy",
    "Secret",
    "StepFailed",
    "Task",
    "TaskCancelled",
    "TaskFailed",
    "Unavailable",
    "Worker",
]

_LATER: Final = {
    "Client": "outlive.infra.client",
    "Task": "outlive.actors.task",
    "Worker": "outlive.actors.worker",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
