from __future__ import annotations

import pytest
import torch
from closed_form import CLIENTS, DIMENSION, SHAPES, Quadratics, fresh, pretrained, request

from fedunlearn import FedUnlearnError, Replies, Request, unlearn
from fedunlearn.measure import size
from fedunlearn.methods import history
from fedunlearn.methods.fedavg import Pretraining


class Listening(Quadratics):
    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.heard: list[Replies] = []

    def train(self, jobs):
        self.heard.append(super().train(jobs))
        return self.heard[-1]


def pretrain(federation: Quadratics, *kinds: str, rounds: int = 6):
    asked = Request(fresh("pre-training").params, CLIENTS, (), fresh, shapes=SHAPES)
    return unlearn([Pretraining(rounds, 0.05, kinds)], asked, federation).state


def test_recording_changes_no_bit_of_the_model():
    plain = pretrain(Quadratics())
    assert plain.memory == {}
    assert torch.equal(pretrain(Quadratics(), *history.KINDS).params, plain.params)


def test_norms_are_kept_by_round_and_tensor_with_the_first_model():
    federation = Listening()
    memory = pretrain(federation, "norms").memory
    assert torch.equal(memory["norms"], fresh("pre-training").params)
    for client in CLIENTS:
        expected = [
            [float(d[:9].norm()), float(d[9:].norm())]
            for d in (heard[client].displacement for heard in federation.heard)
        ]
        assert torch.allclose(memory[f"norms {client}"], torch.tensor(expected))


def test_a_client_that_was_absent_has_a_norm_of_zero_in_that_round():
    memory = pretrain(Quadratics(absent={"site-2": [1, 4]}), "norms").memory
    assert [bool(row.any()) for row in memory["norms site-2"]] == [False, True, True, False, True, True]


def test_updates_add_up_to_the_whole_way():
    state = pretrain(Quadratics(), "updates")
    added = sum(state.memory[f"updates {client}"] for client in CLIENTS)
    assert torch.allclose(fresh("pre-training").params + added, state.params, atol=1e-5)


def test_locals_are_the_models_of_the_last_round():
    state = pretrain(Quadratics(), "locals")
    shares = [float(state.memory[f"share {client}"]) for client in CLIENTS]
    assert sum(shares) == pytest.approx(1)
    mean = sum(p * state.memory[f"locals {c}"] for p, c in zip(shares, CLIENTS, strict=True))
    assert torch.allclose(mean, state.params, atol=1e-6)


def test_residuals_cancel_over_all_clients():
    memory = pretrain(Quadratics(), "residuals").memory
    assert memory["residuals"][0] == 6
    total = sum(memory[f"share {client}"] * memory[f"residuals {client}"] for client in CLIENTS)
    longest = max(float(memory[f"residuals {client}"].norm()) for client in CLIENTS)
    assert float(total.norm()) <= 1e-5 * longest


@pytest.mark.parametrize("kind", history.KINDS)
@pytest.mark.parametrize("rounds", [1, 6])
def test_the_announced_size_is_the_size(kind, rounds):
    memory = pretrain(Quadratics(), kind, rounds=rounds).memory
    asked = Request(fresh("pre-training").params, CLIENTS, (), shapes=SHAPES)
    told = history.size([kind], asked, rounds)
    # Shares, a count and a sum are not worth telling.
    assert 0 <= size(*memory.values()) - told <= 4 * len(CLIENTS) + 16
    grown = history.size([kind], asked, 2 * rounds)
    assert (grown > told) is (kind == "norms")


def test_nothing_grows_with_the_rounds_but_the_norms():
    for kind in ("residuals", "updates", "locals"):
        small, large = (size(*pretrain(Quadratics(), kind, rounds=r).memory.values()) for r in (2, 6))
        assert small == large
    assert pretrained().memory["norms site-0"].shape == (8, 2)


def test_unknown_kinds_are_explained():
    with pytest.raises(FedUnlearnError, match="did you mean 'norms'"):
        pretrain(Quadratics(), "norm")


def test_a_client_without_history_is_explained():
    with pytest.raises(FedUnlearnError, match="forget whole clients"):
        request().recorded("updates", "site-1#forget")
    assert len(request().recorded("updates", "site-1")) == DIMENSION
