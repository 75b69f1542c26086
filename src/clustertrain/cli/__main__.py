"""The command `clustertrain`, and `python -m clustertrain.cli`."""

import sys


def main() -> None:
    """Run the command; Ctrl-C during its imports, a third of a second, shows no traceback of them."""
    try:
        from clustertrain.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)  # errors.EXIT_INTERRUPTED
    run()


if __name__ == "__main__":
    main()
