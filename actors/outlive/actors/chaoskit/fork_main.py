"""``python -m outlive.actors.chaoskit.fork_main MODULE:NAME SOCKET``: worker processes that start in a moment.

It imports the app and all that a worker needs once, writes ``ready``, and forks a process for each byte that it reads.
Each connects to the socket and waits for its orders (`outlive.actors.chaoskit.testimony`). All end with the explorer:
with the pipe, or with the socket.
"""

import asyncio
import gc
import os
import signal
import socket
import sys
import threading
import traceback
from functools import partial

import anyio

from outlive.actors import logging
from outlive.actors.app import App
from outlive.actors.chaoskit.testimony import Arm, Armed, Failed, Ready, Said, Serve, line, read_order
from outlive.actors.chaoskit.witness import Witness
from outlive.actors.console import apps, interrupt
from outlive.actors.worker import Worker
from outlive.infra.settings import Settings


def main() -> None:
    """Fork on demand until the pipe ends."""
    logging.configure(level="warning", json=False)
    app, path = apps.load(sys.argv[1]), sys.argv[2]
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them: their sockets tell
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the explorer's, which ends us
    interrupt.fast_loop()
    gc.collect()
    gc.freeze()
    os.write(1, b"ready\n")
    while os.read(0, 1):
        if os.fork() == 0:
            os._exit(Process(app, path).run())


class Process:
    """One forked process: idle, then a worker."""

    def __init__(self, app: App, path: str) -> None:
        """Say hello."""
        self._app = app
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # what users print goes to the log
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._socket.sendall(f"{os.getpid()}\n".encode())
        self._orders = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._witness = Witness(self._say)

    def run(self) -> int:
        """Wait to be told to serve, and serve until it is killed, or fenced."""
        order = read_order(self._orders.readline() or os._exit(0))
        assert isinstance(order, Serve), order
        os.environ.update(order.environment)
        self._witness.install()
        try:
            with asyncio.Runner(loop_factory=interrupt.fast_loop()) as runner:
                runner.run(self._serve())
        except BaseException:  # noqa: BLE001  # whatever it is: it is told, and the process ends
            self._say(Failed(traceback.format_exc(limit=-6)[-4000:]))
            return 1
        return 0

    async def _serve(self) -> None:
        async with Worker(self._app, Settings.load()) as worker:
            loop = asyncio.get_running_loop()
            threading.Thread(target=self._listen, args=(loop,), daemon=True).start()
            self._say(Ready())
            await worker.run()
            await anyio.sleep_forever()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        for told in self._orders:
            order = read_order(told)
            assert isinstance(order, Arm), order
            loop.call_soon_threadsafe(partial(self._arm, order))
        os._exit(0)  # the explorer has ended

    def _arm(self, order: Arm) -> None:
        self._witness.arm(order.failpoints)
        self._say(Armed())

    def _say(self, said: Said) -> None:
        with self._lock:
            self._socket.sendall(line(said))


if __name__ == "__main__":
    main()
