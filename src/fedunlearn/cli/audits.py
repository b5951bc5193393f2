"""The command ``audit``: what clients find about the model of a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .console import out, print_table, print_text
from .ending import Interrupted, fail
from .options import Use, Workers
from .runs import write_html

if TYPE_CHECKING:
    from ..evidence import Evidence, Finding, TargetEvidence


def audit(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.", show_default=False)
    ],
    against: Annotated[
        Path | None,
        typer.Option(
            help="Run folder of a retraining with the same data; without it, two retrainings are made.",
            show_default=False,
        ),
    ] = None,
    again: Annotated[
        Path | None,
        typer.Option(help="Run folder of a second retraining (options.number=2).", show_default=False),
    ] = None,
    twins: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Number of twins that calibrate losses; 2 by default if data.twins is set, else 0.",
            show_default=False,
        ),
    ] = None,
    margin: Annotated[
        float, typer.Option(help="The largest difference of AUC that counts as equivalent.")
    ] = 0.05,
    relearn: Annotated[
        int,
        typer.Option(
            min=0,
            metavar="ROUNDS",
            help="Also measure how soon the forgotten returns, within this many rounds.",
        ),
    ] = 0,
    workers: Workers = None,
    use: Use = None,
) -> None:
    """Test whether runs have forgotten their targets as a retraining would have, no more and no less.

    Writes evidence.json into each run folder, and its report anew. Retrainings and twins are trained as long
    as ω⁰ and kept in the cache.
    """
    from ..core import FedUnlearnError
    from ..experiment import audit_with, standard
    from ..report.evidence import verdict_text
    from .progress import Display

    if again is not None and against is None:
        raise FedUnlearnError("--again names a second retraining: name the first with --against")
    verdicts = {}
    for run in dict.fromkeys(runs):
        if len(runs) > 1:
            out.print(f"\n{run}", style="bold", soft_wrap=True)
        try:
            wanted = standard(run, against, again=again, twins=twins, margin=margin, relearn=relearn)
            with Display(out, wanted.missing) as display:
                found = audit_with(wanted, run, display.run, workers=workers)
        except Interrupted as stop:
            fail(f"{stop}; the same command continues", stop.code)
        _print_evidence(found, run)
        verdicts[run] = verdict_text(found.verdict)
    if len(verdicts) > 1:
        out.print()
        print_table([["run", "verdict"], *([str(run), verdict] for run, verdict in verdicts.items())])


def _print_evidence(found: Evidence, run: Path) -> None:
    from ..report import collect
    from ..report.account import clients, further_measures

    out.print()
    for target, evidence in found.targets.items():
        out.print(f"target {target}", soft_wrap=True)
        print_table(_target_table(evidence))
        if measured := further_measures(found, target):
            print_table(measured)
    for measure in found.influence:
        out.print(f"{measure} of each client on unseen data")
        print_table(clients(found, [measure]))
    for sentence in found.sentences:
        print_text(sentence)
    out.print(f"\nevidence  {run / 'evidence.json'}", soft_wrap=True)
    write_html(collect([run]), run)


def _target_table(evidence: TargetEvidence) -> list[list[str]]:
    header = ["", "AUC", "90 % interval", "to retraining", "95 % interval", "forgotten", "unseen", "verdict"]
    judged = evidence.finding.verdict is not None
    rows = {
        "model": evidence.finding,
        "ω⁰": evidence.original,
        "model, hardest examples": evidence.tail,
        "model, plain losses": evidence.losses if judged else None,
    }
    return [header, *([name, *_row(finding)] for name, finding in rows.items() if finding is not None)]


def _row(finding: Finding) -> list[str]:
    from ..report.account import alarm
    from ..report.evidence import verdict_text

    raises_alarms_only = finding.verdict is not None and finding.margin is None
    return [
        f"{finding.auc:.3f}",
        str(finding.interval),
        "-" if finding.difference is None else f"{finding.difference:+.3f}",
        _alarm(finding),
        f"{finding.n_forgotten:,}",
        f"{finding.n_unseen:,}",
        alarm(finding) if raises_alarms_only else verdict_text(finding.verdict),
    ]


def _alarm(finding: Finding) -> str:
    """The interval of alarms, with its level where several targets raise it."""
    interval = finding.alarm_interval
    if interval is None:
        return "-"
    return str(interval) if interval.level == 0.95 else f"{interval} at {100 * interval.level:.3g} %"
