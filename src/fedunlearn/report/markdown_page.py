"""A Markdown page about one run."""

from __future__ import annotations

from pathlib import Path

from ..measure.metrics import metric
from ..record import write
from .conclusions import forgotten, verdict
from .runs import Run
from .settings import setting
from .tables import markdown, stage_keys, stage_table

ASKED = (
    ("request", "level"),
    ("method",),
    ("data", "clients"),
    ("data", "dataset"),
    ("data", "partition"),
    ("model",),
    ("seed",),
)


def write_markdown_page(run: Run) -> Path:
    """Writes ``report.md``: the result, the stages, the curves, the request and the environment."""
    given = {keys[-1]: setting(run.config, *keys) for keys in ASKED}
    asked = ", ".join(f"{key} `{value}`" for key, value in given.items() if value is not None)
    drawn = (run.folder / "curves.svg").exists()
    meanings = "\n".join(f"- **{metric(key).title}**: {metric(key).help}" for key in stage_keys(run.stages))
    text = f"""# {run.config.get("name", run.folder.name)}

{verdict(run)}

{markdown(stage_table(run))}

{"![Scores and distance over the rounds](curves.svg)" if drawn else "(No figure: matplotlib is missing.)"}

- Request: forget {forgotten(run)}; {asked or "settings unknown"}. Every setting is in `experiment.json`.
- Ended: `{run.outcome["status"]}`; SHA-256 of the model: `{run.outcome["model_sha256"]}`.
- Environment: {", ".join(f"{name} {value}" for name, value in run.environment.items())}.

{meanings}
"""
    path = run.folder / "report.md"
    write(path, text.encode())
    return path
