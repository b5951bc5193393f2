"""Stores the audits of ``experiments/evidence.toml``, and writes the tables of the page that shows them.

Run ``python scripts/store_evidence.py runs/evidence``. It replaces ``docs/results/evidence.json`` and its
CSV, and the text between ``<!-- begin PART KIND -->`` and ``<!-- end -->`` in ``docs/results.md``. Without a
folder, it only writes CSV and page. The text around the markers is written by hand.
"""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedunlearn.core import FedUnlearnError
from fedunlearn.evidence import Comeback, Evidence
from fedunlearn.experiment.comparison import read_comparison
from fedunlearn.report import markdown, read_evidence, read_run
from fedunlearn.report.audits import REFERENCES, below_floor
from fedunlearn.report.summary import summarise
from fedunlearn.runs import read_json, write
from fedunlearn.studies.paper.results_page import MARKED

ROOT = Path(__file__).parent.parent
EXPERIMENT = ROOT / "experiments/evidence.toml"
STORED = ROOT / "docs/results/evidence.json"
TABLE = STORED.with_suffix(".csv")
PAGE = ROOT / "docs/results.md"
NOTHING = "No results are stored yet."

Audit = Mapping[str, Any]
"""The numbers of one audit, by name."""


def store(folder: Path, path: Path = STORED) -> str:
    """Stores the audits of a comparison, and describes in one sentence what there was."""
    wanted = read_comparison(EXPERIMENT)
    places = {
        (column, row): folders
        for column in wanted.columns
        for row, folders in wanted.audited(folder, column, listed=True).items()
    }
    audits, missing = [], []
    for (column, row), folders in places.items():
        for place in folders:
            evidence = read_evidence(place)
            seed = int(place.parent.name.removeprefix("seed-"))
            if evidence is None:
                missing.append(f"{column}/seed-{seed}/{row}")
            else:
                audits.append({"column": column, "seed": seed, "row": row, **audit(evidence, place)})
    if not audits:
        raise FedUnlearnError(f"{folder} has no evidence: carry out fedunlearn compare {EXPERIMENT.name}")
    environment, *lines = (json.dumps(each, ensure_ascii=False) for each in (_environment(folder), *audits))
    text = ",\n".join(lines)
    write(path, f'{{"environment": {environment},\n"audits": [\n{text}\n]}}\n'.encode())
    told = f"{path.name}: {len(audits)} audits, {path.stat().st_size / 1000:.0f} kB"
    return f"{told}; {len(missing)} runs were not audited, such as {missing[0]}" if missing else told


def _environment(folder: Path) -> Any:
    found = sorted(folder.glob("*/seed-*/*/environment.json"))
    return read_json(found[0]) if found else {}


def audit(evidence: Evidence, folder: Path) -> dict[str, Any]:
    """What is stored of one audit, rounded to five digits."""
    if len(evidence.targets) != 1:
        raise FedUnlearnError(f"{folder} has {len(evidence.targets)} targets: the page shows audits of one")
    ((name, target),) = evidence.targets.items()
    finding, tail = target.finding, target.tail
    accuracy = evidence.influence.get("accuracy", {})
    retained = [each for client, each in accuracy.items() if client != name]
    own = {measure: clients[name] for measure, clients in evidence.influence.items() if name in clients}
    found = {
        "model_sha256": evidence.models["model"]["sha256"],
        "verdict": evidence.verdict,
        "gate": finding.gate,
        "auc": finding.auc,
        "auc_interval": _ends(finding.interval),
        "auc_retrained": finding.reference_auc,
        "difference": finding.difference,
        "difference_interval": _ends(finding.difference_interval),
        "alarm_interval": _ends(finding.alarm_interval),
        "n_forgotten": finding.n_forgotten,
        "n_unseen": finding.n_unseen,
        "plain_auc": None if target.losses is None else target.losses.auc,
        "tail_verdict": None if tail is None else tail.verdict,
        "tail_difference": None if tail is None else tail.difference,
        "tail_interval": None if tail is None else _ends(tail.alarm_interval),
        "n_tail": None if tail is None else tail.n_forgotten,
        "target": {
            measure: {"model": each.value, "retrained": each.retrained, "floor": each.floor}
            for measure, each in own.items()
        },
        "r_acc": fmean(each.value for each in retained) if retained else None,
        "r_acc_retrained": fmean(each.retrained for each in retained) if retained else None,
        "worst": min((each.value for each in retained), default=None),
        "worst_retrained": min((each.retrained for each in retained), default=None),
        "harmed": below_floor(evidence),
        "tpr": {fpr: {name: each.tpr for name, each in rates.items()} for fpr, rates in target.tpr.items()},
        "js": {model: each.forgotten for model, each in target.distance.items()},
        "js_unseen": {model: each.unseen for model, each in target.distance.items()},
        "probe": {name: each.share for name, each in target.probe.items()},
        "tow": {name: each.value for name, each in evidence.tug_of_war.items()},
        "relearning": {
            attack: {"model": each.rounds, "retrained": each.rounds_retrained, "limit": each.limit}
            for attack, each in _comebacks(evidence)
            if each.threshold is not None
        },
        "asr": {name: each.share for name, each in target.asr.items()},
        "asr_unseen": {name: each.share for name, each in target.asr_unseen.items()},
        **_costs(evidence, folder),
    }
    return {key: _rounded(value) for key, value in found.items() if value not in (None, {})}


def _comebacks(evidence: Evidence) -> list[tuple[str, Comeback]]:
    found = evidence.relearning
    return [] if found is None else [("post-training", found.posttraining), ("fine-tuning", found.finetuning)]


