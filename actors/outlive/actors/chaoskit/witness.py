"""Inside a worker process: tells which points it passes, which tools it really calls, and what touches the world outside of them."""

import contextlib
import os
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

import outlive.actors
import outlive.infra
import outlive.protocol
from outlive.actors import context
from outlive.actors.chaoskit.testimony import Called, Nature, Outside, Passed, Returned, Said
from outlive.actors.runnable import Runnable
from outlive.actors.step import ToolStep
from outlive.infra import failpoints
from outlive.protocol import codec
from outlive.protocol.operations import Outcome
from outlive.protocol.tools import AnyTool, Operation

LONG: Final = 20_000
"""Bytes of arguments, and of a result, above which they are not told as they are."""

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_TOUCHES: Final = {
    "os.remove": "removed", "os.rename": "renamed", "os.mkdir": "made the folder", "os.rmdir": "removed the folder",
    "shutil.rmtree": "removed the folder", "subprocess.Popen": "started", "os.system": "ran", "socket.connect": "connected",
    "sqlite3.connect": "opened the database",
}  # fmt: skip
_OURS: Final = tuple(
    str(Path(str(package.__file__)).parent) for package in (outlive.actors, outlive.infra, outlive.protocol)
)
_OTHERS: Final = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


class Witness:
    """Tells what happens in this process, by `say`, which must come back only when it is told."""

    def __init__(self, say: Callable[[Said], None]) -> None:
        """Say nothing yet; see `install`."""
        self._say = say

    def install(self) -> None:
        """Watch this process from now on, until it ends."""
        self._watch_tools()
        sys.addaudithook(self._audit)

    def arm(self, points: str) -> None:
        """Arm these failpoints alone, and count all passes anew."""
        failpoints.disarm()
        failpoints.observe(lambda point, n, about: self._say(Passed(point, n, about)))
        failpoints.arm_from(points)

    def _watch_tools(self) -> None:
        """Stand between every step and its tool: copies made by ``with_options``, dynamic ones and models included."""
        original = ToolStep[Any].run

        async def run(step: ToolStep[Any], what: Runnable, operation: Operation | None = None) -> Any:
            if what is not step.tool:
                return await original(step, what, operation)
            self._say(called(step))
            value = await original(step, what, operation)
            self._say(Returned(step.key, step.attempt, stored(value, step.tool.result_type)))
            return value

        ToolStep.run = run  # type: ignore[method-assign, assignment]  # this process is for that alone

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Tell of a function of a task that touches the world by itself: what the interpreter can see of that."""
        if event != "open" and event not in _TOUCHES:
            return
        task = context.current.get()
        if task is None:
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & _WRITING):
            return
        if (frame := author(sys._getframe(1))) is None:  # noqa: SLF001  # the way to a caller's line
            return
        what = f"{_TOUCHES.get(event, 'opened for writing')} {shown(event, arguments)}"
        where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
        self._say(Outside(task.kind, task.task_id, where, what))


def called(step: ToolStep[Any]) -> Called:
    """Describe the call that a step is about to make."""
    arguments = step.shown.decode()
    if len(arguments) > LONG:
        arguments = f"{arguments[:200]}... ({codec.digest(step.shown).hex()})"
    return Called(
        step.flow.claim.task_id, step.step_id, step.tool.name, nature(step.tool), step.key, arguments, step.attempt,
        step.tool.reconciler is not None,
    )  # fmt: skip


def nature(tool: AnyTool) -> Nature:
    """Return what a tool is declared as."""
    return "read_only" if tool.read_only else "idempotent" if tool.idempotent else "once"


def stored(value: Any, kind: Any) -> str | None:
    """Return a result as it would be stored, if it can be and is not long."""
    with contextlib.suppress(Exception):  # what cannot be stored is the step's business
        body, _ = codec.pack(value.result if isinstance(value, Outcome) else value, kind)
        return body.decode() if len(body) <= LONG else None
    return None


def author(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of a task's own code; None where it is a library of ours, or an import, that acts."""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith((*_OURS, "<frozen importlib")):
            return None
        if not name.startswith((*_OTHERS, "<")):
            return frame
        frame = frame.f_back
    return None


def shown(event: str, arguments: tuple[Any, ...]) -> str:
    """Return what was touched, in a word."""
    what = arguments[1] if event == "socket.connect" else arguments[0]
    return str(what)[:200]
