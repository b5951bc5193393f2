"""One page about a run that can be read without the program."""

from __future__ import annotations

from pathlib import Path

from ..record import read_json, read_outcome, write
from .tables import markdown, stages


def page(folder: Path) -> Path:
    """Writes ``report.md``: what was asked, how it ended, the stages, the curves, and how to do it again."""
    experiment, environment = read_json(folder / "experiment.json"), read_json(folder / "environment.json")
    outcome = read_outcome(folder)
    data = experiment["data"]
    asked = ", ".join(
        f"{name} `{value}`"
        for name, value in {
            "level": experiment["request"]["level"],
            "method": experiment["method"],
            "clients": data["clients"],
            "dataset": data["dataset"],
            "partition": data["partition"],
            "model": experiment["model"],
            "seed": experiment["seed"],
        }.items()
    )
    drawn = (folder / "curves.svg").exists()
    curves = (
        "![ASR, R-Acc and distance over the rounds](curves.svg)"
        if drawn
        else "(No figure: matplotlib is missing.)"
    )
    text = f"""# {experiment["name"]}

{verdict(folder)}

{markdown(folder)}

{curves}

- Asked: {asked}; every setting is in `experiment.json`.
- Ended: `{outcome["status"]}`; SHA-256 of the model: `{outcome["model_sha256"]}`.
- Made with: {", ".join(f"{name} {value}" for name, value in environment.items())}.

ASR: share of the target's triggered pictures that get the attacker's label. R-Acc: accuracy of the retained
clients on their own test data; worst and best are single clients. Target clean: accuracy on the target's own
test data. Distance: Euclidean distance to the parameters before the request (ω⁰). NC: retained clients whose
loss a step raised, to first order; mean over the rounds.
"""
    write(folder / "report.md", text.encode())
    return folder / "report.md"


def verdict(folder: Path) -> str:
    """What happened, in one sentence of plain words."""
    rows = list(stages(folder).values())
    first, last = rows[0], rows[-1]
    utility = (
        f"retained clients' accuracy went from {float(first['r_acc']):.1%} to {float(last['r_acc']):.1%}"
    )
    for key, what in (("asr", "The backdoor works on"), ("forget_acc", "The model is right on")):
        if key in first:
            now, before = float(last[key]), float(first[key])
            return f"{what} {now:.1%} of the forgotten data (before: {before:.1%}); the {utility}."
    return f"The {utility}."
