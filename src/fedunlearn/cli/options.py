"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings that override those of the file; repeatable.",
        show_default=False,
    ),
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        min=1,
        help="Number of worker processes; one per core by default.",
        show_default=False,
    ),
]
Out = Annotated[Path | None, typer.Option("--out", help="Run folder.", show_default=False)]


def _installed(names: list[str] | None) -> list[str]:
    """The trackers to use; one that is not installed is refused before anything runs."""
    wanted = list(dict.fromkeys(names or []))
    if wanted:
        from ..trackers import require

        for name in wanted:
            require(name)
    return wanted


Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        help="Also log metrics to tensorboard, mlflow or wandb; repeatable.",
        callback=_installed,
        show_default=False,
    ),
]


def _imported(files: list[Path] | None) -> list[Path]:
    """The files, imported before anything looks for what they register."""
    if files:
        from ..experiment import import_code

        for file in files:
            import_code(file.absolute())
    return files or []


Use = Annotated[
    list[Path] | None,
    typer.Option(
        "--use",
        help="Python file with your own methods, models, data sets or partitions; repeatable.",
        callback=_imported,
        show_default=False,
    ),
]
