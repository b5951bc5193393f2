"""Probes: conflicts, and measures of one's own."""

from __future__ import annotations

import pytest
import torch
from support.closed_form import CLIENTS, Quadratics, measured, request

from fedunlearn import Conflicts, Outcome, Schedule, Status, method, unlearn
from fedunlearn.core import Stage
from fedunlearn.methods.fedavg import Averaging


@pytest.mark.parametrize(
    "name", ["ascent", "ewcsga", "fedcare", "fupga", "sfu", "not", "reset", "fedrecovery", "puf", "fedkdu"]
)
def test_counting_conflicts_changes_neither_result_nor_cost(name):
    phases = method[name](Schedule(3, 0.05, 3, 0.05))
    plain, counted, silent = (
        unlearn(phases, request(), Quadratics(), probes=probes)
        for probes in ([Conflicts()], [Conflicts(ask=True)], [])
    )
    assert torch.equal(plain.params, counted.params)

    def others(outcome: Outcome) -> list[dict[str, object]]:
        return [{k: v for k, v in row.items() if k != "conflicts"} for row in measured(outcome)]

    assert others(plain) == others(counted) == others(silent)
    unlearning = [row for row in counted.metrics[1:] if row["stage"] == Stage.UNLEARNING]
    assert all("conflicts" in row for row in unlearning)
    assert not all("conflicts" in row for row in plain.metrics[1:])
    assert not any("conflicts" in row for row in silent.metrics)


def test_conflicts_are_those_of_the_retained_clients_at_the_model_before_the_step():
    asked, federation = request(), Quadratics()
    phases = method["not"](Schedule(1, 0.05, 0, 0.05))
    outcome = unlearn(phases, asked, federation, probes=[Conflicts(ask=True)])
    step = outcome.params - asked.params
    against = [float(federation.gradient(client, asked.params) @ step) > 0 for client in asked.retained]
    assert outcome.metrics[1]["conflicts"] == sum(against)


def test_where_nobody_can_say_no_conflicts_are_counted():
    silent = Quadratics(absent={client: [1] for client in CLIENTS})
    phases = method["not"](Schedule(1, 0.05, 2, 0.05))
    outcome = unlearn(phases, request(), silent, probes=[Conflicts(ask=True)])
    assert "conflicts" not in outcome.metrics[1]
    assert outcome.status is Status.DONE


def test_a_probe_of_ones_own_sees_the_round_and_adds_to_its_metrics():
    def probe(round):
        return {
            "moved": float((round.after.params - round.before.params).norm()),
            "who": ",".join(sorted(round.exchanges[0].jobs)),
        }

    outcome = unlearn((Averaging(2, 0.1),), request(), Quadratics(), probes=[probe])
    assert outcome.metrics[1]["moved"] == pytest.approx(outcome.metrics[1]["distance"])
    assert outcome.metrics[1]["who"] == "site-0,site-2,site-3,site-4"
