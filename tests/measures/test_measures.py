"""What is made of the statistics that clients send."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedunlearn import ClientData, Replies, Reply, Request, Sequential, flatten, unlearn
from fedunlearn.core import Mean
from fedunlearn.measures import forgetting, training, utility

CLIENTS = ("a", "b", "c", "d")


def asked(*targets: str) -> Request:
    return Request(torch.zeros(2), CLIENTS, targets)


def replies(**sets: dict[str, dict[str, tuple[float, int]]]) -> Replies:
    """By client, then set, then score: total and count."""
    return Replies(
        {
            client: Reply(
                None, 10, {name: {s: Mean(*m) for s, m in scores.items()} for name, scores in held.items()}
            )
            for client, held in sets.items()
        }
    )


def test_several_targets_are_pooled_by_their_examples_and_listed_one_by_one():
    heard = replies(
        a={"backdoor": {"accuracy": (1, 1), "loss": (2.0, 1)}},
        b={"backdoor": {"accuracy": (0, 3), "loss": (2.0, 3)}},
    )
    found = forgetting(heard, asked("a", "b"))
    assert found["asr"] == 1 / 4
    assert found["loss_target"] == 1.0
    assert (found["asr a"], found["asr b"]) == (1.0, 0.0)
    assert "asr a" not in forgetting(heard, asked("a"))


def test_each_set_of_the_targets_has_its_keys_and_a_set_that_nobody_holds_has_none():
    heard = replies(
        a={
            "test": {"accuracy": (3, 4), "loss": (8.0, 4)},
            "forget": {"accuracy": (1, 2), "mse": (3.0, 2), "loss": (5.0, 2)},
            "seen": {"accuracy": (1, 1)},
        }
    )
    assert forgetting(heard, asked("a")) == {
        "forget_acc": 0.5,
        "forget_mse": 1.5,
        "target_acc": 0.75,
        "loss_target": 2.5,
    }
    assert forgetting(replies(b={}), asked("a")) == {}


def test_clients_that_stay_count_equally_whatever_their_examples():
    heard = replies(
        a={"test": {"accuracy": (0, 50)}},
        b={"test": {"accuracy": (1, 1), "loss": (1.0, 1)}},
        c={"test": {"accuracy": (25, 100), "loss": (300.0, 100)}},
        d={},
    )
    found = utility(heard, asked("a"))
    assert found["r_acc"] == (1 + 0.25) / 2
    assert found["r_acc_std"] == 0.375
    assert (found["r_acc_worst"], found["r_acc_best"]) == (0.25, 1.0)
    assert (found["r_acc b"], found["r_acc c"]) == (1.0, 0.25)
    assert found["loss_retained"] == 2.0
    assert "r_acc a" not in found
    assert "r_seen" not in found


def test_what_clients_have_seen_is_measured_on_what_they_have_seen():
    heard = replies(
        a={"test": {"accuracy": (0, 4)}, "seen": {"accuracy": (0, 4)}},
        b={"test": {"accuracy": (1, 4)}, "seen": {"accuracy": (4, 4)}, "forget": {"accuracy": (0, 1)}},
        c={"test": {"accuracy": (1, 4)}, "seen": {"accuracy": (2, 4)}, "backdoor": {"accuracy": (0, 1)}},
    )
    found = utility(heard, asked("a"))
    assert found["r_seen"] == 0.75
    assert found["r_acc"] == 0.25


def test_the_measures_of_a_real_federation_come_from_the_sets_of_their_names():
    """One example is right: each set has its own share of it."""
    model = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0], [1.0]]))

    def part(right: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(count, 1), (torch.arange(count) < right).long()

    clients = {
        "a": ClientData(part(1, 2), {"backdoor": part(1, 8), "forget": part(2, 8), "test": part(3, 8)}),
        "b": ClientData(part(1, 2), {"test": part(5, 8), "seen": part(6, 8)}),
    }
    outcome = unlearn([], Request(flatten(model), ("a", "b"), ("a",)), Sequential(model, clients))
    found = outcome.metrics[0]
    keys = ("asr", "forget_acc", "target_acc", "r_acc", "r_seen")
    assert [found[key] for key in keys] == [1 / 8, 2 / 8, 3 / 8, 5 / 8, 6 / 8]


def test_training_losses_are_means_by_examples_of_each_side():
    heard = Replies(
        {
            "a": Reply(None, 10, {"train": {"loss": Mean(20.0, 10)}}),
            "b": Reply(None, 30, {"train": {"loss": Mean(30.0, 30)}}),
            "c": Reply(None, 10, {"train": {"loss": Mean(50.0, 10)}}),
            "d": Reply(None, 10),
        }
    )
    found = training([heard], asked("a"))
    assert found == {"train_loss_target": 2.0, "train_loss_retained": pytest.approx(2.0)}
    assert training([Replies({})], asked("a")) == {}
