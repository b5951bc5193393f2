"""One page about a run that can be read without the program."""

from __future__ import annotations

from pathlib import Path

from ..record import write
from .runs import read_run, setting
from .tables import markdown, table, verdict

ASKED = (
    ("request", "level"),
    ("method",),
    ("data", "clients"),
    ("data", "dataset"),
    ("data", "partition"),
    ("model",),
    ("seed",),
)


def page(folder: Path) -> Path:
    """Writes ``report.md``: what was asked, how it ended, the stages, the curves, and how to do it again."""
    run = read_run(folder)
    given = {keys[-1]: setting(run.config, *keys) for keys in ASKED}
    asked = ", ".join(f"{key} `{value}`" for key, value in given.items() if value is not None)
    drawn = (folder / "curves.svg").exists()
    curves = (
        "![ASR, R-Acc and distance over the rounds](curves.svg)"
        if drawn
        else "(No figure: matplotlib is missing.)"
    )
    text = f"""# {run.config.get("name", folder.name)}

{verdict(folder)}

{markdown(table(folder))}

{curves}

- Asked: {asked or "unknown"}; every setting is in `experiment.json`.
- Ended: `{run.outcome["status"]}`; SHA-256 of the model: `{run.outcome["model_sha256"]}`.
- Made with: {", ".join(f"{name} {value}" for name, value in run.environment.items())}.

ASR: share of the target's triggered pictures that get the attacker's label. R-Acc: accuracy of the retained
clients on their own test data; worst and best are single clients. Target clean: accuracy on the target's own
test data. Distance: Euclidean distance to the parameters before the request (ω⁰). NC: retained clients whose
loss a step raised, to first order; mean over the rounds.
"""
    write(folder / "report.md", text.encode())
    return folder / "report.md"
