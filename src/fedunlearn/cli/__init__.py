"""The command line: ``fedunlearn``. Commands import torch themselves, because that takes seconds."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer
from typer.exceptions import TyperException

from . import comparisons, listings, runs
from .console import fail, out

app = typer.Typer(
    name="fedunlearn",
    help="Federated unlearning: take a client's influence out of a trained model.",
    epilog="Start with: fedunlearn demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
app.command(epilog="Example: fedunlearn demo --seed 2")(runs.demo)
app.command(epilog="Example: fedunlearn run experiments/fedosd.toml data.partition=iid seed=2")(runs.run)
app.command(epilog="Example: fedunlearn compare experiments/methods.toml data.partition=pat-20 --only puf")(
    comparisons.compare
)
app.command(epilog="Example: fedunlearn reproduce table1 --scale laptop --seeds 3")(comparisons.reproduce)
app.command(epilog="Example: fedunlearn resume runs/demo")(runs.resume)
app.command(epilog="Example: fedunlearn report runs/demo --out demo.html")(runs.report)
app.command()(listings.methods)
app.command()(listings.datasets)
app.command()(listings.models)

data = typer.Typer(help="Data sets on this machine.", no_args_is_help=True)
data.command("get", epilog="Example: fedunlearn data get mnist")(listings.get)
data.command("where", epilog="Example: fedunlearn data where fmnist")(listings.where)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    """Federated unlearning: take a client's influence out of a trained model."""
    if version:
        from importlib.metadata import version as installed

        out.print(f"fedunlearn {installed('fedunlearn')}")
        raise typer.Exit


def main() -> None:
    """The console entry point: every expected problem ends in one sentence on standard error."""
    # A warning is news for the user, not a line of our source, and no reason to fail.
    warnings.showwarning = lambda message, *_: out.print(f"note: {message}", soft_wrap=True)
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        # No message: typer has shown the help already, because a command is missing.
        fail(error.format_message(), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}", 2)
    except Exception as error:
        from ..core import FedUnlearnError

        if not isinstance(error, FedUnlearnError):
            raise
        fail(str(error), 2)
    sys.exit(code or 0)
