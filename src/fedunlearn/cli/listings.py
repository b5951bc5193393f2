"""Commands about what there is: methods, models and data sets."""

from __future__ import annotations

import inspect
from shlex import quote
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import typer

from .console import out, print_list
from .ending import fail
from .options import Use


def methods(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a method to describe; omit it to list all.", show_default=False),
    ] = None,
    use: Use = None,
) -> None:
    """List the unlearning methods, or describe one."""
    from ..config.options import phases_of
    from ..core import requirements
    from ..methods import Schedule, method

    if name is None:
        print_list(["method", "summary"], ([entry.name, entry.about.get("summary", "-")] for entry in method))
        out.print("\nDetails: fedunlearn methods NAME")
        return
    entry = method.entry(name)
    phases = phases_of(name, Schedule(), {})
    types = get_type_hints(entry.make)
    options = [
        f"{parameter.name} = {parameter.default!r}{_choices(types.get(parameter.name))}"
        for parameter in inspect.signature(entry.make).parameters.values()
        if parameter.default is not parameter.empty
    ]
    about = {
        "paper": entry.about.get("paper", "-"),
        "read from": entry.about.get("source", "-"),
        "summary": entry.about.get("summary", "-"),
        "online": requirements.online(phases),
        "needs": ", ".join(sorted(requirements.needs(phases))) or "-",
        "options": "\n".join(options) or "-",
        "about options": " ".join((inspect.getdoc(entry.make) or "-").replace("``", "").split()),
    }
    print_list(["method", name], about.items())


def _choices(annotation: object) -> str:
    """The values that an option takes, where it takes only some."""
    return f"  ({', '.join(map(str, get_args(annotation)))})" if get_origin(annotation) is Literal else ""


def datasets() -> None:
    """List the data sets and their locations."""
    from ..core.registry import dataset
    from ..data import where

    print_list(
        ["dataset", "description and location"],
        (
            [
                entry.name,
                f"{entry.about['summary']}\n"
                f"{where(entry.name) or f'not here: fedunlearn data get {quote(entry.name)}'}",
            ]
            for entry in dataset
        ),
    )


def models(use: Use = None) -> None:
    """List the models."""
    from ..core.registry import model
    from ..models import build

    def parameters(name: str, inputs: str) -> str:
        # Both depend on the data: counted for 10 classes of Fashion-MNIST's pictures, or of CIFAR's.
        shape = (3, 32, 32) if inputs.startswith("3") else (1, 28, 28)
        try:
            return f"{sum(p.numel() for p in build(name, 10, shape, 0).parameters()):,}"
        except Exception:  # the user's own model, for other data
            return "-"

    print_list(
        ["model", "inputs", "parameters", "description"],
        (
            [entry.name, inputs, parameters(entry.name, inputs), entry.about.get("summary", "-")]
            for entry in model
            for inputs in [entry.about.get("inputs", "-")]
        ),
    )


def get(name: Annotated[str, typer.Argument(help="Name of a data set.", show_default=False)]) -> None:
    """Download a data set and verify its published checksum."""
    from ..data import fetch

    out.print(str(fetch(name)), soft_wrap=True)


def where(
    name: Annotated[
        str | None,
        typer.Argument(help="Name of a data set; omit it to see the data directory.", show_default=False),
    ] = None,
) -> None:
    """Show the data directory, or the location of a data set."""
    from .. import data as sources

    if name is None:
        out.print(str(sources.data_directory()), soft_wrap=True)
        return
    found = sources.where(name)
    if found is None:
        fail(
            f"{name} is not on this machine: run fedunlearn data get {quote(name)}, or set FEDUNLEARN_DATA", 1
        )
    out.print(str(found), soft_wrap=True)
