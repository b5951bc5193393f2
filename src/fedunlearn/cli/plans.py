"""The plan of an erasure on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .console import out, print_facts, print_text

if TYPE_CHECKING:
    from ..erasure.plan import Plan


def print_plan(plan: Plan) -> None:
    """Print what will happen, what it costs and reveals, and last whatever keeps it from beginning."""
    out.print(f"plan  {plan.method} for {', '.join(plan.targets)}", style="bold", soft_wrap=True)
    print_text(plan.why)
    out.print()
    print_facts(
        ("" if number and plan.facts[number - 1][0] == title else title, fact)
        for number, (title, fact) in enumerate(plan.facts)
    )
    out.print()
    for title, sentences in (("caution", plan.cautions), ("problem", plan.problems)):
        for sentence in sentences:
            out.print(title, style="bold red" if title == "problem" else "bold", end="  ")
            print_text(sentence)
        if sentences:
            out.print()
    out.print("ready" if plan.ready else f"not ready: {len(plan.problems)} to solve first", style="bold")
