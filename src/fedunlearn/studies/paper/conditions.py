"""Conditions on the numbers of results, such as "at most"; each reports the numbers that decided it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from ...measures.metrics import metric
from ...report.summary import mean
from .results import Result, Results


class Verdict(StrEnum):
    """The result of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    MISSING = "not run"


@dataclass(frozen=True)
class Seen:
    """The text and the value of a number, the mean over seeds; the value is None if it was not measured."""

    text: str
    value: float | None


class Found(NamedTuple):
    """A verdict, the numbers that decided it or that it lacks, and all missing numbers."""

    verdict: Verdict
    texts: tuple[str, ...]
    missing: frozenset[str] = frozenset()


Check = Callable[[Results, str], Found]
"""Takes results and a column."""


@dataclass(frozen=True)
class Term:
    """A number of a row, read from results and a column."""

    row: str
    read: Callable[[Results, str], Seen]


def score(key: str, stage: int, row: str) -> Term:
    """A score at the end of stage 0, 1 or 2, or the last score of a failed run that did not reach it."""

    def read(results: Results, column: str) -> Seen:
        runs = results.of(column, row)
        value = mean([run.stage(stage) for run in runs], key)
        return _seen(f"{row} {metric(key).title}{'⁰¹²'[stage]}", value, runs if stage else ())

    return Term(row, read)


def cost(key: str, row: str) -> Term:
    """A cost of a whole run. Times are those of the fastest seed, which other load disturbed least.

    Runs with all of their rounds take precedence over runs that stopped or failed. A time of 0 is missing.
    """

    def read(results: Results, column: str) -> Seen:
        runs = results.of(column, row)
        if key == "conflicts":
            value = mean([run.cost for run in runs], key)
        else:
            timed = [run for run in runs if run.cost.get(key)]
            whole = [run for run in timed if not run.failed and not run.stopped]
            fastest = min(whole or timed, key=lambda run: run.cost.get("seconds", 0.0), default=None)
            value = fastest.cost[key] if fastest else None
        return _seen(f"{row} {metric(key).title}", value, runs)

    return Term(row, read)


def course(key: str, share: float, row: str) -> Term:
    """A score at the first evaluation after this share of the unlearning rounds, or at their end."""

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
    failures = ", ".join(f"{count} of {len(runs)} {status}" for status, count in failed.items())
    return Seen(f"{name} {text}" + (f" ({failures})" if failures else ""), value)


def at_most(left: Term, right: float | Term, *, plus: float = 0.0, times: float = 1.0) -> Check:
    """Left is at most ``times`` right plus ``plus``, on the seeds that both have."""

    def check(results: Results, column: str) -> Found:
        rows = {term.row for term in (left, right) if isinstance(term, Term)}
        seeds = set.intersection(*({run.seed for run in results.of(column, row)} for row in rows))
        if seeds:
            results = replace(results, runs=[run for run in results.runs if run.seed in seeds])
        a = left.read(results, column)
        b = right.read(results, column) if isinstance(right, Term) else Seen("", right)
        missing = tuple(seen.text for seen in (a, b) if seen.value is None)
        if not missing and not seeds:
            missing = (f"no common seed of {' and '.join(sorted(rows))}",)
        if a.value is None or b.value is None or not seeds:
            return Found(Verdict.MISSING, missing, frozenset(missing))
        excess = round(a.value - times * b.value - plus, 4)  # stored numbers have one more digit
        texts = tuple(seen.text for seen in (a, b) if seen.text)
        return Found(Verdict.HOLDS if excess <= 0 else Verdict.FAILS, texts)

    return check


def above(left: Term, right: float | Term, *, plus: float = 0.0, times: float = 1.0) -> Check:
    """Left is more than ``times`` right plus ``plus``."""
    other = {Verdict.HOLDS: Verdict.FAILS, Verdict.FAILS: Verdict.HOLDS, Verdict.MISSING: Verdict.MISSING}

    def check(results: Results, column: str) -> Found:
        found = at_most(left, right, plus=plus, times=times)(results, column)
        return found._replace(verdict=other[found.verdict])

    return check


def every(checks: Iterable[Check]) -> Check:
    """All checks hold. A failing check decides, else a missing one."""
    return _first((Verdict.FAILS, Verdict.MISSING, Verdict.HOLDS), tuple(checks))


def some(checks: Iterable[Check]) -> Check:
    """At least one check holds. A holding check decides, else a missing one."""
    return _first((Verdict.HOLDS, Verdict.MISSING, Verdict.FAILS), tuple(checks))


def _first(order: Sequence[Verdict], checks: Sequence[Check]) -> Check:
    def check(results: Results, column: str) -> Found:
        found = [part(results, column) for part in checks]
        verdict = next(one for one in order if any(part.verdict is one for part in found))
        texts = dict.fromkeys(text for part in found if part.verdict is verdict for text in part.texts)
        return Found(verdict, tuple(texts), frozenset().union(*(part.missing for part in found)))

    return check


def anywhere(columns: Iterable[str], check: Check) -> Check:
    """The check holds in at least one of these columns, whatever column is given."""

    def within(column: str) -> Check:
        def bound(results: Results, _: str) -> Found:
            found = check(results, column)
            texts = tuple(f"{column}: {text}" for text in found.texts)
            return Found(found.verdict, texts, frozenset(f"{column}: {text}" for text in found.missing))

        return bound

    return some(within(column) for column in columns)
