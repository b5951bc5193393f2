"""Commands whose ``--help`` explains their arguments, and the groups in which they are listed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from typing import Any, get_type_hints

import typer
from typer.core import TyperArgument, TyperCommand
from typer.models import ArgumentInfo


class Group(StrEnum):
    """The groups of commands, in the order of the help."""

    EXPERIMENTS = "Experiments"
    EVIDENCE = "Evidence"
    DESK = "Erasure desk"
    STUDIES = "Studies"
    CATALOGUE = "Catalogue"


class Explained(TyperCommand):
    """A command that shows the help of its arguments, which typer 0.20 loses with click 8.5.

    A later typer does not, but Flower needs one before 0.21.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        function = inspect.unwrap(self.callback) if self.callback else None
        hints = get_type_hints(function, include_extras=True) if function else {}
        for parameter in self.params:
            if isinstance(parameter, TyperArgument):
                (about,) = (
                    each for each in hints[str(parameter.name)].__metadata__ if isinstance(each, ArgumentInfo)
                )
                parameter.help = about.help


def add(
    app: typer.Typer,
    work: Callable[..., None],
    *,
    group: Group | None = None,
    example: str | None = None,
) -> None:
    """Adds a command with the name of its function."""
    epilog = f"Example: fedunlearn {example}" if example else None
    app.command(cls=Explained, epilog=epilog, rich_help_panel=group)(work)
