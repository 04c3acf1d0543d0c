"""Idempotency keys: one name per side effect, the same on every attempt and after every crash."""

import uuid
from typing import Final

KEY_LENGTH: Final = 200

_REQUEST: Final = "__model.request"
_NAMESPACE: Final = uuid.uuid5(uuid.NAMESPACE_DNS, "operation.outlive")


def operation_key(tenant: str, task_id: str, step_id: str, operation_id: str) -> str:
    """Return ``tenant/task:step:operation`` (at most 200 characters; its parts are checked ids)."""
    return f"{tenant}/{task_id}:{step_id}:{operation_id}"


def split_operation(operation_id: str) -> tuple[str, str]:
    """Return step and number of an operation as commands name it, the key's tail: ``4:2``, and ``4`` for ``4:1``."""
    step_id, _, number = operation_id.partition(":")
    return step_id, number or "1"


def short(step_id: str, operation_id: str) -> str:
    """Return the shortest name of an operation in a command: `split_operation` gives its parts back."""
    return step_id if operation_id == "1" else f"{step_id}:{operation_id}"


def request_name(agent: str) -> str:
    """Return the name under which an agent's requests to its model stand in the ledger."""
    return f"{agent}{_REQUEST}"


def is_request(name: str) -> bool:
    """True for a request to a model: it changes nothing but the bill. No tool of a user can have such a name."""
    return name.endswith(_REQUEST)


def operation_uuid(key: str) -> str:
    """Return the key as a UUID version 5, for remotes that want one."""
    return str(uuid.uuid5(_NAMESPACE, key))
