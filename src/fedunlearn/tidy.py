"""Runs as one table: a row for each round and client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .core import ClientId, Metrics, Outcome
from .report import collect


def table(runs: Outcome | Mapping[str, Outcome] | Path | str) -> list[dict[str, Any]]:
    """One row for each round and client, for ``pandas.DataFrame``.

    ``runs`` is an outcome, what ``Server.compare`` returned, or the folder of a run, a comparison or a
    ``Server``. A retained client has its own ``r_acc``, a target its own ``asr``, ``forget_acc`` and
    ``loss_target``, as far as they were measured in the round. What belongs to no client, such as
    ``distance`` or ``seconds``, stands in every row of the round.
    """
    if isinstance(runs, Path | str):
        found = collect([Path(runs)]).rows.items()
        return [
            row
            for name, each in found
            for run in each
            for row in _rows({"run": name, "method": run.method, "seed": run.seed}, run.targets, run.rows)
        ]
    named = {"": runs} if isinstance(runs, Outcome) else runs
    return [row for name, each in named.items() for row in _rows({"run": name}, each.targets, each.metrics)]


def _rows(
    labels: Mapping[str, Any], targets: Sequence[ClientId], rounds: Sequence[Metrics]
) -> Iterator[dict[str, Any]]:
    keys = [key.partition(" ") for row in rounds for key in row]
    own = {key for key, _, client in keys if client}
    alone = {key for key, *_ in keys if key == "asr" or key.startswith(("forget_", "target_", "loss_target"))}
    clients = dict.fromkeys([*targets, *sorted({client for *_, client in keys if client})]) or {"": None}
    for row in rounds:
        told = {key: value for key, value in row.items() if " " not in key and key not in own | alone}
        for client in clients:
            target = client in targets
            measured = {key: row[f"{key} {client}"] for key in sorted(own) if f"{key} {client}" in row}
            if target and len(targets) == 1:
                measured |= {key: row[key] for key in sorted(alone) if key in row}
            role = "target" if target else "retained"
            yield {**labels, "client": client, "role": role, **told, **measured}
