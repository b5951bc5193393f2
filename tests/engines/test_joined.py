"""Two federations as one: the local members answer here, all others elsewhere."""

from __future__ import annotations

import torch
from support.federations import PUBLIC, forget, holdings, network, same

from fedunlearn import Sequential, Terms, flatten, train
from fedunlearn.engines import Joined

NAME = "perceptron"


def split(public: bool = True) -> tuple[Sequential, Joined]:
    data = holdings(NAME, public=public)
    far = {client: held for client, held in data.items() if client != PUBLIC}
    near = {PUBLIC: data[PUBLIC]}
    return Sequential(network(NAME), data), Joined(
        Sequential(network(NAME), far), Sequential(network(NAME), near)
    )


def test_everybody_is_present_and_answers():
    whole, joined = split()
    assert joined.present() == whole.present()
    assert joined.task == whole.task
    jobs = dict.fromkeys(("site-1", PUBLIC, "stranger"), train(flatten(network(NAME))))
    replies, expected = joined.exchange(jobs, Terms(seed=(4,))), whole.exchange(jobs, Terms(seed=(4,)))
    assert replies.keys() == expected.keys() == {"site-1", PUBLIC}
    assert all(torch.equal(replies[client].moved, expected[client].moved) for client in replies)
    assert replies.missing.keys() == {"stranger"}


def test_a_method_with_public_data_ends_in_the_same_bits():
    whole, joined = split()
    assert same(forget("fedkdu", NAME, joined), forget("fedkdu", NAME, whole))
