"""Stores the audited runs of ``experiments/paper-scale.toml``, and writes the table of their page.

Run ``python scripts/store_paper_scale.py runs/paper-scale``. It adds what the folder has to
``docs/results/paper-scale.json``, and replaces the table ``audited`` in ``docs/results.md``.
Without a folder, it only writes the page. The text around the markers is written by hand.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedunlearn.core import FedUnlearnError
from fedunlearn.evidence import Finding, TargetEvidence, Verdict
from fedunlearn.experiment.comparison import read_comparison
from fedunlearn.experiment.comparison.plan import place
from fedunlearn.report import markdown, read_evidence, read_run
from fedunlearn.report.evidence import verdict_text
from fedunlearn.report.summary import before, summarise
from fedunlearn.runs import read_json, write
from fedunlearn.studies.paper.paper import lookup
from fedunlearn.studies.paper.results_page import MARKED

ROOT = Path(__file__).parent.parent
EXPERIMENT = ROOT / "experiments/paper-scale.toml"
STORED = ROOT / "docs/results/paper-scale.json"
PAGE = ROOT / "docs/results.md"
PART = "audited"
SCORES = ("asr", "r_acc", "r_acc_worst")

Stored = Mapping[str, Any]
"""The numbers of one run and its audit, by name."""


def store(folder: Path, path: Path = STORED) -> str:
    """Adds the audited runs of a comparison, and describes in one sentence what there was."""
    wanted = read_comparison(EXPERIMENT)
    places = [
        (column, seed, row, place(folder, column, seed, row))
        for column in wanted.columns
        for seed in wanted.seeds
        for row in wanted.listed
    ]
    found = [
        {"column": column, "seed": seed, "row": row, **audited(run)}
        for column, seed, row, run in places
        if (run / "evidence.json").exists()
    ]
    if not found:
        raise FedUnlearnError(f"{folder} has no audited runs: {EXPERIMENT.name} says how to make them")
    known = {_place(each): each for each in (*stored(path), *found)}
    order = [place[:3] for place in places]
    lines = [json.dumps(known[each], ensure_ascii=False) for each in order if each in known]
    write(path, ("[\n" + ",\n".join(lines) + "\n]\n").encode())
    return f"{path.name}: {len(found)} runs added or replaced, {len(lines)} in all"


def audited(run: Path) -> dict[str, Any]:
    """What is stored of a run folder, rounded to five digits."""
    evidence, read = read_evidence(run), read_run(run)
    assert evidence is not None
    (target,) = evidence.targets.values()
    numbers, start = summarise(read), before(read)
    ends = {"0": start, "1": numbers} if "asr_2" in numbers and "asr_1" in numbers else {"0": start}
    stages = {stage: {key: round(of[f"{key}_1"], 5) for key in SCORES} for stage, of in ends.items()}
    return {
        "target": next(iter(evidence.targets)),
        "model_sha256": evidence.models["model"]["sha256"],
        "omega0_sha256": evidence.models["original"]["sha256"],
        "environment": read_json(run / "environment.json")["cpu_capability"],
        "rounds": int(numbers["rounds"]),
        "seconds": round(numbers["seconds"], 1),
        "stages": {**stages, "2": {key: round(numbers[key], 5) for key in SCORES}},
        "model": _found("model", target, target.finding, target.tail),
        "omega0": {} if target.original is None else _found("original", target, target.original),
    }


def _found(
    model: str, target: TargetEvidence, finding: Finding, tail: Finding | None = None
) -> dict[str, Any]:
    interval = finding.difference_interval
    assert interval is not None  # the audit had retrainings
    return {
        "verdict": verdict_text(finding.verdict),
        "difference": _rounded(finding.difference),
        "interval": [_rounded(interval.low), _rounded(interval.high)],
        "hardest": None if tail is None else _rounded(tail.difference),
        "alarm": None if tail is None else tail.verdict in (Verdict.UNDER, Verdict.OVER),
        "asr_gap": _rounded(target.asr_unseen[model].gap),
        "probe_gap": _rounded(target.probe[model].gap),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 5)


def _place(stored: Stored) -> tuple[str, int, str]:
    return stored["column"], stored["seed"], stored["row"]


def stored(path: Path = STORED) -> list[Stored]:
    """The stored runs; none if there is no file."""
    return list(read_json(path)) if path.exists() else []


def renewed(page: str, runs: Sequence[Stored]) -> str:
    """The page with the table between its markers updated; other scripts fill the other markers."""

    def make(found: Any) -> str:
        return f"{found['begin']}\n{_table(runs)}\n\n" if found["part"] == PART else found[0]

    return MARKED.sub(make, page)


def _table(runs: Sequence[Stored]) -> str:
    audit = ("ASR gap, unseen", "probe gap", "AUC gap", "hardest", "verdict")
    titles = ["request", "model", "rounds", "ASR", "R-Acc", "worst", *audit]
    return markdown([titles, *_lines(runs)]) if runs else "No results are stored yet."


def _lines(runs: Sequence[Stored]) -> Iterator[list[str]]:
    for column, seed in dict.fromkeys((each["column"], each["seed"]) for each in runs):
        mine = [each for each in runs if (each["column"], each["seed"]) == (column, seed)]
        start, scores = mine[0]["omega0"], _scores(column, "omega0", 0, mine[0])
        yield [f"{column}, seed {seed}", "ω⁰", "–", *scores, *_told(start)]
        for run in mine:
            if "1" in run["stages"]:
                yield ["", f"`{run['row']}`¹", "", *_scores(column, run["row"], 1, run), *[""] * 5]
            mark = "²" if "1" in run["stages"] else ""
            name, rounds = f"`{run['row']}`{mark}", str(run["rounds"])
            yield ["", name, rounds, *_scores(column, run["row"], 2, run), *_told(run["model"])]


def _scores(column: str, row: str, stage: int, run: Stored) -> list[str]:
    """Our numbers, with the paper's in brackets where it prints them."""
    dataset, _, partition = column.partition("-")
    printed = lookup(dataset=dataset, partition=partition, row=row, stage=stage)
    cells = []
    for key in SCORES:
        theirs = [value for one in printed if (value := getattr(one, key)) is not None]
        ours = _share(run["stages"][str(stage)][key])
        cells.append(f"{ours} ({_share(theirs[0])})" if theirs else ours)
    return cells


def _share(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def _told(found: Mapping[str, Any]) -> list[str]:
    low, high = map(_signed, found["interval"])
    gap = f"{_signed(found['difference'])} [{low}, {high}]"
    hardest = "–" if found["hardest"] is None else _signed(found["hardest"]) + (", alarm" * found["alarm"])
    return [_signed(found["asr_gap"]), _signed(found["probe_gap"]), gap, hardest, found["verdict"]]


def main(folders: Sequence[str]) -> None:
    for folder in folders:
        print(store(Path(folder)))
    write(PAGE, renewed(PAGE.read_text(encoding="utf-8"), stored()).encode())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except FedUnlearnError as error:
        sys.exit(str(error))
