from __future__ import annotations

import pytest
import torch
from support.closed_form import drive, request
from support.codes import refused
from support.federations import marked, untaught

from fedunlearn import Replies, Reply, Schedule, State, method
from fedunlearn.methods.fedmemprune import RedundancyPruning, redundant


def test_redundant_is_what_moves_least_whatever_its_sign():
    assert redundant(torch.tensor([-3.0, 1.0, -0.5, 2.0]), 0.5).tolist() == [False, True, True, False]


def test_what_moves_equally_little_is_redundant_too():
    assert redundant(torch.tensor([0.0, 1.0, 0.0, -0.0, 2.0]), 0.2).tolist() == [
        True,
        False,
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(("share", "number"), [(1.0, 12), (0.3, 4), (0.001, 1)])
def test_the_share_is_that_of_all_parameters_rounded_up(share, number):
    assert int(redundant(torch.arange(12.0), share).sum()) == number


def test_the_redundant_are_new_and_the_others_keep_their_update():
    asked = request()
    update = torch.arange(12.0) - 3
    replies = Replies({client: Reply(update, 7) for client in asked.retained})
    _, after = drive(RedundancyPruning(1, 0.1, 0.25), asked, State(asked.params), replies)
    new = [2, 3, 4]
    kept = [entry for entry in range(12) if entry not in new]
    assert torch.equal(after.params[new], asked.fresh("fedmemprune").params[new])
    assert torch.allclose(after.params[kept], (asked.params - update)[kept])
    assert after.diagnostics == {"pruned": 0.25}


def test_all_rounds_use_the_rate_of_pre_training():
    once, rest = method["fedmemprune"](Schedule(4, 0.03, 6, 0.02, pretrain_lr=0.1))
    assert [(once.rounds, once.lr), (rest.rounds, rest.lr)] == [(1, 0.1), (9, 0.1)]


@pytest.mark.parametrize("share", [0.0, 1.01])
def test_impossible_shares_are_refused(share):
    with refused("invalid", says="share"):
        method["fedmemprune"](Schedule(), share=share)


def test_it_forgets_what_only_the_target_knew_and_fine_tuning_does_not():
    """The paper's claim: unique knowledge goes as by retraining, and what is shared stays."""
    retrained, rule = untaught(marked, "retrain")
    left, accuracy = untaught(marked, "fedmemprune")
    assert untaught(marked, "finetune")[0] > retrained + 0.4
    assert left < retrained + 0.1
    assert accuracy > rule - 0.05
