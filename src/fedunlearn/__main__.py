"""The program: ``fedunlearn``, or ``python -m fedunlearn``."""

import sys


def main() -> None:
    """Starts the command line; without its packages, says in one sentence which extra to install."""
    try:
        from .cli import main as command_line

        command_line()
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich"):
            raise
        print(
            f"fedunlearn: the command line needs {error.name}: pip install 'fedunlearn[cli]'", file=sys.stderr
        )
        sys.exit(2)


if __name__ == "__main__":
    main()
