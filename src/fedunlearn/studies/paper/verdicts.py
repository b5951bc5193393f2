"""Verdicts on the paper's claims, judged by our results and by the paper's own numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from .claims import ELSEWHERE, LACKING, Claim, claims
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


def as_csv(judged: Mapping[str, Sequence[Judgement]]) -> str:
    """One line for each claim, column and scale that were run."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("scale", "claim", "column", "verdict", "seeds", "agree", "ours", *PRINTED))
    for scale, judgements in judged.items():
        for one in judgements:
            if one.verdict is not Verdict.MISSING:
                ours = one.verdict.value, len(one.alone), sum(vote is one.verdict for vote in one.alone)
                paper = one.on_paper.value, one.paper_evidence, one.claim.where, one.claim.says
                lines.writerow((scale, one.claim.id, one.column, *ours, one.evidence, *paper))
    return text.getvalue()


PRINTED = ("verdict_on_paper", "paper", "where", "says")
"""The columns of the paper: whether its own numbers support the claim, these numbers, and the sentence."""