def _costs(evidence: Evidence, folder: Path) -> dict[str, float | None]:
    """Rounds after the request and their seconds; of retrainings and ω⁰ only the rounds are known."""
    if (folder / "metrics.jsonl").exists():
        found = summarise(read_run(folder))
        return {"rounds": found["rounds"], "seconds": round(found["seconds"], 1)}
    made = evidence.models["model"]
    return {"rounds": 0 if made.get("made") == "pre-training" else made.get("rounds"), "seconds": None}


def _ends(interval: Any) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return round(value, 5) if isinstance(value, float) else value


def stored(path: Path = STORED) -> list[Audit]:
    """The stored audits; none if there is no file."""
    return list(read_json(path)["audits"]) if path.exists() else []


def renewed(page: str, audits: Sequence[Audit]) -> str:
    """The page with the text between the markers of ``PARTS`` updated; other scripts fill the others."""

    def make(found: Any) -> str:
        part, words = found["part"], found["words"].split()
        return f"{found['begin']}\n{PARTS[part](audits, *words)}\n\n" if part in PARTS else found[0]

    return MARKED.sub(make, page)


def as_csv(audits: Sequence[Audit]) -> str:
    """One line for each audit; the name of a nested number is its path."""
    flat = [dict(_flat(each)) for each in audits]
    text = io.StringIO()
    columns = list(dict.fromkeys(name for each in flat for name in each))
    lines = csv.DictWriter(text, columns, lineterminator="\n")
    lines.writeheader()
    lines.writerows(flat)
    return text.getvalue()


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _flat(each, f"{path}.{key}" if path else key)
    else:
        yield path, " ".join(map(str, value)) if isinstance(value, list) else value


Cell = Callable[[Sequence[Audit]], str]
"""What a cell says of the audits of all seeds."""

LETTERS = {"equivalent": "E", "under": "U", "over": "O", "inconclusive": "I", "no_signal": "NO SIGNAL"}
"""Verdicts in the tables."""


def _table(cells: Mapping[str, Cell]) -> Callable[..., str]:
    """A table of one kind of target: rows are models, and each partition has these columns."""

    def make(audits: Sequence[Audit], kind: str) -> str:
        mine = [each for each in audits if each["column"].startswith(f"{kind}-")]
        if not mine:
            return NOTHING
        columns = list(dict.fromkeys(each["column"] for each in mine))
        titles = [
            ", ".join(filter(None, (column.removeprefix(f"{kind}-"), title)))
            for column in columns
            for title in cells
        ]
        lines = [["", *titles]]
        for row in dict.fromkeys(each["row"] for each in mine):
            name = row if row in REFERENCES.values() else f"`{row}`"
            found = [[each for each in mine if (each["column"], each["row"]) == (c, row)] for c in columns]
            lines.append([name, *(cell(each) if each else "–" for each in found for cell in cells.values())])
        kept = [n for n in range(len(lines[0])) if n == 0 or any(line[n] != "–" for line in lines[1:])]
        return markdown([[line[n] for n in kept] for line in lines]) if len(kept) > 1 else "Not measured."

    return make


def _mean(values: Sequence[float | None], text: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return text(fmean(known)) if known else "–"


def _number(key: str, text: Callable[[float], str]) -> Cell:
    return lambda audits: _mean([each.get(key) for each in audits], text)


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def points(value: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * value:+.1f}".replace("-", "−")


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def _verdicts(audits: Sequence[Audit]) -> str:
    """Mean difference of AUC, and how often each verdict was given."""
    counts = Counter(LETTERS.get(each.get("verdict"), "none") for each in audits)
    told = ", ".join(f"{letter} {count}/{len(audits)}" for letter, count in counts.most_common())
    return f"{_number('difference', signed)(audits)} {told}"


def _tails(audits: Sequence[Audit]) -> str:
    tested = [each for each in audits if "tail_difference" in each]
    alarms = sum(each.get("tail_verdict") in ("under", "over") for each in tested)
    return f"{_number('tail_difference', signed)(tested)} {alarms}/{len(tested)}" if tested else "–"


def _harmed(audits: Sequence[Audit]) -> str:
    known = [len(each["harmed"]) for each in audits if "harmed" in each]
    return f"{fmean(known):.1f}" if known else "–"


def _gap(key: str, text: Callable[[float], str]) -> Cell:
    """The difference of a model to retraining."""

    def cell(audits: Sequence[Audit]) -> str:
        found = [each.get(key, {}) for each in audits]
        known = [each["model"] - each["retrained"] for each in found if {"model", "retrained"} <= each.keys()]
        return _mean(known, text)

    return cell


PARTS: dict[str, Callable[..., str]] = {
    "verdicts": _table({"": _verdicts}),
    "tails": _table({"": _tails}),
    "clients": _table(
        {"R-Acc": _number("r_acc", percent), "worst": _number("worst", percent), "harmed": _harmed}
    ),
    "backdoor": _table({"training": _gap("asr", points), "unseen": _gap("asr_unseen", points)}),
}
"""The parts of the page by the word in their marker, with the kind of targets behind it."""


def main(folders: Sequence[str]) -> None:
    for folder in folders:
        print(store(Path(folder)))
    write(TABLE, as_csv(stored()).encode())
    write(PAGE, renewed(PAGE.read_text(encoding="utf-8"), stored()).encode())


if __name__ == "__main__":
    if len(sys.argv) > 2:
        sys.exit(__doc__)
    try:
        main(sys.argv[1:])
    except FedUnlearnError as error:
        sys.exit(str(error))
