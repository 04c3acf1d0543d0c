"""How other processes find an app."""

import sys

from outlive.actors.app import App


def spec_of(app: App | str) -> str:
    """Return ``module:name`` of an app that a module holds. Raises `LookupError`."""
    if isinstance(app, str):
        return app
    functions = [*(kind.fn for kind in app.kinds.values()), *(tool.fn for tool in app.tools.values())]
    for module in dict.fromkeys([*(function.__module__ for function in functions), *sys.modules]):
        for name, value in list(vars(sys.modules.get(module, object)).items()):
            if value is app and module != "__main__":
                return f"{module}:{name}"
    raise LookupError(
        f"app {app.name!r} stands in no module, so that another process could not find it. Assign it in a module that can be "
        "imported, or give module:name"
    )
