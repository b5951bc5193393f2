from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import CLIENTS, PUBLIC, Quadratics, fresh, phases, pretrained, request
from support.codes import refused, warned
from support.federations import holdings, network

from fedunlearn import (
    History,
    LocalTraining,
    Outcome,
    Request,
    Schedule,
    Sequential,
    Status,
    flatten,
    unlearn,
)
from fedunlearn.methods.sisa import SlicedPretraining, SliceRetraining, first_round, places, slice_of

TARGET = "site-1"
ALWAYS = range(1, 99)
SHAPES = [(1, 2), (1, 3), (2, 2), (1, 5)]


def asked(shards: int = 2, slices: int = 2, targets=(TARGET,)) -> Request:
    state = pretrained(shards, slices=slices)
    return replace(request(targets=targets), params=state.params, history=History.from_tensors(state.memory))


def forget(given: Request, federation: Quadratics | None = None, rounds: int = 8) -> Outcome:
    return unlearn([SliceRetraining(rounds, 0.05)], given, federation or Quadratics())


def without(targets: tuple[str, ...], shards: int, slices: int) -> Outcome:
    """The same training, in which the targets never answer."""
    absent = dict.fromkeys(targets, ALWAYS)
    start = Request(fresh("pre-training").params, CLIENTS, ())
    phase = SlicedPretraining(8, 0.05, shards=shards, slices=slices)
    return unlearn([phase], start, Quadratics(absent=absent))


def test_places_are_even_and_stable():
    where = places([f"client-{number}" for number in range(10)], 2, 2)
    sizes = [list(where.values()).count(place) for place in sorted(set(where.values()))]
    assert sizes == [3, 2, 3, 2]
    assert places(reversed(list(where)), 2, 2) == where


@pytest.mark.parametrize(("rounds", "slices"), [(8, 2), (7, 3), (5, 5), (2, 4), (200, 7)])
def test_every_round_belongs_to_the_slice_that_joined_last(rounds, slices):
    for round in range(rounds):
        now = slice_of(round, rounds, slices)
        assert first_round(now, rounds, slices) <= round < first_round(now + 1, rounds, slices)


@pytest.mark.parametrize(("shards", "slices"), SHAPES)
@pytest.mark.parametrize("target", CLIENTS)
def test_the_model_is_bit_for_bit_that_of_a_training_without_the_target(target, shards, slices):
    where = places(CLIENTS, shards, slices)
    outcome = forget(asked(shards, slices, (target,)))
    never = without((target,), shards, slices)
    if never.status is Status.MISSING_REPLY:  # the target is the only client of the first slice
        assert sum(slice == 0 for _, slice in where.values()) == 1
        assert where[target][1] == 0
        return
    assert torch.equal(outcome.params, never.params)
    assert not torch.equal(outcome.params, asked(shards, slices).params)


@pytest.mark.parametrize("target", ["site-1", "site-2"])
def test_so_it_is_with_real_models_and_batches(target):
    data, model = holdings("perceptron"), network("perceptron")
    given: dict[str, object] = {"training": LocalTraining(batch_size=4), "seed": 5}
    start = Request(flatten(model), tuple(sorted(data)), ())
    phase = SlicedPretraining(6, 0.1, shards=1, slices=3)
    trained = unlearn([phase], start, Sequential(model, data), **given).state
    left = {client: held for client, held in data.items() if client != target}
    with warned("absent", says="is not present"):
        never = unlearn([phase], start, Sequential(model, left), **given)
    leaving = replace(
        start, params=trained.params, targets=(target,), history=History.from_tensors(trained.memory)
    )
    outcome = unlearn([SliceRetraining(6, 0.1)], leaving, Sequential(model, left), **given)
    assert outcome.metrics[-1]["elapsed"] < 6
    assert torch.equal(outcome.params, never.params)


def test_one_after_the_other_is_as_exact_as_both_at_once():
    for first, second in (("site-3", "site-1"), ("site-4", "site-2"), ("site-2", "site-4")):
        given = asked(1, 3, (first,))
        left = forget(given)
        rest = tuple(client for client in CLIENTS if client != first)
        then = replace(
            given, params=left.params, clients=rest, targets=(second,), history=given.history.without([first])
        )
        never = without((first, second), 1, 3)
        assert torch.equal(forget(then, Quadratics(refuses={first})).params, never.params)


def test_only_what_came_after_the_target_is_trained_again():
    federation = Quadratics(refuses={"site-3"})
    outcome = forget(asked(1, 5, ("site-3",)), federation)
    joined = {"site-0", "site-1", "site-2"}
    assert federation.asked() == [joined] * 2 + [joined | {"site-4"}] * 2
    assert sum(row.get("local_trainings", 0) for row in outcome.metrics) == 2 * 3 + 2 * 4


def test_other_shards_keep_their_bits_and_are_not_asked():
    outcome = forget(asked(), Quadratics(refuses={TARGET, "site-0", "site-2", "site-4", PUBLIC}))
    kept = asked().history.shared["slice-0"]
    assert torch.equal(outcome.params, torch.stack([kept, outcome.state.memory["slice-1"]]).mean(0))
    assert set(outcome.state.memory) == {"slice-1"}


def test_targets_in_two_shards_repeat_both():
    targets = ("site-0", "site-3")
    outcome = forget(asked(targets=targets))
    assert set(outcome.state.memory) == {"slice-0", "slice-1"}
    assert torch.equal(outcome.params, without(targets, 2, 2).params)


def test_a_shard_that_loses_everybody_is_gone():
    outcome = forget(asked(targets=(TARGET, "site-3")))
    assert outcome.status is Status.CONVERGED
    assert torch.equal(outcome.params, asked().history.shared["slice-0"])


def test_what_is_stored_is_a_model_for_each_slice_and_the_first():
    names = {name for name in asked(2, 2).history.shared if name != "slice-decays"}
    assert names == {"slice", "slice-0", "slice-0-1", "slice-1", "slice-1-1"}


def test_after_a_request_no_model_is_left_that_knew_the_target():
    history = asked(1, 5, ("site-2",)).history.without(["site-2"])
    assert {name for name in history.shared if name != "slice-decays"} == {"slice", "slice-0-1", "slice-0-2"}


def test_a_part_of_a_client_is_forgotten_where_its_client_was():
    virtual = (*CLIENTS, "site-3#forget")
    federation = Quadratics()
    given = replace(asked(1, 5), clients=virtual, targets=virtual[-1:])
    forget(given, federation)
    assert federation.asked() == [{"site-0", "site-1", "site-2", "site-3"}] * 2 + [set(CLIENTS)] * 2


def test_fewer_rounds_than_training_are_divided_alike():
    federation = Quadratics()
    outcome = unlearn(phases("sisa", Schedule(2, 0.1, 2, 0.1)), asked(1, 2, (TARGET,)), federation)
    assert outcome.status is Status.DONE
    assert [len(clients) for clients in federation.asked()] == [4, 4]


def test_a_model_with_batch_norm_is_refused():
    with refused("unsuitable", says="BatchNorm"):
        unlearn([SlicedPretraining(2, 0.1)], replace(request(), buffers={"m": torch.zeros(3)}), Quadratics())


def test_fewer_rounds_than_slices_are_refused():
    with refused("invalid", says="rounds = 2: it must be 3 or more"):
        SlicedPretraining(2, 0.1, slices=3)
