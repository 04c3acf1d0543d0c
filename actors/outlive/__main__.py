"""The program ``outlive``, also as ``python -m outlive``."""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    # Until a command handles Ctrl-C, it ends the process: as an exception it could be raised in a callback of the
    # import system or the garbage collector, where Python reports it and goes on as if nobody had asked.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    from outlive.actors.console.cli import cli  # noqa: PLC0415  # imports everything, see above

    cli(prog_name="outlive")


if __name__ == "__main__":
    main()
