from __future__ import annotations

import pytest
import torch
from support.closed_form import CLIENTS, DIMENSION, SHAPES, Quadratics, fresh, pretrained, request
from support.codes import refused

from fedunlearn import History, Participation, Request, State, unlearn
from fedunlearn.core.history import KINDS
from fedunlearn.core.history import size as announced
from fedunlearn.measures import size
from fedunlearn.methods.fedavg import Pretraining


def pretrain(federation: Quadratics, *kinds: str, rounds: int = 6, **options: object) -> State:
    asked = Request(fresh("pre-training").params, CLIENTS, (), fresh, shapes=SHAPES)
    return unlearn([Pretraining(rounds, 0.05, kinds)], asked, federation, **options).state


def recorded(*kinds: str, federation: Quadratics | None = None, **options: object) -> History:
    return History.from_tensors(pretrain(federation or Quadratics(), *kinds, **options).memory)


def test_recording_changes_no_bit_of_the_model():
    plain = pretrain(Quadratics())
    assert plain.memory == {}
    assert torch.equal(pretrain(Quadratics(), *KINDS).params, plain.params)


def test_norms_are_kept_by_round_and_tensor_with_the_first_model():
    federation = Quadratics()
    norms = recorded("norms", federation=federation)
    assert torch.equal(norms.shared["norms"], fresh("pre-training").params)
    for client in CLIENTS:
        expected = [
            [float(moved[:9].norm()), float(moved[9:].norm())]
            for moved in (replies[client].moved for _, replies in federation.exchanged)
        ]
        assert torch.allclose(norms.of("norms", client), torch.tensor(expected))


def test_a_client_that_was_absent_has_a_norm_of_zero_in_that_round():
    norms = recorded("norms", federation=Quadratics(absent={"site-2": [1, 4]}))
    present = [False, True, True, False, True, True]
    assert [bool(row.any()) for row in norms.of("norms", "site-2")] == present


def test_with_draws_the_rounds_that_a_client_was_not_drawn_in_add_nothing_of_it():
    federation = Quadratics()
    state = pretrain(federation, *KINDS, participation=Participation(count=2))
    history = History.from_tensors(state.memory)
    _, last = federation.exchanged[-1]
    for client in CLIENTS:
        asked = [client in clients for clients in federation.asked()]
        assert [bool(row.any()) for row in history.of("norms", client)] == asked
        assert len(history.of("locals", client)) == (DIMENSION if client in last else 0)
        assert (client in history.rows["updates"]) is any(asked)
    added = sum(history.rows["updates"].values())
    assert torch.allclose(fresh("pre-training").params + added, state.params, atol=1e-5)


def test_updates_add_up_to_the_whole_way():
    state = pretrain(Quadratics(), "updates")
    added = sum(History.from_tensors(state.memory).rows["updates"].values())
    assert torch.allclose(fresh("pre-training").params + added, state.params, atol=1e-5)


def test_locals_are_the_models_of_the_last_round():
    state = pretrain(Quadratics(), "locals")
    history = History.from_tensors(state.memory)
    assert sum(map(float, history.rows["share"].values())) == pytest.approx(1)
    mean = sum(history.of("share", c) * history.of("locals", c) for c in CLIENTS)
    assert torch.allclose(mean, state.params, atol=1e-6)


def test_residuals_cancel_over_all_clients():
    history = recorded("residuals")
    assert history.shared["residuals"][0] == 6
    total = sum(history.of("share", c) * history.of("residuals", c) for c in CLIENTS)
    longest = max(float(row.norm()) for row in history.rows["residuals"].values())
    assert float(total.norm()) <= 1e-5 * longest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rounds", [1, 6])
def test_the_announced_size_is_the_size(kind, rounds):
    kept = size(*pretrain(Quadratics(), kind, rounds=rounds).memory.values())
    counts = {"clients": len(CLIENTS), "parameters": DIMENSION, "tensors": len(SHAPES)}
    told = announced([kind], **counts, rounds=rounds)
    # Shares, a count and a sum are not worth telling.
    assert 0 <= kept - told <= 4 * len(CLIENTS) + 16
    grown = announced([kind], **counts, rounds=2 * rounds)
    assert (grown > told) is (kind == "norms")


def test_nothing_grows_with_the_rounds_but_the_norms():
    for kind in ("residuals", "updates", "locals"):
        small, large = (size(*pretrain(Quadratics(), kind, rounds=r).memory.values()) for r in (2, 6))
        assert small == large
    assert pretrained().memory["norms/site-0"].shape == (8, 2)


def test_unknown_kinds_are_explained():
    with refused("unknown", says="did you mean 'norms'"):
        pretrain(Quadratics(), "norm")


def test_a_client_without_history_is_explained():
    with refused("history", says="forget whole clients"):
        request().history.of("updates", "site-1#forget")
    assert len(request().history.of("updates", "site-1")) == DIMENSION


def test_a_history_is_the_same_after_it_was_stored_by_names():
    whole = request().history
    again = History.from_tensors(whole.tensors())
    assert again.tensors().keys() == whole.tensors().keys()
    assert again.kinds == whole.kinds
    assert {kind: set(rows) for kind, rows in again.rows.items()} == {
        kind: set(rows) for kind, rows in whole.rows.items()
    }


def test_a_client_that_is_forgotten_leaves_no_row_and_no_model_that_it_was_in():
    whole = request().history
    left = whole.without(["site-1"])
    gone = whole.tensors().keys() - left.tensors().keys()
    models = {f"locals/{client}" for client in whole.rows["locals"]} | {"cluster-1", "slice-1", "slice-1-1"}
    assert gone == {f"{kind}/site-1" for kind in whole.rows} | models
    assert all(torch.equal(value, whole.tensors()[name]) for name, value in left.tensors().items())
