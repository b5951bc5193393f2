from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.codes import refused, says

from fedunlearn.core import FedUnlearnError
from fedunlearn.core.registry import partition
from fedunlearn.data import pools

OURS = ("pat-10", "pat-20", "pat-50", "iid", "dirichlet")


def labels_of(classes: int, each: int) -> torch.Tensor:
    return torch.arange(classes).repeat(each)


def authors_loop(labels: torch.Tensor, classes: int, clients: int, per_client: int) -> list[list[int]]:
    """The authors' way, literally: each class goes to the first clients that have room for another class."""
    budget, result = [per_client] * clients, [[] for _ in range(clients)]
    for label in range(classes):
        members = [i for i, y in enumerate(labels.tolist()) if y == label]
        selected = [k for k in range(clients) if budget[k] > 0][: clients * per_client // classes]
        size = len(members) // len(selected)
        for place, k in enumerate(selected):
            budget[k] -= 1
            last = place == len(selected) - 1
            result[k] += members[place * size :] if last else members[place * size : (place + 1) * size]
    return result


@st.composite
def situations(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    classes = draw(st.sampled_from([1, 2, 3, 4, 5, 10, 20]))
    seed, count = draw(st.integers(0, 99)), draw(st.integers(1, 400))
    labels = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))
    return labels, classes, draw(st.integers(1, 30))


