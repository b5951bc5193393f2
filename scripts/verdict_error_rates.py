"""Error rates and power of the verdicts, by simulation.

Run ``python scripts/verdict_error_rates.py``; it takes about a minute of CPU time. ``--simulations`` and
``--seed`` change the default of 1,000 simulations from seed 1.

What is simulated: the calibrated losses of an example under the model, under the retrained model (or two) and
under the model before unlearning (ω⁰) are normal numbers of variance 1. Each pair has the correlation ρ,
because all contain what is left of the example's difficulty and the same references. Forgotten examples are
shifted down by μ = √2 Φ⁻¹(AUC) under the model and likewise under ω⁰; the retrained models are not shifted,
their AUC is 0.5.

Calibrated losses of real models have longer tails, but an AUC and its DeLong variance depend on ranks alone:
a rising function of the numbers leaves the table as it is. Another form of memory does not, so two rows
remember a tenth or a fifth of the forgotten examples strongly instead of all of them slightly, with the same
AUC.

The verdict is the product's own, ``fedunlearn.evidence.decide``, with its power gate, but without a minimum
of examples. Rows with equal sizes and AUC use the same random numbers.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from fedunlearn.evidence import Paired, Scores, Verdict, decide, paired_auc


@dataclass(frozen=True)
class World:
    """What is simulated: sample sizes, the true AUCs and the correlation of the two models."""

    forgotten: int
    unseen: int
    auc: float
    original: float = 0.60
    correlation: float = 0.5
    memorised: float = 1.0
    """The share of forgotten examples that the model remembers."""
    margin: float = 0.05
    retrainings: int = 1
    """The AUC of two is their mean."""


@dataclass(frozen=True)
class Rates:
    """Shares of the verdicts, and how often the 90 % interval covered the true difference."""

    verdicts: dict[Verdict, float]
    covered: float


def simulate(world: World, simulations: int, seed: int) -> Rates:
    """Judge that many drawn worlds."""
    rng = np.random.default_rng([seed, world.forgotten, world.unseen, round(1000 * world.auc)])
    shift, before = _shift(world.auc, world.memorised), _shift(world.original, 1.0)
    remembered = np.arange(world.forgotten) < round(world.memorised * world.forgotten)
    verdicts: Counter[Verdict] = Counter()
    covered = 0
    for _ in range(simulations):
        rows = 2 + world.retrainings
        forgotten = _draw(rng, world.forgotten, world.correlation, rows)
        unseen = _draw(rng, world.unseen, world.correlation, rows)
        forgotten[0] -= shift * remembered
        forgotten[2] -= before
        model, original = _compare(forgotten, unseen, 0), _compare(forgotten, unseen, 2)
        found = decide(model, original, margin=world.margin, minimum=0)
        assert found.verdict is not None
        assert found.difference_interval is not None
        verdicts[found.verdict] += 1
        covered += world.auc - 0.5 in found.difference_interval
    return Rates({verdict: verdicts[verdict] / simulations for verdict in Verdict}, covered / simulations)


def _draw(rng: np.random.Generator, size: int, correlation: float, rows: int) -> NDArray[np.float64]:
    """Rows: the model, the retrained model, the model before unlearning, and a second retrained model."""
    common, own = rng.standard_normal(size), rng.standard_normal((rows, size))
    return np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own


def _compare(forgotten: NDArray[np.float64], unseen: NDArray[np.float64], row: int) -> Paired:
    return paired_auc(*(Scores(forgotten[each], unseen[each]) for each in (row, 1, *range(3, len(unseen)))))


def _shift(auc: float, share: float) -> float:
    """How far remembered scores move so that the AUC over all forgotten examples is as asked."""
    target = 0.5 + (auc - 0.5) / share
    return float(np.sqrt(2) * NormalDist().inv_cdf(target))


SIZES = (300, 600, 1000)
WORLDS = [
    *(World(n, n, auc) for auc in (0.50, 0.55, 0.60) for n in SIZES),
    *(World(n, n, 0.45) for n in SIZES),
    *(World(n, n, auc, retrainings=2) for auc in (0.50, 0.55, 0.60) for n in SIZES),
    *(World(600, 600, auc, correlation=rho) for rho in (0.0, 0.8) for auc in (0.50, 0.55, 0.60)),
    *(World(600, 5000, auc) for auc in (0.50, 0.55, 0.60)),
    *(World(600, 600, auc, memorised=0.1 if auc == 0.52 else 0.2) for auc in (0.52, 0.55)),
    *(World(60, 500, auc) for auc in (0.50, 0.60)),
    *(World(600, 600, 0.50, original=original) for original in (0.50, 0.52, 0.55)),
    *(World(5000, 5000, auc, margin=0.02) for auc in (0.50, 0.52)),
]


def table(simulations: int, seed: int, worlds: list[World] = WORLDS) -> str:
    """The rates as a Markdown table, in percent."""
    head = ["n_u", "n_h", "AUC", "ω⁰", "ρ", "remembered", "margin", "retrained"]
    titles = [*head, *(str(verdict) for verdict in Verdict), "covered"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for world in worlds:
        rates = simulate(world, simulations, seed)
        cells = [
            f"{world.forgotten}",
            f"{world.unseen}",
            f"{world.auc:.2f}",
            f"{world.original:.2f}",
            f"{world.correlation:g}",
            f"{world.memorised:.0%}",
            f"{world.margin:g}",
            f"{world.retrainings}",
            *(f"{100 * rates.verdicts[verdict]:.1f}" for verdict in Verdict),
            f"{100 * rates.covered:.1f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="error rates and power of the verdicts")
    parser.add_argument("--simulations", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    start = time.process_time()
    print(table(arguments.simulations, arguments.seed))
    seconds = time.process_time() - start
    print(
        f"\n{arguments.simulations:,} simulations a row, seed {arguments.seed}, {seconds:.0f} s of CPU time"
    )


if __name__ == "__main__":
    main()
