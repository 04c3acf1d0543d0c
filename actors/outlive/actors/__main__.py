"""The program ``outlive``, also as ``python -m outlive.actors``."""

from outlive.actors.console.cli import cli


def main() -> None:
    """Run the command line of this process and exit with its code."""
    cli(prog_name="outlive")


if __name__ == "__main__":
    main()
