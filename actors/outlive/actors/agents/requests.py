"""A request to a model as a durable step: paid once when its answer is stored, sent again when it was lost.

Its operation stands in the ledger like any effect: an intent before, every attempt recorded. A lost answer is sent again
(providers keep no idempotency keys, so the lost one may have been paid), and what that one cost is not known.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

from outlive.protocol.arguments import Arguments
from outlive.protocol.tools import RetryPolicy, Tool

TIMEOUT: Final = 300.0
"""Seconds for one request to a model unless it says otherwise."""

_THINKING: Final = "thinking"
_NONE: Final = Arguments("request", inspect.Signature())


def request_tool(
    name: str,
    request: Callable[[], Awaitable[Any]],
    *,
    result_type: Any = Any,
    title: str = "",
    step_id: str | None = None,
    timeout: float = TIMEOUT,
    retries: RetryPolicy | None = None,
) -> Tool[[], Any]:
    """Return a tool whose call is one request to a model.

    It has no arguments: the step is recognised by its place and its name, whatever the prompt was, so that a changed
    prompt is a matter of the version policy and not another call.

    Args:
        name: of the step, the same on every run.
        request: sends it; called once per attempt. What it returns is stored as `result_type`.
        result_type: a type that can be stored; by default what JSON has.
        title: what people read; the name if left out.
        step_id: a chosen place.
        timeout: seconds for one attempt.
        retries: how errors that may pass are met.
    """
    return Tool(
        name=name,
        fn=request,
        arguments=_NONE,
        result_type=result_type,
        read_only=False,
        idempotent=True,
        takes_operation=False,
        is_async=True,
        title=title or name,
        timeout=timeout,
        retries=retries or RetryPolicy(),
        step_id=step_id,
    )


def without_thinking(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's response, as pydantic-ai writes it in JSON, without its thinking parts: those are stored nowhere."""
    parts: Any = response.get("parts")
    if not isinstance(parts, list):
        return dict(response)
    kept = [part for part in parts if not _is_thinking(part)]
    return {**response, "parts": kept}


def _is_thinking(part: Any) -> bool:
    return isinstance(part, dict) and cast("dict[str, Any]", part).get("part_kind") == _THINKING
