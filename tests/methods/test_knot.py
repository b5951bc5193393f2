from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import CLIENTS, PUBLIC, Quadratics, fresh, jobs_of, pretrained, request
from support.codes import refused

from fedunlearn import History, Request, Schedule, State, Status, method, unlearn
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.methods.knot import ClusteredPretraining, ClusterRetraining, clusters

TARGET = "site-1"


def asked(count: int = 2, targets=(TARGET,)) -> Request:
    state = pretrained(clusters=count)
    return replace(request(targets=targets), params=state.params, history=History.from_tensors(state.memory))


def models(request: Request) -> dict[str, torch.Tensor]:
    return {name: model for name, model in request.history.shared.items() if name.startswith("cluster-")}


def mean(*vectors: torch.Tensor) -> torch.Tensor:
    return torch.stack(vectors).mean(0)


def test_clusters_are_even_and_stable():
    member = clusters([f"client-{number}" for number in range(10)], 3)
    sizes = [list(member.values()).count(name) for name in set(member.values())]
    assert sorted(sizes) == [3, 3, 4]
    assert clusters(reversed(list(member)), 3) == member


def test_clients_stay_where_pre_training_had_them():
    phase, asked = ClusterRetraining(3, 0.1), request()
    state = phase.start(asked, State(asked.params))
    member = clusters(CLIENTS, 2)
    hit = {c for c in CLIENTS if member[c] == member[TARGET]} - {TARGET}
    assert set(jobs_of(phase, asked, state)) == hit
    later = replace(asked, clients=tuple(c for c in CLIENTS if c != "site-0"))
    assert set(jobs_of(phase, later, state)) == hit - {"site-0"}
    virtual = (*(c for c in CLIENTS if c != TARGET), TARGET, f"{TARGET}#forget")
    assert set(jobs_of(phase, replace(asked, clients=virtual, targets=virtual[-1:]), state)) == hit | {TARGET}


def test_pre_training_never_mixes_clusters():
    for name, own in (("cluster-0", {"site-0", "site-2", "site-4"}), ("cluster-1", {TARGET, "site-3"})):
        strangers = tuple(client for client in CLIENTS if client not in own)
        alone = Request(fresh("pre-training").params, CLIENTS, strangers)
        outcome = unlearn([Averaging(8, 0.05)], alone, Quadratics(refuses=strangers))
        assert torch.equal(pretrained(clusters=2).memory[name], outcome.params)
    assert torch.equal(pretrained(clusters=2).params, mean(*models(asked()).values()))


def test_untouched_clusters_keep_their_bits_and_are_not_asked():
    heard = []
    untouched = {"site-0", "site-2", "site-4", PUBLIC}
    outcome = unlearn(
        [ClusterRetraining(5, 0.05)],
        asked(),
        Quadratics(refuses={TARGET, *untouched}),
        listeners=[heard.append],
    )
    assert outcome.status is Status.DONE
    for event in heard[1:]:
        state = event.progress.state
        assert set(state.memory) == {"cluster-1"}
        assert torch.equal(state.params, mean(models(asked())["cluster-0"], state.memory["cluster-1"]))


def test_the_targets_cluster_is_as_if_the_target_had_never_been_in_it():
    outcome = unlearn([ClusterRetraining(8, 0.05)], asked(), Quadratics())
    never = Request(fresh("pre-training").params, ("site-3",), ())
    alone = unlearn([ClusteredPretraining(8, 0.05, clusters=1)], never, Quadratics())
    assert torch.equal(outcome.state.memory["cluster-1"], alone.params)


def test_targets_in_two_clusters_retrain_both():
    outcome = unlearn([ClusterRetraining(3, 0.05)], asked(targets=("site-0", TARGET)), Quadratics())
    assert set(outcome.state.memory) == {"cluster-0", "cluster-1"}


def test_a_cluster_that_loses_everybody_is_gone():
    outcome = unlearn(
        method["knot"](Schedule(2, 0.1, 2, 0.1)), asked(targets=(TARGET, "site-3")), Quadratics()
    )
    assert outcome.status is Status.CONVERGED
    assert torch.equal(outcome.params, models(asked())["cluster-0"])


def test_a_model_with_batch_norm_is_refused():
    asked = replace(request(), buffers={"mean": torch.zeros(3)})
    with refused("unsuitable", says="BatchNorm"):
        unlearn([ClusteredPretraining(2, 0.1)], asked, Quadratics())


@pytest.mark.parametrize("count", [1, 3, 5])
def test_the_model_is_the_mean_of_the_clusters(count):
    state = pretrained(clusters=count)
    assert torch.equal(state.params, mean(*(state.memory[f"cluster-{n}"] for n in range(count))))
