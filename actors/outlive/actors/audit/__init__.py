"""The licence audit: the built-in task ``licence-audit``, its small ticket tracker and the demo that kills it.

``outlive submit licence-audit path=... --watch`` audits any site-packages folder;
``outlive worker outlive.actors.audit:app`` serves it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outlive.actors.audit.kind import app

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Load the app when it is asked for: the tracker needs none of it."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outlive.actors.audit.kind import app  # noqa: PLC0415  # see above

    return app
