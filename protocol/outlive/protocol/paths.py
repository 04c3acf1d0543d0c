"""What follows when the answer of an effect is lost: one pure function of the tool's declaration.

Recovery acts by `after_lost_answer`, and ``outlive check`` prints `describe_path`: they cannot differ.
"""

from typing import Any, Final, Literal, TypeAlias

from outlive.protocol import keys
from outlive.protocol.tools import AnyTool

Path: TypeAlias = Literal["send_again", "ask", "person"]
"""The same call again (with the same key); the tool's reconciler; a person, by ``outlive resolve``."""

_SPANS: Final = (("d", 86_400), ("h", 3600), ("min", 60))


def after_lost_answer(tool: AnyTool, *, sent_for: float = 0.0) -> Path:
    """Return what is done about an attempt that began and whose outcome nobody recorded.

    Args:
        tool: whose attempt it was.
        sent_for: seconds since the operation was first sent: a key that the remote has forgotten protects no longer.
    """
    if tool.read_only or (tool.idempotent and (tool.key_ttl is None or sent_for < tool.key_ttl)):
        return "send_again"
    return "person" if tool.reconciler is None else "ask"


def describe_path(tool: AnyTool) -> str:
    """Return a line on how a tool is called and what follows a lost answer, with WARNING where only a person can tell.

    What undoes it in a ``cancel --compensate`` is an effect too, and comes behind.
    """
    undo = tool.compensator
    return _whole(tool) if undo is None else f"{_whole(tool)}; undone by {_whole(undo)}"


def _whole(tool: AnyTool) -> str:
    limit = f"; at most {tool.rate_limit}" if tool.rate_limit is not None else ""
    unique = f"; the same action once in its {tool.unique_within}" if tool.unique is not None else ""
    return _path(tool) + unique + limit


def _path(tool: AnyTool) -> str:
    if keys.is_request(tool.name):
        return f"{tool.name}: asked again when its answer is lost; the lost one may have been paid"
    if tool.read_only:
        return f"{tool.name}: repeated freely"
    consent = _consent(tool.requires_approval)
    if tool.idempotent:
        return f"{tool.name}: {consent + ', then ' if consent else ''}sent again with the same key{_forgotten(tool)}"
    if tool.reconciler is None:
        once = f"{consent}, then once; " if consent else ""
        return f"{tool.name}: WARNING {once}lost answer -> a person decides"
    once = f"{consent}, then once" if consent else "once"
    return f"{tool.name}: {once}; lost answer -> {_asked(tool)}"


def _consent(wanted: Any) -> str:
    if not callable(wanted):
        return "your yes" if wanted else ""
    name = getattr(wanted, "__name__", "")
    return f"your yes where {name} says so" if name.isidentifier() else "your yes for some arguments"


def _forgotten(tool: AnyTool) -> str:
    if tool.key_ttl is None:
        return ""
    then = "a person decides" if tool.reconciler is None else _asked(tool)
    return f" for {_span(tool.key_ttl)}, then {then}"


def _asked(tool: AnyTool) -> str:
    name = tool.reconciler.name if tool.reconciler is not None else ""
    settled = "" if tool.settle is None else f', its "no" counts {_span(tool.timeout + tool.settle)} after the call'
    return f"{name} is asked{settled}"


def _span(seconds: float) -> str:
    for unit, size in _SPANS:
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
