"""Verdicts on the paper's claims, judged by our results and by the paper's own numbers."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from .claims import ELSEWHERE, KINDS, LACKING, Claim, claims
from .conditions import Verdict
from .paper import as_results
from .results import Results


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim in one column; ``on_paper`` is the same check on the paper's own numbers."""

    claim: Claim
    column: str
    alone: Sequence[Verdict]
    """The verdicts of single seeds, except those that lack numbers; ``verdict`` uses the means."""
    verdict: Verdict
    evidence: str
    on_paper: Verdict
    paper_evidence: str

    @property
    def unanimous(self) -> bool:
        return all(one is self.verdict for one in self.alone)

    @property
    def kind(self) -> str:
        return ELSEWHERE if self.column in LACKING else self.claim.kind


def judge(results: Results) -> list[Judgement]:
    """Every claim in every column that it concerns."""
    alone = [
        replace(results, runs=[run for run in results.runs if run.seed == seed])
        for seed in sorted({run.seed for run in results.runs})
    ]
    return [_judged(claim, column, results, alone) for claim in claims for column in claim.columns]


def _judged(claim: Claim, column: str, results: Results, alone: Sequence[Results]) -> Judgement:
    verdict, texts, lacking = claim.check(results, column)
    found = [claim.check(seed, column) for seed in alone]
    votes = [one.verdict for one in found if one.verdict is not Verdict.MISSING or one.missing == lacking]
    on_paper, printed, _ = claim.check(as_results(), column)
    return Judgement(
        claim,
        column,
        () if verdict is Verdict.MISSING else votes,
        verdict,
        ", ".join(texts),
        on_paper,
        ", ".join(printed),
    )


def tally(judgements: Sequence[Judgement]) -> str:
    """The number of claims that hold and fail, by kind."""
    return " ".join(
        f"Of {kind}, {_count([one for one in judgements if one.kind == kind])}."
        for kind in (*KINDS, ELSEWHERE)
    )


def _count(judgements: Sequence[Judgement]) -> str:
    count = Counter(one.verdict for one in judgements)
    divided = sum(not one.unanimous for one in judgements)
    apart = (
        f" (in {divided} of these the seeds disagree)"
        if any(len(one.alone) > 1 for one in judgements)
        else ""
    )
    return (
        f"{count[Verdict.HOLDS]} hold and {count[Verdict.FAILS]} fail{apart}; "
        f"{count[Verdict.MISSING]} were not run"
    )


def markdown(judgements: Sequence[Judgement]) -> str:
    """The counts, then the claims that fail, that hold and that were not run."""
    parts = [tally(judgements)]
    for verdict, title in ((Verdict.FAILS, "Fails"), (Verdict.HOLDS, "Holds")):
        judged = [one for one in judgements if one.verdict is verdict]
        parts += [f"**{title}**", _table(judged)] if judged else []
    unseen: dict[str, list[str]] = defaultdict(list)
    for one in judgements:
        if one.verdict is Verdict.MISSING:
            unseen[one.claim.id].append(one.column)
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for name, columns in unseen.items():
        groups[tuple(columns)].append(f"`{name}`")
    parts += [f"Not run in {', '.join(columns)}: {', '.join(names)}." for columns, names in groups.items()]
    unsupported = [
        f"`{one.claim.id}` in {one.column} ({one.paper_evidence})"
        for one in judgements
        if one.verdict is Verdict.MISSING and one.on_paper is Verdict.FAILS
    ]
    parts += (
        [f"Not run, and not supported by the paper's own numbers: {'; '.join(unsupported)}."]
        if unsupported
        else []
    )
    return "\n\n".join(parts)


def _table(judgements: Iterable[Judgement]) -> str:
    lines = [
        "| claim | column | seeds that agree | our numbers | the paper's numbers |",
        "|---|---|---:|---|---|",
    ]
    explained: set[str] = set()
    for one in judgements:
        sentence = f": {one.claim.says} ({one.claim.where})" if one.claim.id not in explained else ""
        explained.add(one.claim.id)
        agree = f"{sum(vote is one.verdict for vote in one.alone)} of {len(one.alone)}"
        lines.append(
            f"| {' | '.join((f'`{one.claim.id}`{sentence}', one.column, agree, one.evidence, _own(one)))} |"
        )
    return "\n".join(lines)


def _own(one: Judgement) -> str:
    if one.on_paper is Verdict.FAILS:
        return f"do not support it: {one.paper_evidence}"
    return "not printed" if one.on_paper is Verdict.MISSING else "support it"
