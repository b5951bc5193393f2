"""The finished runs of the benchmark, as cells."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

from ...config.options import phases_of
from ...core import Status, requirements
from ...core.registry import method
from ...evidence import Evidence
from ...experiment import Experiment
from ...experiment.comparison import Comparison, at_chosen_rate, place, rates_matter, reference_place
from ...methods import Schedule
from ...report import read_evidence, read_run
from ...report.audits import REFERENCES, below_floor
from ...report.summary import costs
from ...runs import read_json
from .plan import STANDARD, protocol_digest, requests, source_digest
from .stored import About, Cell, Results, Submitted, Tuning, digest


def gather(comparison: Comparison, folder: Path) -> Results:
    """The finished runs of the benchmark in a folder, as they are stored."""
    assert comparison.grid is not None
    cells = [
        cell
        for column in comparison.columns
        for seed in comparison.seeds
        for cell in _cells(comparison, folder, column, seed)
    ]
    environments = {
        digest(found)[:8]: found
        for cell in cells
        if cell.ran
        for found in [read_json(place(folder, cell.request, cell.seed, cell.method) / "environment.json")]
    }
    experiments = {
        row: experiment for rows in comparison.columns.values() for row, experiment in rows.items()
    }
    named = dict.fromkeys(cell.method for cell in cells if cell.method not in REFERENCES)
    asked = requests()
    chosen: dict[str, dict[str, float]] = {}
    for cell in cells:
        if cell.rate is not None:
            kind = asked[cell.request]["kind"]
            chosen.setdefault(cell.method, {})[kind] = cell.rate
    return Results(
        protocol=protocol_digest(),
        seeds=comparison.seeds,
        tuning=Tuning(seed=comparison.grid.seed or 0, rates=tuple(comparison.grid.rates), chosen=chosen),
        environments=environments,
        requests={name: request for name, request in asked.items() if name in comparison.columns},
        methods={name: _about(name, experiments.get(name)) for name in named},
        results=tuple(cell.model_copy(update={"digest": cell.repeatable()}) for cell in cells),
    )


def _cells(comparison: Comparison, folder: Path, column: str, seed: int) -> Iterator[Cell]:
    """The cells of a request and a seed: finished runs, refused ones, references."""
    standard = _costs(place(folder, column, seed, STANDARD))
    for row, experiment in comparison.columns[column].items():
        run = place(folder, column, seed, row)
        if not (run / "outcome.json").exists():
            continue
        tuned = at_chosen_rate(comparison, folder, column, row, experiment)
        paid = _costs(run)
        yield Cell(
            request=column,
            method=row,
            seed=seed,
            environment=digest(read_json(run / "environment.json"))[:8],
            rate=tuned.unlearning.lr if rates_matter(experiment) else None,
            **{**_ended(run), **paid, **_shares(paid, standard, tuned), **_measured(read_evidence(run))},
        )
    for (where, row), why in comparison.refused.items():
        if where == column:
            yield Cell(request=column, method=row, seed=seed, status="refused", reason=why)
    for name in REFERENCES:
        evidence = read_evidence(reference_place(folder, column, seed, name))
        if evidence is not None:
            yield Cell(request=column, method=name, seed=seed, **_measured(evidence))


def _ended(run: Path) -> dict[str, Any]:
    outcome = read_json(run / "outcome.json")
    status = Status(outcome["status"])
    return {
        "status": status,
        "reason": outcome["reason"] if status.failed else "",
        "model_sha256": outcome["model_sha256"],
    }


def _costs(run: Path) -> dict[str, Any]:
    """What a run cost, and the ε that it promises if it promises one."""
    if not (run / "outcome.json").exists():
        return {}
    rows = read_run(run).all_rows
    found = costs(rows)
    promised = [float(row["epsilon"]) for row in rows if "epsilon" in row]
    return {
        "rounds": int(found["rounds"]),
        "local_trainings": int(found["local_trainings"]),
        "bytes": int(found["bytes"]),
        "stored": int(found["bytes_stored"]),
        "seconds": round(found["seconds"], 2),
        "epsilon": promised[-1] if promised else None,
    }


def _shares(paid: dict[str, Any], standard: dict[str, Any], experiment: Experiment) -> dict[str, Any]:
    """Work and time as shares of one retraining without the targets that takes as long as pre-training."""
    if not standard or not standard["rounds"]:
        return {}
    factor = experiment.pretraining.rounds / standard["rounds"]
    work, time = standard["local_trainings"] * factor, standard["seconds"] * factor
    return {
        "work": _rounded(paid["local_trainings"] / work) if work else None,
        "time": _rounded(paid["seconds"] / time) if time else None,
    }


def _measured(evidence: Evidence | None) -> dict[str, Any]:
    """What an audit found; of several targets, the one that is furthest from retraining."""
    if evidence is None:
        return {}
    worst = max(evidence.targets.values(), key=lambda target: abs(target.finding.difference or 0.0))
    finding, tail = worst.finding, worst.tail
    clients = evidence.influence.get("accuracy", {})
    retained = [each for client, each in clients.items() if client not in evidence.targets]
    interval = finding.difference_interval
    attacks = [target.asr for target in evidence.targets.values() if target.asr]
    found = {
        "model_sha256": evidence.models["model"]["sha256"],
        "verdict": evidence.verdict,
        "difference": finding.difference,
        "difference_interval": (interval.low, interval.high) if interval else None,
        "tail": tail.verdict if tail else None,
        "r_acc": _mean(each.value for each in retained),
        "r_acc_retrained": _mean(each.retrained for each in retained),
        "worst": min((each.value for each in retained), default=None),
        "worst_retrained": min((each.retrained for each in retained), default=None),
        "harmed": below_floor(evidence),
        "harm": max((each.retrained - each.value for each in retained), default=None),
        "asr": _mean(each["model"].share for each in attacks),
        "asr_retrained": _mean(each["retrained"].share for each in attacks),
    }
    return {key: _rounded(value) for key, value in found.items()}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_rounded(each) for each in value)
    return round(value, 5) if isinstance(value, float) else value


def _about(name: str, experiment: Experiment | None) -> About:
    """What is known of a method; there is no experiment of one that every request refuses."""
    entry = method.entry(name)
    options = experiment.options if experiment else {}
    phases = phases_of(name, Schedule(), options)
    own = [file for file in experiment.use if file.sha256 == source_digest(name)] if experiment else []
    told = {key: entry.about.get(key, "-") for key in ("paper", "source", "summary")}
    return About(
        **told,
        # A submission may say so itself: its phases need not declare whom they ask.
        online=entry.about.get("online") or requirements.online(phases),
        needs=tuple(sorted(requirements.needs(phases))),
        tuned=experiment is not None and rates_matter(experiment),
        file=Submitted(name=own[0].path.name, sha256=own[0].sha256) if own else None,
    )
