"""The command ``per-example``: many federations, and what single examples tell about them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from .console import out, print_table, print_text
from .options import Overrides, Use, Workers
from .runs import default_folder

if TYPE_CHECKING:
    from ..studies.per_example import PerExample


def per_example(
    experiment: Annotated[Path, typer.Argument(help="File with an experiment, in TOML.", show_default=False)],
    overrides: Overrides = None,
    federations: Annotated[int, typer.Option(help="Number of federations.")] = 64,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Method to test, instead of that of the file; repeatable.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--out", help="Output file; per-example.json in runs/NAME by default.", show_default=False
        ),
    ] = None,
    workers: Workers = None,
    use: Use = None,
) -> None:
    """Test whether individual examples distinguish unlearned from retrained models.

    Trains, unlearns and retrains many small federations, one after the other.
    """
    from ..experiment import read
    from ..runs import write_json
    from ..studies.per_example import per_example as test

    wanted = read(experiment, overrides or [], use=use or [])
    file = file or default_folder([wanted.name, *(overrides or [])]) / "per-example.json"
    with _Display() as display:
        found = test(wanted, method or (), federations=federations, workers=workers, progress=display)
    write_json(file, found.as_dict())
    _print(found)
    out.print(f"result  {file}", soft_wrap=True)


def _print(found: PerExample) -> None:
    from .progress import duration

    header = [
        "",
        "accuracy on D",
        "on H",
        "D - H",
        "90 % interval",
        "90th percentile of D",
        "direction",
        "90 % interval",
    ]
    rows = [
        [
            name,
            f"{row.forgotten:.3f}",
            f"{row.unseen:.3f}",
            f"{row.difference.value:+.3f}",
            str(row.difference.interval()),
            f"{row.tail:.3f}",
            f"{row.direction.value:+.3f}",
            str(row.direction.interval()),
        ]
        for name, row in found.rows.items()
    ]
    first = next(iter(found.rows.values()))
    out.print()
    print_table([header, *rows])
    print_text(
        f"{found.federations} federations, {first.n_forgotten:,} forgotten examples (D), "
        f"{first.n_unseen:,} unseen ones (H), {duration(found.seconds)}. Each row is compared with "
        "retrained models; the row retrain again shows what chance does."
    )
    for name, reason in found.failed.items():
        print_text(f"{name} failed: {reason}")


class _Display:
    """How much is done, and the time left: a bar, or lines where there is no terminal."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        live = out.is_terminal and not out.is_dumb_terminal
        columns = (
            TextColumn("federations"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
        )
        self._bar = Progress(*columns, console=out) if live else None

    def __enter__(self) -> _Display:
        if self._bar is not None:
            self._bar.start()
            self._bar.add_task("", total=1.0, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, share: float) -> None:
        from .progress import duration

        left = (time.monotonic() - self._began) * (1 - share) / share
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=share, left=f"ETA {duration(left)}")
        elif share < 1:
            out.print(f"{share:.0%} done, about {duration(left)} left", soft_wrap=True)
