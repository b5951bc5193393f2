"""Conditions on the numbers of results, such as "at most"; each says which numbers decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from ..measure.metrics import metric
from ..report.summary import mean
from .results import Result, Results


class Verdict(StrEnum):
    """How a check came out."""

    HOLDS = "holds"
    FAILS = "fails"
    MISSING = "not run"


@dataclass(frozen=True)
class Seen:
    """A number, the mean over seeds, as it is shown; no value where nothing was measured."""

    text: str
    value: float | None


class Found(NamedTuple):
    """A verdict, the numbers that decided it or are missing for it, and all that are missing."""

    verdict: Verdict
    texts: tuple[str, ...]
    missing: frozenset[str] = frozenset()


Check = Callable[[Results, str], Found]
"""From results and a column."""


@dataclass(frozen=True)
class Term:
    """A number of a row, read from results and a column."""

    row: str
    read: Callable[[Results, str], Seen]


def score(key: str, stage: int, row: str) -> Term:
    """At the end of a stage, 0 to 2; a failed run that did not reach it counts as it ended."""

    def read(results: Results, column: str) -> Seen:
        runs = results.of(column, row)
        value = mean([run.stage(stage) for run in runs], key)
        return _seen(f"{row} {metric(key).title}{'⁰¹²'[stage]}", value, runs if stage else ())

    return Term(row, read)


def cost(key: str, row: str) -> Term:
    """Of a whole run; of seconds that of the quickest seed, which a busy machine disturbed least; 0 is none.

    Runs that had all of their rounds come before those that stopped or failed.
    """

    def read(results: Results, column: str) -> Seen:
        runs = results.of(column, row)
        if key == "conflicts":
            value = mean([run.cost for run in runs], key)
        else:
            timed = [run for run in runs if run.cost.get(key)]
            whole = [run for run in timed if not run.failed and not run.stopped]
            quickest = min(whole or timed, key=lambda run: run.cost.get("seconds", 0.0), default=None)
            value = quickest.cost[key] if quickest else None
        return _seen(f"{row} {metric(key).title}", value, runs)

    return Term(row, read)


def course(key: str, share: float, row: str) -> Term:
    """When first evaluated after this share of the rounds of unlearning, or at its end if that is earlier."""

    def read(results: Results, column: str) -> Seen:
        runs = results.of(column, row)
        planned = results.settings.get(column, {}).get("unlearning", 0)
        start = max(1.0, share * planned)
        found: list[tuple[float, float]] = []
        for run in runs:
            pairs = zip(run.course.get("rounds", ()), run.course.get(key, ()), strict=True)
            known = [(at, value) for at, value in pairs if at and at <= run.turn and value is not None]
            due = [pair for pair in known if pair[0] >= start] or known[-1:]
            found += due[:1]
        rounds = " and ".join(f"{at:g}" for at in sorted({at for at, _ in found})) or f"{start:g}"
        value = mean([{key: value} for _, value in found], key)
        return _seen(f"{row} {metric(key).title} after {rounds} rounds", value, runs)

    return Term(row, read)


def _seen(name: str, value: float | None, runs: Sequence[Result]) -> Seen:
    if value is None:
        return Seen(f"no {name}", None)
    text = f"{value:.3f}".removeprefix("0") if value < 10 else f"{value:.1f}"
    failed = Counter(run.status for run in runs if run.failed)
    said = ", ".join(f"{count} of {len(runs)} {status}" for status, count in failed.items())
    return Seen(f"{name} {text}" + (f" ({said})" if said else ""), value)


def at_most(left: Term, right: float | Term, *, plus: float = 0.0, times: float = 1.0) -> Check:
    """The left is no more than ``times`` the right plus ``plus``, on the seeds that both have."""

    def check(results: Results, column: str) -> Found:
        rows = {term.row for term in (left, right) if isinstance(term, Term)}
        seeds = set.intersection(*({run.seed for run in results.of(column, row)} for row in rows))
        if seeds:
            results = replace(results, runs=[run for run in results.runs if run.seed in seeds])
        a = left.read(results, column)
        b = right.read(results, column) if isinstance(right, Term) else Seen("", right)
        missing = tuple(seen.text for seen in (a, b) if seen.value is None)
        if not missing and not seeds:
            missing = (f"no seed of both {' and '.join(sorted(rows))}",)
        if a.value is None or b.value is None or not seeds:
            return Found(Verdict.MISSING, missing, frozenset(missing))
        excess = round(a.value - times * b.value - plus, 4)  # stored numbers have one digit more
        texts = tuple(seen.text for seen in (a, b) if seen.text)
        return Found(Verdict.HOLDS if excess <= 0 else Verdict.FAILS, texts)

    return check


def above(left: Term, right: float | Term, *, plus: float = 0.0, times: float = 1.0) -> Check:
    """The left is more than ``times`` the right plus ``plus``."""
    other = {Verdict.HOLDS: Verdict.FAILS, Verdict.FAILS: Verdict.HOLDS, Verdict.MISSING: Verdict.MISSING}

    def check(results: Results, column: str) -> Found:
        found = at_most(left, right, plus=plus, times=times)(results, column)
        return found._replace(verdict=other[found.verdict])

    return check


def every(checks: Iterable[Check]) -> Check:
    """One that fails decides; after it, one that is missing."""
    return _first((Verdict.FAILS, Verdict.MISSING, Verdict.HOLDS), tuple(checks))


def some(checks: Iterable[Check]) -> Check:
    """One that holds decides; after it, one that is missing."""
    return _first((Verdict.HOLDS, Verdict.MISSING, Verdict.FAILS), tuple(checks))


def _first(order: Sequence[Verdict], checks: Sequence[Check]) -> Check:
    def check(results: Results, column: str) -> Found:
        found = [part(results, column) for part in checks]
        verdict = next(one for one in order if any(part.verdict is one for part in found))
        texts = dict.fromkeys(text for part in found if part.verdict is verdict for text in part.texts)
        return Found(verdict, tuple(texts), frozenset().union(*(part.missing for part in found)))

    return check


def anywhere(columns: Iterable[str], check: Check) -> Check:
    """In at least one of these columns, whichever is asked for."""

    def within(column: str) -> Check:
        def bound(results: Results, _: str) -> Found:
            found = check(results, column)
            texts = tuple(f"{column}: {text}" for text in found.texts)
            return Found(found.verdict, texts, frozenset(f"{column}: {text}" for text in found.missing))

        return bound

    return some(within(column) for column in columns)
