"""Stored results of the benchmark: one row for each method, request and seed, each with a digest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from typing import Any

from ..comparison import Comparison, at_chosen_rate, place, rates_matter, reference_place
from ..core import FedUnlearnError, Status
from ..core.registry import method
from ..experiment import Experiment
from ..methods import Schedule
from ..record import read_json, write
from ..report import RunEvidence, read_evidence, read_run
from ..report.audits import REFERENCES, harmed
from ..report.benchmark import FORMAT
from ..report.summary import costs
from .plan import STANDARD, describe, protocol_digest, source_digest

UNSTABLE = ("digest", "seconds", "time")
"""Keys of a row that its digest leaves out: the wall time differs from one repetition to the next."""

Row = Mapping[str, Any]


def gather(comparison: Comparison, folder: Path) -> dict[str, Any]:
    """The finished runs of the benchmark in a folder, as they are stored."""
    environments: dict[str, Any] = {}
    rows: list[dict[str, Any]] = []
    chosen: dict[str, dict[str, float]] = {}
    for column, experiments in comparison.columns.items():
        for seed in comparison.seeds:
            standard = _costs(place(folder, column, seed, STANDARD))
            for row, experiment in experiments.items():
                run = place(folder, column, seed, row)
                if not (run / "outcome.json").exists():
                    continue
                environment = read_json(run / "environment.json")
                name = _digest(environment)[:8]
                environments[name] = environment
                tuned = at_chosen_rate(comparison, folder, column, row, experiment)
                rate = tuned.unlearning.lr if rates_matter(experiment) else None
                if rate is not None:
                    chosen.setdefault(row, {})[str(describe(experiment)["kind"])] = rate
                found = {
                    **_cell(column, row, seed),
                    "environment": name,
                    "rate": rate,
                    **_ended(run),
                    **_costs(run),
                    **_measured(read_evidence(run)),
                }
                rows.append(_shares(found, standard, tuned))
            for (where, row), why in comparison.refused.items():
                if where == column:
                    rows.append({**_cell(column, row, seed), "status": "refused", "reason": why})
            for name in REFERENCES:
                evidence = read_evidence(reference_place(folder, column, seed, name))
                if evidence is not None:
                    rows.append({**_cell(column, name, seed), **_measured(evidence)})
    grid = comparison.grid
    assert grid is not None
    named = dict.fromkeys(str(row["method"]) for row in rows if row["method"] not in REFERENCES)
    return {
        "format": FORMAT,
        "protocol": protocol_digest(),
        "seeds": list(comparison.seeds),
        "tuning": {"seed": grid.seed, "rates": grid.rates, "chosen": chosen},
        "environments": environments,
        "requests": {
            column: describe(next(iter(experiments.values())))
            for column, experiments in comparison.columns.items()
        },
        "methods": {name: _about(name, comparison) for name in named},
        "results": [{**row, "digest": row_digest(row)} for row in rows],
    }


def merge(files: Sequence[Path]) -> dict[str, Any]:
    """The results of several files as one; what a later file says of a cell replaces what an earlier said."""
    parts = [read_results(path) for path in files]
    merged: dict[str, Any] = dict(parts[0])
    rows = {_key(row): row for part in parts for row in part["results"]}
    for name in ("environments", "requests", "methods"):
        merged[name] = {key: value for part in parts for key, value in part[name].items()}
    chosen = {key: value for part in parts for key, value in part["tuning"]["chosen"].items()}
    merged["tuning"] = {**merged["tuning"], "chosen": chosen}
    merged["results"] = list(rows.values())
    return merged


def read_results(path: Path) -> dict[str, Any]:
    """Stored results, whose rows are as they were written and follow this protocol."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FedUnlearnError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise FedUnlearnError(
            f"{path} is not JSON ({error}): make it again with fedunlearn benchmark"
        ) from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise FedUnlearnError(
            f"{path} holds no results of the benchmark: make them with fedunlearn benchmark"
        )
    if found.get("protocol") != protocol_digest():
        raise FedUnlearnError(
            f"{path} was made with another version of the protocol, so its results are not comparable: run "
            "fedunlearn benchmark again"
        )
    for row in found["results"]:
        if row.get("digest") != row_digest(row):
            raise FedUnlearnError(
                f"{path} was changed after it was written: the digest of {row.get('method')}, "
                f"{row.get('request')}, seed {row.get('seed')} does not match"
            )
    return found


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Writes results with one line for each cell, so that a difference is easy to read."""
    head = {key: value for key, value in results.items() if key != "results"}
    text = json.dumps(head, indent=1, ensure_ascii=False, sort_keys=True)
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, sort_keys=True) for row in results["results"])
    write(path, f'{text[:-2]},\n "results": [\n{lines}\n ]\n}}\n'.encode())


def row_digest(row: Row) -> str:
    """The SHA-256 of what can be repeated to the bit in a row."""
    return _digest({key: value for key, value in row.items() if key not in UNSTABLE})


def _digest(value: Any) -> str:
    return sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _key(row: Row) -> tuple[str, str, int]:
    return str(row["request"]), str(row["method"]), int(row["seed"])


def _cell(column: str, row: str, seed: int) -> dict[str, Any]:
    return {"request": column, "method": row, "seed": seed}


def _ended(run: Path) -> dict[str, Any]:
    outcome = read_json(run / "outcome.json")
    failed = Status(outcome["status"]).failed
    return {
        "status": outcome["status"],
        "reason": outcome["reason"] if failed else "",
        "model_sha256": outcome["model_sha256"],
    }


def _costs(run: Path) -> dict[str, Any]:
    """What a run cost, and the ε that it promises if it promises one."""
    if not (run / "outcome.json").exists():
        return {}
    rows = read_run(run).all_rows
    found = costs(rows)
    promised = [row["epsilon"] for row in rows if "epsilon" in row]
    return {
        "rounds": int(found["rounds"]),
        "local_trainings": int(found["local_trainings"]),
        "bytes": int(found["bytes"]),
        "stored": int(found["bytes_stored"]),
        "seconds": round(found["seconds"], 2),
        **({"epsilon": float(promised[-1])} if promised else {}),
    }


def _shares(row: dict[str, Any], standard: Row, experiment: Experiment) -> dict[str, Any]:
    """The row with its work and time as shares of a retraining that takes as long as pre-training."""
    if not standard or not row.get("rounds"):
        return row
    factor = experiment.pretraining.rounds / standard["rounds"]
    return {
        **row,
        "work": _rounded(row["local_trainings"] / (standard["local_trainings"] * factor)),
        "time": _rounded(row["seconds"] / (standard["seconds"] * factor)),
    }


def _measured(evidence: RunEvidence | None) -> dict[str, Any]:
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
        "difference_interval": [interval.low, interval.high] if interval else None,
        "tail": tail.verdict if tail else None,
        "r_acc": _mean(each.value for each in retained),
        "r_acc_retrained": _mean(each.retrained for each in retained),
        "worst": min((each.value for each in retained), default=None),
        "worst_retrained": min((each.retrained for each in retained), default=None),
        "harmed": harmed(evidence),
        "harm": max((each.retrained - each.value for each in retained), default=None),
        "asr": _mean(each["model"] for each in attacks),
        "asr_retrained": _mean(each["retrained"] for each in attacks),
    }
    return {key: _rounded(value) for key, value in found.items()}


def _mean(values: Iterable[float]) -> float | None:
    known = list(values)
    return fmean(known) if known else None


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def _about(name: str, comparison: Comparison) -> dict[str, Any]:
    """What a listing says about a method, and the SHA-256 of the file that a submission brings along."""
    entry = method.entry(name)
    experiment = next(rows[name] for rows in comparison.columns.values() if name in rows)
    needs = {kind for phase in entry.make(Schedule(), **experiment.options) for kind in phase.needs}
    own = [file for file in experiment.use if file.sha256 == source_digest(name)]
    return {
        **{key: entry.about.get(key, "-") for key in ("paper", "source", "summary", "online")},
        "needs": sorted(needs),
        "file": {"name": own[0].path.name, "sha256": own[0].sha256} if own else None,
    }
