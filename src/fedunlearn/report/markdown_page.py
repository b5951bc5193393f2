"""A Markdown page about one run."""

from __future__ import annotations

from pathlib import Path

from ..measure.metrics import metric
from ..record import write
from .account import conclusion, markdown_account
from .conclusions import in_turn, verdict
from .evidence import read_evidence
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
    """Writes ``report.md``: the result, the stages, the curves, the request, the environment, the audit."""
    given = {keys[-1]: setting(run.config, *keys) for keys in ASKED}
    asked = ", ".join(f"{key} `{value}`" for key, value in given.items() if value is not None)
    drawn = (run.folder / "curves.svg").exists()
    audit = read_evidence(run.folder)
    judged = "" if audit is None else f"**{conclusion(audit)}**\n\n"
    evidence = "" if audit is None else f"\n{markdown_account(audit)}\n"
    meanings = "\n".join(f"- **{metric(key).title}**: {metric(key).help}" for key in stage_keys(run.stages))
    text = f"""# {run.config.get("name", run.folder.name)}

{judged}{verdict(run)}

{markdown(stage_table(run))}

{"![Scores and distance over the rounds](curves.svg)" if drawn else "(No figure: matplotlib is missing.)"}

- Request: forget {in_turn(run)}; {asked or "settings unknown"}. Every setting is in `experiment.json`.
- Ended: `{run.outcome["status"]}`; SHA-256 of the model: `{run.outcome["model_sha256"]}`.
- Environment: {", ".join(f"{name} {value}" for name, value in run.environment.items())}.
- Files: {"as listed in `manifest.json`" if run.verified else "not verified, for want of a manifest"}.

{meanings}
{evidence}"""
    path = run.folder / "report.md"
    write(path, text.encode())
    return path
