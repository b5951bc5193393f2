"""The command line: ``fedunlearn``."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from typer.exceptions import TyperException

if TYPE_CHECKING:
    from .comparison import Comparison
    from .core import Event, Listener, Outcome
    from .experiment import Experiment
    from .report import Collection, Run
    from .reproduction.results import Results

# Torch takes seconds to import, so commands import what they need themselves.

app = typer.Typer(
    name="fedunlearn",
    help="Federated unlearning: take a client's influence out of a trained model.",
    epilog="Start with: fedunlearn demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
data = typer.Typer(help="Data sets on this machine.", no_args_is_help=True)
app.add_typer(data, name="data")
out = Console(highlight=False, markup=False)

Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Processes that train clients; one per core unless given.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the run.", show_default=False)]


def _trackers(names: list[str] | None) -> list[str]:
    """The trackers that are asked for, each refused before anything runs if it is not there."""
    wanted = list(dict.fromkeys(names or []))
    if wanted:
        from .trackers import require

        for name in wanted:
            require(name)
    return wanted


Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also write metrics for tensorboard or mlflow; repeatable.",
        callback=_trackers,
        show_default=False,
    ),
]


def main() -> None:
    """The console entry point: every expected problem ends in one sentence on standard error."""
    # A warning is news for the user, not a line of our source, and no reason to fail.
    warnings.showwarning = lambda message, *_: out.print(f"note: {message}", soft_wrap=True)
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        # No message: typer has shown the help already, because a command is missing.
        _fail(error.format_message(), error.exit_code)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(f"{where}{error.strerror or error}", 2)
    except Exception as error:
        from .core import FedUnlearnError

        if not isinstance(error, FedUnlearnError):
            raise
        _fail(str(error), 2)
    sys.exit(code or 0)


@app.callback(invoke_without_command=True)
def about(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    """Federated unlearning: take a client's influence out of a trained model."""
    if version:
        from importlib.metadata import version as installed

        out.print(f"fedunlearn {installed('fedunlearn')}")
        raise typer.Exit


