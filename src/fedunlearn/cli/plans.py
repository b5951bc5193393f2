"""The plan of an erasure on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import out, print_facts, print_table, print_text
from .progress import duration

if TYPE_CHECKING:
    from ..erasure.plan import Plan

BOUND = "≤ "
"""Before numbers that a run may stay below."""


def print_plan(plan: Plan) -> None:
    """What will happen, what it costs and shows, and what stands in its way, which comes last."""
    out.print(f"plan  {plan.method} for {', '.join(plan.targets)}", style="bold", soft_wrap=True)
    print_text(plan.why)
    out.print()
    if plan.phases:
        print_table(_costs(plan))
    print_facts(_facts(plan))
    out.print()
    _print_items("caution", plan.cautions)
    _print_items("problem", plan.problems, style="bold red")
    out.print("ready" if plan.ready else f"not ready: {len(plan.problems)} to solve first", style="bold")


def _costs(plan: Plan) -> list[list[str]]:
    header = ["", "rounds", "rate", "asked", "exchanges", "messages", "MB down", "MB up"]
    rows = [
        [
            phase.stage,
            *_counts(phase.exact, phase.rounds),
            f"{phase.lr:g}",
            f"{phase.asked:,}",
            *_counts(phase.exact, phase.exchanges, phase.messages),
            *_sizes(phase.exact, phase.bytes_down, phase.bytes_up),
        ]
        for phase in plan.phases
    ]
    exact = all(phase.exact for phase in plan.phases)
    totals = {name: plan.total(name) for name in ("exchanges", "messages")}
    sizes = {name: plan.total(name) for name in ("bytes_down", "bytes_up")}
    if len(rows) > 1:
        rounds = _counts(exact, plan.total("rounds"))
        rows.append(
            ["together", *rounds, "", "", *_counts(exact, *totals.values()), *_sizes(exact, *sizes.values())]
        )
    measuring = [f"{plan.measurements:,}", f"{plan.measured_messages:,}"]
    rows.append(["measuring", "", "", "", *measuring, *_sizes(True, plan.measured_bytes), "0.0"])
    return [header, *rows]


def _counts(exact: bool, *counts: int) -> list[str]:
    return [f"{'' if exact else BOUND}{count:,}" for count in counts]


def _sizes(exact: bool, *sizes: int) -> list[str]:
    return [f"{'' if exact else BOUND}{size / 1e6:,.1f}" for size in sizes]


def _facts(plan: Plan) -> list[tuple[str, str]]:
    from ..erasure.plan import online_sentence, recorded_sentence

    rows = [("time", _time(plan)), ("online", online_sentence(plan))]
    if trials := plan.total("trials"):
        most = plan.total("halvings")
        rows.append(
            ("guards", f"{trials:,} of the exchanges try a step; at most {most:,} more if steps are halved")
        )
    rows.append(("recorded", recorded_sentence(plan.recorded)))
    rows += _grouped("reveals", [f"{each.who}: {each.sees}" for each in plan.reveals])
    rows.append(("evidence", f"at most {plan.evidence.claim}"))
    rows += _grouped("", [f"+ {each}" for each in plan.evidence.possible])
    rows += _grouped("", [f"− {each}" for each in plan.evidence.impossible])
    for target, count in plan.evidence.examples.items():
        unseen = plan.evidence.unseen.get(target, "no")
        rows.append(("examples", f"{target}: {count} training and {unseen} test examples"))
    return rows


def _time(plan: Plan) -> str:
    if plan.seconds is None or plan.timing is None:
        return "not measured"
    timing = plan.timing
    return (
        f"about {duration(plan.seconds)}: training took {timing.training:.2g} s with {timing.clients} "
        f"clients, measuring {timing.evaluation:.2g} s"
    )


def _grouped(title: str, lines: list[str]) -> list[tuple[str, str]]:
    return [(title if not number else "", line) for number, line in enumerate(lines)]


def _print_items(title: str, items: tuple[str, ...], style: str = "bold") -> None:
    for item in items:
        out.print(title, style=style, end="  ")
        print_text(item)
    if items:
        out.print()
