"""The command line: ``fedunlearn``."""

from __future__ import annotations

from .ending import Interrupted, Signals, fail


def main() -> None:
    """The console entry point: every expected problem ends in one sentence on standard error."""
    signals = Signals()
    try:
        # Typer and rich take a while to import, and Ctrl-C may come at any time.
        from .commands import execute

        code = execute()
        if signals.request is not None:  # typer turns it into an exit code
            raise signals.request
        raise SystemExit(code)
    except Interrupted as stop:
        fail(str(stop), stop.code)
    finally:
        signals.ignore()
