"""Stored results, checked: cells are tuned, run and audited again, and must come out the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from secrets import SystemRandom

from ...core import FedUnlearnError
from ...experiment.comparison import Comparison, Show, carry_out
from ...runs import environment
from .plan import protocol
from .results import gather
from .stored import UNSTABLE, Cell, Results, read_results

ARITHMETIC = ("torch", "cpu_capability", "numerics", "system", "byteorder")
"""Parts of an environment on which the bits of a model depend."""


def check_results(
    path: Path, cells: int, folder: Path, show: Show, *, workers: int | None = None
) -> Iterator[str]:
    """Repeats some cells of a file of results, and says of each that it came out the same.

    Nobody can foresee which cells are drawn. Trials, run and audit are repeated, so that a rate, a model and
    every number must be right. A submitted method is read from the Python file beside the results, and
    executed. Cells from another kind of machine are refused, because its arithmetic leads to other bits.
    """
    stored = read_results(path)
    own = stored.submitted or stored.methods.keys()
    ran = [cell for cell in stored.results if cell.ran and cell.method in own]
    if len(ran) < cells:
        raise FedUnlearnError(f"{path} has {len(ran)} cells that can be repeated, not {cells}")
    for cell in SystemRandom().sample(ran, cells):
        _require_same_arithmetic(cell, stored)
        wanted = _comparison(cell, stored, path.parent)
        carry_out(wanted, folder, show, workers=workers)
        repeated = gather(wanted, folder)
        (again,) = (each for each in repeated.results if each.name == cell.name)
        _require_same(cell.model_copy(update={"environment": again.environment}), again)
        about = stored.methods[cell.method]
        if about.file and about != repeated.methods[cell.method]:
            raise FedUnlearnError(
                f"{path} describes {cell.method} differently from its Python file", code="damaged"
            )
        yield f"{cell.name}: the same rate, model and numbers ({(cell.model_sha256 or '')[:12]})"


def _comparison(cell: Cell, stored: Results, beside: Path) -> Comparison:
    """The part of the benchmark that makes a cell."""
    file = stored.methods[cell.method].file
    wanted = protocol(
        [cell.method, cell.request], beside / file.name if file else None, file.sha256 if file else ""
    )
    return replace(wanted, seeds=(cell.seed,))


def _require_same_arithmetic(cell: Cell, stored: Results) -> None:
    here, there = environment(), stored.environments[cell.environment]
    if other := [key for key in ARITHMETIC if there.get(key) != here[key]]:
        raise FedUnlearnError(
            f"{cell.name} was made with {_listed(there, other)}, and here it is {_listed(here, other)}: "
            "check it on a machine of that kind",
            code="environment",
        )


def _require_same(stored: Cell, again: Cell) -> None:
    if stored.repeatable() == again.repeatable():
        return
    one, other = (cell.model_dump(mode="json", exclude=UNSTABLE) for cell in (stored, again))
    key = next(key for key in one if repr(one[key]) != repr(other[key]))  # 0.0 is not -0.0
    raise FedUnlearnError(
        f"{stored.name} came out differently: {key} is {other[key]}, not {one[key]}", code="damaged"
    )


def _listed(values: Mapping[str, str], keys: Sequence[str]) -> str:
    return ", ".join(str(values.get(key, "?")) for key in keys)
