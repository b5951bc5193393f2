"""All commands, and how their problems are told. Commands import torch themselves: that takes seconds."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Annotated

import typer

from . import audits, benchmarks, comparisons, erasures, examples, listings, runs, verification
from .console import out, print_in_any_encoding, print_text
from .ending import fail
from .help import Group, add

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

COMMANDS: Mapping[Group, Mapping[Callable[..., None], str | None]] = {
    Group.EXPERIMENTS: {
        runs.demo: "demo --seed 2",
        runs.run: "run experiments/fedosd.toml data.partition=iid seed=2",
        comparisons.compare: "compare experiments/methods.toml data.partition=pat-20 --only puf",
        runs.resume: "resume runs/demo",
        runs.report: "report runs/demo --out demo.html",
    },
    Group.EVIDENCE: {
        audits.audit: "audit runs/finetune runs/fedosd",
        verification.verify: "verify certificate.json --key controller.pub --model model.safetensors",
    },
    Group.DESK: {
        erasures.desk: "desk practice",
        erasures.sign: "sign client-1 --federation audit --model HASH --key client-1.key",
        erasures.plan: "plan practice request.json",
        erasures.erase: "erase practice request.json",
        erasures.requests: "requests practice",
        erasures.purge: "purge practice 0123456789abcdef",
    },
    Group.STUDIES: {
        comparisons.reproduce: "reproduce table1 --scale laptop --seeds 3",
        benchmarks.benchmark: "benchmark mine.py --only clean-pat-50",
        benchmarks.leaderboard: "leaderboard submissions/*.json --check 1",
        examples.per_example: "per-example experiments/per-example.toml --method fedosd --method reset",
    },
    Group.CATALOGUE: {listings.methods: None, listings.datasets: None, listings.models: None},
}
"""All commands with an example, in the groups and the order of the help."""

for _group, _members in COMMANDS.items():
    for _work, _example in _members.items():
        add(app, _work, group=_group, example=_example)

data = typer.Typer(help="Find and download data sets.", no_args_is_help=True)
add(data, listings.get, example="data get mnist")
add(data, listings.where, example="data where fmnist")
app.add_typer(data, name="data", rich_help_panel=Group.CATALOGUE)


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
        fail(_explained(error), error.exit_code, "usage")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        fail(f"{where}{error.strerror or error}", 2, "file")
    except RecursionError:
        fail("a file is nested too deeply to be read: flatten it", 2, "invalid")
    except Exception as error:
        from ..core import FedUnlearnError

        if _out_of_memory(error):
            fail(
                "out of memory: use fewer --workers, a smaller training.batch_size or a smaller model",
                2,
                "environment",
            )
        if not isinstance(error, FedUnlearnError):
            raise
        fail(str(error), 2, error.code)


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