@app.command(epilog="Example: fedunlearn demo --seed 2")
def demo(
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 1,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """FedOSD end to end on embedded Fashion-MNIST: train, unlearn, recover; in about a minute."""
    from .experiment import perform, read

    experiment = read(Path(__file__).with_name("demo.toml"), [f"seed={seed}"])
    folder = folder or _unused(Path("runs/demo"), experiment)
    out.print(
        f"{experiment.data.clients} clients train on Fashion-MNIST; one plants a backdoor in the model.\n"
        "FedOSD takes that client's influence out, then the others repair what it cost them.\n"
    )
    _carry_out(folder, track, lambda listener: perform(experiment, folder, [listener], workers=workers))


@app.command(epilog="Example: fedunlearn run experiments/fedosd.toml data.partition=iid seed=2")
def run(
    experiment: Annotated[Path, typer.Argument(help="A TOML file.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that replace the file's.")
    ] = None,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Run an experiment: pre-train (or take ω⁰ from the cache), unlearn, post-train.

    The folder is runs/NAME, followed by the overrides, unless --out names another.
    """
    from .experiment import perform, read

    wanted = read(experiment, overrides or [])
    folder = folder or Path("runs") / "-".join([wanted.name, *map(_in_a_name, overrides or [])])
    _carry_out(folder, track, lambda listener: perform(wanted, folder, [listener], workers=workers))


@app.command(epilog="Example: fedunlearn compare experiments/methods.toml data.partition=pat-20 --only puf")
def compare(
    experiment: Annotated[Path, typer.Argument(help="A TOML file with methods.", show_default=False)],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings that replace the file's.")
    ] = None,
    scale: Annotated[
        str | None, typer.Option("--scale", help="One of the scales of the file; its first unless given.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option("--only", help="A row or column; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")] = None,
    at: Annotated[
        list[int] | None,
        typer.Option("--at", min=0, help="Show ASR / R-Acc after so many rounds; repeatable."),
    ] = None,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Run several methods on the same requests and show them in tables; goes on where it was stopped.

    The folder is runs/NAME, followed by scale and overrides, unless --out names another.
    """
    from .comparison import read_comparison
    from .record import write
    from .report import collect, markdown

    wanted = read_comparison(experiment, overrides or [], scale=scale, only=only or [], seeds=seeds)
    name = [wanted.name, *([scale] if scale else []), *map(_in_a_name, overrides or [])]
    folder = folder or Path("runs") / "-".join(name)

    _carry_out_all(wanted, folder, workers, track)
    for column in wanted.columns:
        out.print(f"\n{column or wanted.name}", style="bold")
        found = collect([folder / column])
        for lines in _tables(found.select(wanted.places(folder, column)), at or []):
            _print_table(lines)
        _print_failures(wanted, folder, column)
        # Of all rows that there are, whichever were wanted now.
        lasting = map(markdown, _tables(found.select(wanted.places(folder, column, listed=True)), at or []))
        write(folder / column / "comparison.md", ("\n\n".join(lasting) + "\n").encode())
        _html(found, folder / column)
    out.print(f"\nruns and tables  {folder}", soft_wrap=True)


@app.command(epilog="Example: fedunlearn reproduce table1 --scale laptop --seeds 3")
def reproduce(
    name: Annotated[
        str | None, typer.Argument(help="A table or figure, also as table6; lists them if not given.")
    ] = None,
    scale: Annotated[str, typer.Option("--scale", help="paper, or laptop: smaller.")] = "laptop",
    only: Annotated[list[str] | None, typer.Option("--only", help="A row or column; repeatable.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="How many seeds.")] = None,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Run a table or figure of the paper, and show ours, the paper's and the difference.

    Goes on where it was stopped. The folder, shared by all tables of a scale, is runs/reproduce-SCALE.
    """
    from .reproduction import check_scale, collected, draw, named, plan, read_columns, titles

    if name is None:
        _list(["name", "what it is"], ([name, title] for name, title in titles().items()))
        return
    name = named(name)
    wanted = plan(name, scale=scale, only=only or [], seeds=seeds)
    folder = folder or Path("runs") / f"reproduce-{scale}"
    check_scale(folder, scale)
    pictures_only = wanted.figures == ("triggers",)  # of data: there is nothing to run
    if not pictures_only:
        _carry_out_all(wanted, folder, workers, track)
    columns = read_columns(folder)
    found = collected(folder, columns, scale)
    if not pictures_only:
        _side_by_side(wanted, folder, name, found, columns)
    paths, problems = draw(folder, name, wanted, found)
    for path in paths:
        out.print(str(path), soft_wrap=True)
    for problem in problems:
        out.print(f"no figure of {problem}", soft_wrap=True)


def _side_by_side(
    wanted: Comparison, folder: Path, name: str, found: Results, columns: Mapping[str, Collection]
) -> None:
    """Ours, the paper's and the difference, on the screen and in files."""
    from .reproduction import beside, write_tables
    from .reproduction.side_by_side import counted, grid, meaning, setup

    cells = beside(wanted, found)
    for column in wanted.columns:
        out.print(f"\n{column}", style="bold", end="  ")
        out.print(setup(found.settings[column]), soft_wrap=True)
        _print_table(grid(cells, column))
        _print_failures(wanted, folder, column)
        _html(columns[column], folder / column)
    out.print(f"\n{meaning(cells)}\n{counted(cells)}\n", soft_wrap=True)
    for path in write_tables(folder, name, cells, found):
        out.print(str(path), soft_wrap=True)


def _carry_out_all(
    wanted: Comparison, folder: Path, workers: int | None, track: Sequence[str] | None
) -> None:
    """The runs of a comparison that are missing, in one display."""
    from .comparison import carry_out, missing
    from .report import Display

    try:
        with Display(out, runs=missing(wanted, folder)) as display:

            def show(what: str) -> AbstractContextManager[Listener]:
                return _listening(display.run(what), folder / what, track, runs=folder)

            carry_out(wanted, folder, show, workers=workers)
    except KeyboardInterrupt:
        _fail(f"interrupted; the same command goes on in {folder}", 130)


def _print_table(lines: list[list[str]]) -> None:
    """Nothing is cut off where it does not fit: then it is Markdown."""
    from .report import markdown, terminal_table

    table = terminal_table(lines)
    if Measurement.get(out, out.options.update(max_width=10_000), table).maximum <= out.width:
        out.print(table, end="\n\n")
    else:
        print(markdown(lines), end="\n\n")


def _print_failures(wanted: Comparison, folder: Path, column: str) -> None:
    from .core import Status
    from .record import read_outcome

    for run in (run for of in wanted.places(folder, column).values() for run in of):
        ended = read_outcome(run)
        if Status(ended["status"]).failed:
            where = run.relative_to(folder)
            out.print(f"{where}: {ended['status']}, {ended['reason']}", soft_wrap=True)


def _tables(runs: Mapping[str, Sequence[Run]], at: Sequence[int]) -> list[list[list[str]]]:
    """What a comparison shows: results, costs, and the scores after some rounds where asked."""
    from .report import comparison_tables, round_table

    return [*comparison_tables(runs), *([round_table(runs, at)] if at else [])]


@app.command(epilog="Example: fedunlearn resume runs/demo")
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.", show_default=False)],
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Go on with a run that was stopped or killed; it ends in the same model as an unbroken one.

    A finished run is shown again, with its report and curves made anew, and tracked where it was not.
    """
    from . import experiment
    from .report import Display

    if experiment.finished(folder):
        with _listening(Display(out), folder, track):
            _show(folder)
    else:
        _carry_out(folder, track, lambda listener: experiment.resume(folder, [listener], workers=workers))


@app.command(epilog="Example: fedunlearn report runs/demo --out demo.html")
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.", show_default=False),
    ],
    file: Annotated[
        Path | None,
        typer.Option("--out", help="The file; report.html in the folder of one run.", show_default=False),
    ] = None,
) -> None:
    """Write one HTML file about a run, several runs or a comparison, finished or not; it needs no network."""
    from . import methods as _registers_methods  # noqa: F401
    from .report import collect, write_report

    file = file or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    out.print(f"report  {write_report(collect(runs), file)}", soft_wrap=True)


@app.command()
def methods() -> None:
    """List the unlearning methods."""
    from .methods import Schedule, method

    def needs(name: str) -> str:
        kinds = {kind for phase in method[name](Schedule()) for kind in phase.needs}
        return ", ".join(sorted(kinds)) or "-"

    _list(
        ["method", "paper", "what it does", "who must be online", "needs"],
        (
            [
                entry.name,
                entry.about["paper"],
                entry.about["summary"],
                entry.about["online"],
                needs(entry.name),
            ]
            for entry in method
        ),
    )


@app.command()
def datasets() -> None:
    """List the data sets and where they are."""
    from .core.registry import dataset
    from .data import where

    _list(
        ["dataset", "what it is", "here"],
        (
            [
                entry.name,
                entry.about["summary"],
                str(where(entry.name) or f"no: fedunlearn data get {entry.name}"),
            ]
            for entry in dataset
        ),
    )


@app.command()
def models() -> None:
    """List the models."""
    from .core.registry import model
    from .models import build

    def parameters(name: str, inputs: str) -> str:
        # Both depend on the data: counted for 10 classes of Fashion-MNIST's pictures, or of CIFAR's.
        shape = (3, 32, 32) if inputs.startswith("3") else (1, 28, 28)
        return f"{sum(p.numel() for p in build(name, 10, shape, 0).parameters()):,}"

    _list(
        ["model", "what it is", "inputs", "parameters"],
        (
            [entry.name, entry.about["summary"], inputs, parameters(entry.name, inputs)]
            for entry in model
            for inputs in [entry.about["inputs"]]
        ),
    )


@data.command("get", epilog="Example: fedunlearn data get mnist")
def get(name: Annotated[str, typer.Argument(help="A data set.", show_default=False)]) -> None:
    """Download a data set, checked against its published checksum."""
    from .data import fetch

    out.print(str(fetch(name)), soft_wrap=True)


@data.command("where", epilog="Example: fedunlearn data where fmnist")
def where(name: Annotated[str | None, typer.Argument(help="A data set.")] = None) -> None:
    """Show the data directory, or where one data set was found."""
    from . import data as sources

    if name is None:
        out.print(str(sources.data_directory()), soft_wrap=True)
        return
    found = sources.where(name)
    if found is None:
        _fail(f"{name} is not on this machine: run fedunlearn data get {name}, or set FEDUNLEARN_DATA", 1)
    out.print(str(found), soft_wrap=True)


@contextmanager
def _listening(
    display: AbstractContextManager[Listener],
    folder: Path,
    track: Sequence[str] | None,
    runs: Path | None = None,
) -> Iterator[Listener]:
    """Progress and trackers of a run, as one listener."""
    with ExitStack() as open_ones:
        listeners: list[Listener] = [open_ones.enter_context(display)]
        if track:
            from .trackers import tracker

            listeners += [open_ones.enter_context(tracker[name](folder, runs=runs)) for name in track]

        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)

        yield tell


def _carry_out(folder: Path, track: Sequence[str] | None, work: Callable[[Listener], Outcome]) -> None:
    """Shows progress while working, then what came of it."""
    from .report import Display

    try:
        with _listening(Display(out), folder, track) as listener:
            outcome = work(listener)
    except KeyboardInterrupt:
        _fail(f"interrupted; go on with: fedunlearn resume {folder}", 130)
    if outcome.status.failed:
        _fail(f"{outcome.status}: {outcome.reason} (run folder: {folder})", 3)
    _show(folder)


def _show(folder: Path) -> None:
    """The result of a finished run: table, verdict, curves and report, from its files."""
    from .core import FedUnlearnError
    from .report import collect, stage_table, verdict, write_markdown_page

    found = collect([folder])
    (run,) = found.runs
    out.print()
    _print_table(stage_table(run))
    out.print(f"\n{verdict(run)}\n", soft_wrap=True)
    try:
        from .report.figures import curves

        out.print(f"curves  {'  '.join(str(path) for path in curves(run))}", soft_wrap=True)
    except FedUnlearnError as error:
        out.print(f"curves  none: {error}", soft_wrap=True)
    out.print(f"report  {write_markdown_page(run)}", soft_wrap=True)
    _html(found, folder)


def _html(found: Collection, folder: Path) -> None:
    """The report of a run or a comparison beside its files."""
    from .core import FedUnlearnError
    from .report import write_report

    try:
        out.print(f"report  {write_report(found, folder / 'report.html')}", soft_wrap=True)
    except FedUnlearnError as error:
        out.print(f"report  no report.html: {error}", soft_wrap=True)


def _unused(folder: Path, experiment: Experiment) -> Path:
    """This folder, or the first numbered one beside it, that is free or holds the same run unfinished."""
    number, free = 2, folder
    while free.exists() and not _unfinished(free, experiment):
        free, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return free


def _unfinished(folder: Path, experiment: Experiment) -> bool:
    try:
        config = json.loads((folder / "experiment.json").read_text())
    except (OSError, ValueError):
        return False
    return bool(config == experiment.model_dump(mode="json")) and not (folder / "outcome.json").exists()


def _in_a_name(override: str) -> str:
    """An override as a part of a folder's name."""
    return "".join(letter if letter.isalnum() or letter in "=.-" else "_" for letter in override)


def _list(header: list[str], rows: Iterable[list[str]]) -> None:
    shown = Table(box=None, pad_edge=False, header_style="bold")
    for name in header:
        # A path is worth a second line rather than an ellipsis.
        shown.add_column(name, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    out.print(shown)


def _fail(sentence: str, code: int) -> NoReturn:
    if sentence:
        print(f"fedunlearn: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