@pytest.mark.parametrize("name", OURS)
@given(situation=situations(), seed=st.integers(0, 5), data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_example_has_one_owner_or_an_error_says_why(name, situation, seed, data):
    labels, classes, clients = situation
    options = {}
    if name.startswith("pat"):
        options["random_classes"] = data.draw(st.booleans())
    if name == "dirichlet":
        options["alpha"] = data.draw(st.sampled_from([0.01, 0.5, 100.0]))
    try:
        result = pools(name, labels, classes, clients, seed, options)
    except FedUnlearnError as error:
        assert says(error, f"partition '{name}'")  # noqa: PT017
        assert says(error, ": ")  # noqa: PT017
        return
    assert len(result) == clients
    assert all(len(pool) for pool in result)
    assert sorted(torch.cat(result).tolist()) == list(range(len(labels)))


@pytest.mark.parametrize(("name", "blocks"), [("pat-10", 10), ("pat-20", 5), ("pat-50", 2), ("iid", 1)])
@given(
    budget=st.integers(1, 3), takers=st.integers(1, 3), count=st.integers(300, 400), seed=st.integers(0, 99)
)
@settings(max_examples=40, deadline=None)
def test_the_authors_loop_gives_the_same(name, blocks, budget, takers, count, seed):
    classes, clients = blocks * budget, blocks * takers
    labels = torch.randint(classes, (count,), generator=torch.Generator().manual_seed(seed))
    result = pools(name, labels, classes, clients, seed=0)
    assert [pool.tolist() for pool in result] == authors_loop(labels, classes, clients, budget)


def test_ten_clients_and_ten_classes_make_the_known_blocks():
    labels = labels_of(10, 700)

    def classes(name: str) -> list[list[int]]:
        return [labels[pool].unique().tolist() for pool in pools(name, labels, 10, 10, seed=7)]

    assert classes("pat-10") == [[k] for k in range(10)]
    assert classes("pat-20") == [[k // 2 * 2, k // 2 * 2 + 1] for k in range(10)]
    assert classes("pat-50") == [[0, 1, 2, 3, 4]] * 5 + [[5, 6, 7, 8, 9]] * 5
    assert classes("iid") == [list(range(10))] * 10
    for name in ("pat-10", "pat-20", "pat-50", "iid"):
        assert {len(pool) for pool in pools(name, labels, 10, 10, seed=7)} == {700}


def test_pieces_are_contiguous_and_the_last_takes_the_remainder():
    result = pools("iid", torch.zeros(11, dtype=torch.int64), 1, 3, seed=0)
    assert [pool.tolist() for pool in result] == [[0, 1, 2], [3, 4, 5], [6, 7, 8, 9, 10]]


def test_random_classes_are_another_assignment_of_the_same_shape():
    labels = labels_of(10, 20)

    def holdings(seed: int) -> list[tuple[int, ...]]:
        result = pools("pat-20", labels, 10, 10, seed, {"random_classes": True})
        return [tuple(labels[pool].unique().tolist()) for pool in result]

    assert all(len(held) == 2 for held in holdings(1))
    assert holdings(1) == holdings(1)
    assert holdings(1) != holdings(2)
    assert {label for held in holdings(1) for label in held} == set(range(10))


def test_dirichlet_is_skewed_by_alpha_and_fixed_by_the_seed():
    labels = labels_of(10, 300)

    def largest_share(alpha: float, seed: int = 0) -> float:
        result = pools("dirichlet", labels, 10, 5, seed, {"alpha": alpha})
        return float(np.mean([labels[pool].bincount(minlength=10).max() / len(pool) for pool in result]))

    assert largest_share(0.05) > 0.35
    assert largest_share(1000.0) < 0.15
    assert largest_share(0.5) == largest_share(0.5)
    assert largest_share(0.5, seed=1) != largest_share(0.5, seed=2)


def test_dirichlet_fills_small_clients():
    result = pools("dirichlet", labels_of(2, 30), 2, 6, 3, {"alpha": 0.01, "minimum": 8})
    assert min(len(pool) for pool in result) >= 8


@pytest.mark.parametrize(
    ("name", "classes", "clients", "options", "sentence"),
    [
        ("pat-10", 10, 5, {}, "use a multiple of 10, such as 10$"),
        ("pat-20", 10, 12, {}, "use a multiple of 5, such as 10 or 15$"),
        ("pat-50", 10, 3, {}, "use a multiple of 2, such as 2 or 4$"),
        ("pat-10", 4, 10, {}, "number of classes must be a multiple of 10"),
        ("pat-50", 5, 10, {}, "number of classes must be a multiple of 2"),
        ("iid", 10, 0, {}, "at least one client, not 0"),
        ("iid", 10, 201, {}, "200 examples among 201 clients: use at most 200"),
        ("iid", 10, 50, {}, "left pool 0 of 50 without examples: use fewer clients"),
        ("iid", 10, 5, {"alpha": 1}, "'iid' has no option 'alpha'; it has no options"),
        ("dirichlet", 10, 5, {"alhpa": 1}, "no option 'alhpa'; did you mean 'alpha'"),
        ("dirichlet", 10, 5, {"alpha": 0}, "an alpha above 0"),
        ("dirichlet", 10, 5, {"minimum": 41}, r"use a minimum of 1\.\.40"),
        ("pat-5", 10, 5, {}, "unknown partition 'pat-5'; known: .*pat-50"),
    ],
)
def test_what_cannot_be_made_is_explained(name, classes, clients, options, sentence):
    with refused("invalid", "unknown", says=sentence):
        pools(name, labels_of(classes, 200 // classes), classes, clients, 0, options)


def test_labels_must_fit_the_classes():
    with refused("invalid", says=r"labels 0\.\.9 for 9 classes: labels must be 0\.\.8"):
        pools("iid", labels_of(10, 5), 9, 2, 0)


@pytest.mark.parametrize(
    ("fault", "made", "sentence"),
    [
        ("lossy", [[0, 1], [2]], "left example 3 out"),
        ("double", [[0, 1, 2], [2, 3]], "assigned example 2 2 times"),
        ("short", [[0, 1, 2, 3]], "made 1 pools for 2 clients"),
        ("empty", [[0, 1, 2, 3], []], "left pool 1 of 2 without examples"),
        ("beyond", [[0, 1, 2], [4]], r"indices 0\.\.4 for 4 examples"),
        ("shaped", [[[0, 1, 2]], [[3]]], "invalid pool 0 of 2"),
    ],
)
def test_a_faulty_partition_of_ones_own_is_caught(monkeypatch, fault, made, sentence):
    monkeypatch.setattr(partition, "_entries", dict(partition._entries))  # other tests shall not see it

    @partition(f"faulty-{fault}")
    def faulty(labels, classes, clients, seed, **anything):
        return [torch.tensor(pool, dtype=torch.int64) for pool in made]

    with refused("invalid", says=sentence):
        pools(f"faulty-{fault}", labels_of(2, 2), 2, 2, 0, {"whatever": 1})
