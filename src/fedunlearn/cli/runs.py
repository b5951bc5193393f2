"""Commands about one run: ``demo``, ``run``, ``resume`` and ``report``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from .console import out, print_table, print_text
from .ending import Interrupted, fail
from .options import Out, Overrides, Track, Use, Workers

if TYPE_CHECKING:
    from ..core import Event, Listener
    from ..experiment import Experiment
    from ..report import Collection


LONGEST_NAME = 100
"""Letters of a run folder's name; file systems take 255 bytes."""


def demo(
    seed: Annotated[int, typer.Option(help="Seed of all randomness.")] = 1,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
) -> None:
    """Run FedOSD end to end on the embedded Fashion-MNIST. Takes about a minute."""
    from ..experiment import read

    experiment = read(Path(__file__).parents[1] / "demo.toml", [f"seed={seed}"])
    folder = folder or _unused(Path("runs/demo"), experiment)
    out.print(
        f"{experiment.data.clients} clients train on Fashion-MNIST; one plants a backdoor in the model.\n"
        "FedOSD removes that client's influence; the other clients then recover their accuracy.\n"
    )
    _carry_out(experiment, folder, workers, track)


def run(
    experiment: Annotated[Path, typer.Argument(help="File with an experiment, in TOML.", show_default=False)],
    overrides: Overrides = None,
    folder: Out = None,
    workers: Workers = None,
    track: Track = None,
    use: Use = None,
) -> None:
    """Run an experiment: pre-train (or load ω⁰ from the cache), unlearn, post-train.

    The run folder is runs/NAME plus the overrides, unless --out is given.
    """
    from ..experiment import read

    wanted = read(experiment, overrides or [], use=use or [])
    folder = folder or default_folder([wanted.name, *(overrides or [])])
    _carry_out(wanted, folder, workers, track)


def resume(
    folder: Annotated[Path, typer.Argument(help="Folder of the run.", show_default=False)],
    workers: Workers = None,
    track: Track = None,
    use: Use = None,
) -> None:
    """Continue a run that was stopped or killed. It ends in the same model as an uninterrupted run.

    A finished run is shown again: its report and curves are rebuilt, and it is tracked if it was not.
    The Python files of the run are imported again; name those that have moved with --use.
    """
    from ..experiment import finished, recorded
    from .progress import Display

    if finished(folder):
        with Display(out, {}) as display, listening(display.run(), folder, track):
            _print_result(folder)
    else:
        _carry_out(recorded(folder), folder, workers, track)


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of runs or comparisons.", show_default=False),
    ],
    file: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Output file; report.html by default, in the run folder if there is one run.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write one HTML file about a run, several runs or a comparison, finished or not; it needs no network."""
    from .. import methods as _registers_methods  # noqa: F401
    from ..report import collect, write_report

    file = file or (runs[0] if len(runs) == 1 else Path()) / "report.html"
    out.print(f"report  {write_report(collect(runs), file)}", soft_wrap=True)


@contextmanager
def listening(
    display: AbstractContextManager[Listener],
    folder: Path,
    track: Sequence[str] | None,
    runs: Path | None = None,
) -> Iterator[Listener]:
    """Progress and trackers of a run, as one listener."""
    with ExitStack() as stack:
        listeners: list[Listener] = [stack.enter_context(display)]
        if track:
            from ..trackers import tracker

            listeners += [stack.enter_context(tracker[name](folder, runs=runs)) for name in track]

        def tell(event: Event) -> None:
            for listener in listeners:
                listener(event)

        yield tell


def _carry_out(
    experiment: Experiment, folder: Path, workers: int | None, track: Sequence[str] | None
) -> None:
    """Performs a run, or what is left of it, with its progress, and prints the result."""
    from ..experiment import perform
    from .progress import Display

    try:
        with (
            Display(out, {"": experiment.rounds}) as display,
            listening(display.run(), folder, track) as listener,
        ):
            outcome = perform(experiment, folder, [listener], workers=workers)
    except Interrupted as stop:
        begun = (folder / "experiment.json").exists()
        fail(
            f"{stop}; continue with: fedunlearn resume {quote(str(folder))}" if begun else str(stop),
            stop.code,
        )
    if outcome.status.failed:
        fail(f"{outcome.reason} (run folder: {folder})", 3, outcome.status)
    _print_result(folder)


def _print_result(folder: Path) -> None:
    """The result of a finished run: table, verdict, curves and report, from its files."""
    from ..core import FedUnlearnError
    from ..report import collect, stage_table, verdict

    found = collect([folder])
    (run,) = found.runs
    out.print()
    print_table(stage_table(run))
    print_text(f"{verdict(run)}\n")
    try:
        from ..report.figures import curves

        out.print(f"curves  {curves(run)}", soft_wrap=True)
    except FedUnlearnError as error:
        print_text(f"curves  none: {error}")
    write_html(found, folder)


def write_html(found: Collection, folder: Path) -> None:
    """The report of a run or a comparison beside its files."""
    from ..core import FedUnlearnError
    from ..report import write_report

    try:
        out.print(f"report  {write_report(found, folder / 'report.html')}", soft_wrap=True)
    except FedUnlearnError as error:
        print_text(f"report  no report.html: {error}")


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


def default_folder(parts: Sequence[str]) -> Path:
    """A folder named after an experiment and its overrides; a long name ends in a digest instead."""
    name = "-".join("".join(c if c.isalnum() or c in "=.-" else "_" for c in part) for part in parts)
    if len(name) > LONGEST_NAME:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256('-'.join(parts).encode()).hexdigest()[:8]}"
    return Path("runs") / name
