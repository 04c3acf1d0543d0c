"""The app that a command names: ``module:name`` (``:app`` if nothing else is said), from the current folder too."""

import importlib
import importlib.util
import os
import sys
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Final

import click

from outlive.actors.app import App
from outlive.actors.signature import RegistrationError

BUILT_IN: Final = "outlive.actors.audit:app"
"""Served by ``up`` when no app is named."""


def load(spec: str) -> App:
    """Import an app.

    Raises:
        click.UsageError: there is no such module, or nothing of that name in it.
        RegistrationError: a declaration was refused; its message has file and line.
        click.ClickException: the module cannot be imported; the traceback of its own code is part of the message.
    """
    find(spec)
    module_name, name = _parts(spec)
    module = _import(module_name)
    app = getattr(module, name, None)
    if isinstance(app, App):
        return app
    apps = [key for key, value in vars(module).items() if isinstance(value, App)]
    hint = f"It has: {', '.join(f'{module_name}:{key}' for key in apps)}" if apps else 'It makes none: app = App("...")'
    raise click.UsageError(f"{module_name} has no app named '{name}'. {hint}")


def find(spec: str) -> Path:
    """Return the source file of an app's outermost module or package, without running any of it.

    Raises:
        click.UsageError: there is none.
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    if spec.endswith(".py") or os.sep in spec:
        module = spec.removesuffix(".py").removeprefix(f".{os.sep}").replace(os.sep, ".")
        raise click.UsageError(f"an app is module:name, not a file. Write: {module}:app")
    module_name, _ = _parts(spec)
    outermost = module_name.partition(".")[0]
    found = importlib.util.find_spec(outermost)
    if found is None:
        raise click.UsageError(f"there is no module '{outermost}' here ({Path.cwd()}).{_hint(outermost)}")
    if found.origin is None and module_name != outermost:  # a namespace package has no file of its own
        found = importlib.util.find_spec(module_name)
    if found is None or found.origin is None:
        raise click.UsageError(f"there is no module '{module_name}'")
    return Path(found.origin)


def _parts(spec: str) -> tuple[str, str]:
    module, _, name = spec.partition(":")
    return module, name or "app"


def _hint(outermost: str) -> str:
    near = get_close_matches(outermost, [path.stem for path in Path.cwd().glob("*.py")], n=1)
    return f" Did you mean {near[0]}?" if near else " An app is module:name, for instance todo:app for todo.py"


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except RegistrationError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name and name.startswith(error.name):
            raise click.UsageError(f"there is no module '{error.name}'") from None
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
        text = "".join([*traceback.format_list(ours), *traceback.format_exception_only(error)])
        raise click.ClickException(f"{name} cannot be imported:\n{text.rstrip()}") from error
