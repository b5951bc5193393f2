from __future__ import annotations

import pytest
import torch
from support.closed_form import Quadratics, Spoiled, drive, phases, request, times
from support.codes import refused
from support.federations import LOCAL, holdings, marked, mislabelled, network, taught, untaught

from fedunlearn import (
    Replies,
    Reply,
    Request,
    Schedule,
    Sequential,
    State,
    flatten,
    method,
    step,
    train,
    unlearn,
)
from fedunlearn.core.vectors import buffers, shapes
from fedunlearn.methods.fused import AdapterTraining, critical_layers, sparse


def of(name: str) -> Request:
    module = network(name)
    return Request(flatten(module), ("a", "b", "c"), ("a",), buffers=buffers(module), shapes=shapes(module))


def moved(asked: Request, **layers: float) -> Replies:
    """Two clients whose training moved each entry of the named parameters this far, in opposite ways."""
    change = torch.zeros_like(asked.params)
    for name, distance in layers.items():
        asked.pieces(change)[name.replace("_", ".")].fill_(distance)
    return Replies({"b": Reply(change, 10), "c": Reply(-change, 90)})


def bits(vector: torch.Tensor) -> list[int]:
    return vector.view(torch.int32).tolist()


@pytest.mark.parametrize("spoiled", [False, True])
def test_without_the_adapter_the_model_is_what_it_was_to_the_bit(spoiled):
    """Also where a client sends changes outside of the adapter."""
    asked, there = request(), Spoiled(times(-3.7), {"site-0"}, range(99)) if spoiled else Quadratics()
    outcome = unlearn(phases("fused", density=0.4), asked, there)
    mask = outcome.state.memory["mask"]
    assert not bool((outcome.params == asked.params)[mask].any())
    assert bits(torch.where(mask, asked.params, outcome.params)) == bits(asked.params)


def test_what_a_client_sends_outside_of_the_adapter_is_not_used():
    asked = request()
    mask = torch.zeros_like(asked.params, dtype=torch.bool)
    mask[4] = True
    state = State(asked.params, round=1, memory={"mask": mask})
    everywhere = Replies({client: Reply(torch.ones_like(asked.params), 1) for client in asked.retained})
    _, after = drive(AdapterTraining(2, 0.1), asked, state, everywhere)
    assert bits(after.params[~mask]) == bits(asked.params[~mask])
    assert float(after.params[4]) == pytest.approx(float(asked.params[4]) - 1)


def test_batch_norm_statistics_stay_frozen_too():
    asked = of("batch norm")
    data = dict(zip(asked.clients, holdings("batch norm").values(), strict=False))
    outcome = unlearn(
        method["fused"](Schedule(1, 0.1, 1, 0.1)), asked, Sequential(network("batch norm"), data)
    )
    assert not torch.equal(outcome.params, asked.params)
    assert all(torch.equal(value, asked.buffers[name]) for name, value in outcome.state.buffers.items())


def test_critical_are_the_weights_that_move_farthest_by_entry_in_whatever_direction():
    asked = of("lenet5")
    replies = moved(asked, **{"0_weight": 3.0, "7_weight": 1.0, "11_weight": 2.0, "9_bias": 9.0})
    assert critical_layers(asked, replies, 2) == ["0.weight", "11.weight"]
    assert critical_layers(asked, replies, 99)[2] == "7.weight"


def test_a_model_without_matrices_has_critical_layers_as_well():
    asked = Request(
        torch.zeros(5), ("b", "c"), ("b",), shapes={"gain": torch.Size((2,)), "bias": torch.Size((3,))}
    )
    assert critical_layers(asked, moved(asked, gain=1.0, bias=2.0), 1) == ["bias"]


@pytest.mark.parametrize(("density", "entries"), [(1.0, 9), (0.5, 5), (0.001, 1)])
def test_the_mask_has_its_share_of_the_layer_and_nothing_elsewhere(density, entries):
    pieces = request().pieces(sparse(request(), ["weight"], density))
    assert int(pieces["weight"].sum()) == entries
    assert not pieces["bias"].any()


def test_the_mask_is_drawn_from_the_seed_of_the_request():
    def drawn(seed: int) -> torch.Tensor:
        asked = of("perceptron")
        return sparse(
            Request(asked.params, ("a", "b"), ("a",), shapes=asked.shapes, seed=seed), ["1.weight"], 0.5
        )

    assert torch.equal(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))


def test_a_local_step_trains_the_adapter_alone():
    mask = torch.tensor([True, False])
    rule = step["masked"](train(torch.ones(2), step="masked", arrays={"mask": mask}))
    assert rule(torch.ones(2), torch.tensor([4.0, torch.inf]), 0.5).tolist() == [2.0, 0.0]


@pytest.mark.parametrize("options", [{"layers": 0}, {"density": 0.0}, {"density": 1.5}])
def test_impossible_adapters_are_refused(options):
    with refused("invalid", says=next(iter(options))):
        method["fused"](Schedule(), **options)


def test_adapters_overwrite_what_the_retained_clients_contradict():
    """The paper's claim, in its own scenario: a target with wrong labels, forgotten as by retraining."""
    federation, asked = taught(mislabelled)
    before = float(unlearn([], asked, federation, training=LOCAL).metrics[0]["asr"])
    retrained, _ = untaught(mislabelled, "retrain")
    left, accuracy = untaught(mislabelled, "fused", density=1.0)
    assert before > retrained + 0.2
    assert left < retrained + 0.05
    assert accuracy > 0.7
    # Fewer entries overwrite less.
    assert left < untaught(mislabelled, "fused")[0] < before


def test_adapters_leave_what_no_retained_client_has_a_say_in():
    retrained, _ = untaught(marked, "retrain")
    for density in (0.1, 1.0):
        assert untaught(marked, "fused", density=density)[0] > retrained + 0.4
