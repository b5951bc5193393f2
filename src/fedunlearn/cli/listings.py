"""Commands about what there is: methods, models and data sets."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import fail, out, print_list


def methods() -> None:
    """List the unlearning methods."""
    from ..methods import Schedule, method

    def needs(name: str) -> str:
        kinds = {kind for phase in method[name](Schedule()) for kind in phase.needs}
        return ", ".join(sorted(kinds)) or "-"

    print_list(
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


def datasets() -> None:
    """List the data sets and where they are."""
    from ..core.registry import dataset
    from ..data import where

    print_list(
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


def models() -> None:
    """List the models."""
    from ..core.registry import model
    from ..models import build

    def parameters(name: str, inputs: str) -> str:
        # Both depend on the data: counted for 10 classes of Fashion-MNIST's pictures, or of CIFAR's.
        shape = (3, 32, 32) if inputs.startswith("3") else (1, 28, 28)
        return f"{sum(p.numel() for p in build(name, 10, shape, 0).parameters()):,}"

    print_list(
        ["model", "what it is", "inputs", "parameters"],
        (
            [entry.name, entry.about["summary"], inputs, parameters(entry.name, inputs)]
            for entry in model
            for inputs in [entry.about["inputs"]]
        ),
    )


def get(name: Annotated[str, typer.Argument(help="A data set.", show_default=False)]) -> None:
    """Download a data set, checked against its published checksum."""
    from ..data import fetch

    out.print(str(fetch(name)), soft_wrap=True)


def where(name: Annotated[str | None, typer.Argument(help="A data set.")] = None) -> None:
    """Show the data directory, or where one data set was found."""
    from .. import data as sources

    if name is None:
        out.print(str(sources.data_directory()), soft_wrap=True)
        return
    found = sources.where(name)
    if found is None:
        fail(f"{name} is not on this machine: run fedunlearn data get {name}, or set FEDUNLEARN_DATA", 1)
    out.print(str(found), soft_wrap=True)
