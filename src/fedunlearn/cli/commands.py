"""All commands, and how their problems are told. Commands import torch themselves: that takes seconds."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated

import typer

from . import audits, benchmarks, comparisons, erasures, examples, listings, runs, verification
from .console import out, print_in_any_encoding, print_text
from .ending import fail

try:
    from typer.exceptions import TyperException as UsageProblem  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # an older typer, as Flower needs it, raises click's own
    from click import ClickException as UsageProblem

SETTABLE = ("run", "compare", "per-example")
"""Commands that take settings as KEY=VALUE."""

app = typer.Typer(
    name="fedunlearn",
    help="Federated unlearning: remove a client's influence from a trained model.",
    epilog="Start with: fedunlearn demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog="Example: fedunlearn demo --seed 2")(runs.demo)
app.command(epilog="Example: fedunlearn run experiments/fedosd.toml data.partition=iid seed=2")(runs.run)
app.command(epilog="Example: fedunlearn compare experiments/methods.toml data.partition=pat-20 --only puf")(
    comparisons.compare
)
app.command(epilog="Example: fedunlearn reproduce table1 --scale laptop --seeds 3")(comparisons.reproduce)
app.command(epilog="Example: fedunlearn benchmark mine.py --only clean-pat-50")(benchmarks.benchmark)
app.command(epilog="Example: fedunlearn leaderboard submissions/*.json --check 1")(benchmarks.leaderboard)
app.command(epilog="Example: fedunlearn resume runs/demo")(runs.resume)
app.command(epilog="Example: fedunlearn report runs/demo --out demo.html")(runs.report)
app.command(epilog="Example: fedunlearn audit runs/finetune runs/fedosd")(audits.audit)
app.command(
    epilog="Example: fedunlearn per-example experiments/per-example.toml --method fedosd --method reset"
)(examples.per_example)
app.command(
    epilog="Example: fedunlearn verify certificate.json --key controller.pub --model model.safetensors"
)(verification.verify)
app.command(epilog="Example: fedunlearn desk practice")(erasures.desk)
app.command(epilog="Example: fedunlearn sign client-1 --federation audit --model HASH --key client-1.key")(
    erasures.sign
)
app.command(epilog="Example: fedunlearn plan practice request.json")(erasures.plan)
app.command(epilog="Example: fedunlearn erase practice request.json")(erasures.erase)
app.command(epilog="Example: fedunlearn requests practice")(erasures.requests)
app.command(epilog="Example: fedunlearn purge practice 0123456789abcdef")(erasures.purge)
app.command()(listings.methods)
app.command()(listings.datasets)
app.command()(listings.models)

data = typer.Typer(help="Find and download data sets.", no_args_is_help=True)
data.command("get", epilog="Example: fedunlearn data get mnist")(listings.get)
data.command("where", epilog="Example: fedunlearn data where fmnist")(listings.where)
app.add_typer(data, name="data")


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    """Federated unlearning: remove a client's influence from a trained model."""
    if version:
        from importlib.metadata import version as installed

        out.print(f"fedunlearn {installed('fedunlearn')}")
        raise typer.Exit


def execute() -> int:
    """Runs the command of ``sys.argv`` and returns its exit code; an expected problem is one sentence."""
    print_in_any_encoding()
    # A warning is news for the user, not a line of our source, and no reason to fail.
    warnings.showwarning = lambda message, *_: print_text(f"note: {message}")
    try:
        return int(app(standalone_mode=False) or 0)
    except UsageProblem as error:
        # No message: typer has shown the help already, because a command is missing.
        fail(_explained(error), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}", 2)
    except RecursionError:
        fail("a file is nested too deeply to be read: flatten it", 2)
    except Exception as error:
        from ..core import FedUnlearnError

        if _out_of_memory(error):
            fail("out of memory: use fewer --workers, a smaller training.batch_size or a smaller model", 2)
        if not isinstance(error, FedUnlearnError):
            raise
        fail(str(error), 2)


def _explained(error: UsageProblem) -> str:
    """What typer says, but for ``--seed 3``: that is a setting, ``seed=3``, written like an option."""
    option, context = getattr(error, "option_name", ""), getattr(error, "ctx", None)
    if option and context is not None and context.command.name in SETTABLE:
        from ..experiment import setting_names

        if (name := option.lstrip("-")) in setting_names():
            words = [*sys.argv, "VALUE"]
            place = next(n for n, word in enumerate(words) if word.partition("=")[0] == option)
            value = words[place].partition("=")[2] or words[place + 1]
            return f"{name} is a setting, not an option: write {name}={value}"
    said, *hints = str(error.format_message()).split(" Did you mean ")
    return f"{said} Did you mean {hints[0]}" if hints else said  # some versions of typer say it twice


def _out_of_memory(error: Exception) -> bool:
    """Also where torch says so, or a worker process in whose words it is."""
    said = str(error)
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and any(words in said for words in ("MemoryError", "can't allocate memory", "out of memory"))
    )
