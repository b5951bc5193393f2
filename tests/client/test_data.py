"""What a user may hand over as data, settings and requests, and what is said to everything else."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.codes import refused
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    LocalTraining,
    Parallel,
    Participation,
    Regression,
    Request,
    Schedule,
    Sequential,
    Terms,
    flatten,
    train,
    unlearn,
)
from fedunlearn.core.seeds import generator
from fedunlearn.methods.fedavg import Averaging

X = torch.randn(9, 4, generator=generator("client data"))
Y = torch.randint(0, 3, (9,), generator=generator("client labels"))


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


class Named(Dataset):
    def __len__(self) -> int:
        return 9

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"input": X[number], "labels": Y[number]}


def step(data: object, task: object = Classification()) -> Tensor:
    """What one local epoch in batches of four makes of the data."""
    model = network()
    replies = Sequential(model, {"a": data}, task=task).exchange(
        {"a": train(flatten(model))}, Terms(lr=0.1, batch_size=4)
    )
    assert replies["a"].examples == 9
    assert replies["a"].statistics["train"]["loss"].count == 9
    return replies["a"].moved


FORMS = {
    "pair": (X, Y),
    "list": [X, Y],
    "examples": Examples(X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "other types": (X.double(), Y.int()),
    "arrays of other types": (X.numpy().astype(np.float64), Y.numpy().astype(np.int32)),
    "dict": {"input": X, "labels": Y},
    "dict of arrays": {"input": X.numpy(), "labels": Y.numpy()},
    "dataset": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=4),
    "dataset of dicts": Named(),
    "loader of dicts": DataLoader(Named(), batch_size=4),
    "client data": ClientData((X, Y)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_data_trains_alike(form):
    assert torch.allclose(step(FORMS[form]), step(Examples(X, Y)), atol=1e-6)


class Endless(IterableDataset):
    def __iter__(self):
        yield X[0], Y[0]


@pytest.mark.wording
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ((X, Y[:5]), "set 'train' has 9 inputs and 5 labels"),
        ({"input": X, "labels": Y[:5]}, "set 'train' has 9 input and 5 labels"),
        ((X[:0], Y[:0]), "set 'train' is empty"),
        (X[:0], "set 'train' is empty"),
        ({}, "set 'train' has no entries"),
        (TensorDataset(X[:0], Y[:0]), "set 'train' is empty"),
        ((X, Y, Y), "set 'train' is a tuple of 3: give a pair of inputs and labels"),
        ((X, Y.tolist()), "labels of set 'train' is a list"),
        ((X, torch.tensor(1)), "labels of set 'train' is a single number"),
        ((X, np.array(["cat"] * 9)), "labels of set 'train' cannot become a tensor"),
        (Endless(), "set 'train' has no length"),
        (DataLoader(Endless()), "set 'train' has no length"),
        ("pictures/", "set 'train' is a str: give a pair"),
        (None, "set 'train' is a NoneType"),
    ],
)
def test_what_is_no_data_is_refused_with_the_name_of_the_client(data, said):
    with refused("data") as caught:
        Sequential(network(), {"site-3": data})
    assert said in str(caught.value)
    assert "site-3" in str(caught.value)


@pytest.mark.parametrize("batch", ["text", 3.5, None])
def test_a_batch_that_is_neither_tensor_tuple_nor_dict_is_refused(batch):
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, collate_fn=lambda rows: batch)
    with refused("data", says=r"site-3, set 'train': the data yields a \w+ as a batch"):
        Sequential(network(), {"site-3": loader})


def test_a_loader_without_a_batch_is_refused():
    loader = DataLoader(TensorDataset(X, Y), batch_size=100, drop_last=True)
    with refused("data", says="site-3, set 'train': it yields no batch"):
        Sequential(network(), {"site-3": loader})


def test_a_loader_that_drops_its_last_batch_reports_the_mean_of_what_it_read():
    model, loader = network(), DataLoader(TensorDataset(X, Y), batch_size=4, drop_last=True)
    replies = Sequential(model, {"a": loader}).exchange({"a": train(flatten(model))}, Terms(lr=1e-9))
    expected = nn.functional.cross_entropy(model(X[:8]), Y[:8]).item()
    assert replies["a"].statistics["train"]["loss"].value == pytest.approx(expected, rel=1e-5)


def test_evaluation_sets_are_known_by_name():
    with refused("unknown", says=r"unknown evaluation set 'tset'; did you mean 'test'\?"):
        ClientData((X, Y), {"tset": (X, Y)})
    with refused("invalid", says="evaluations are a tuple: give a dict"):
        ClientData((X, Y), (X, Y))
    with refused("invalid", says="set 'backdoor' is empty"):
        ClientData((X, Y), {"backdoor": (X[:0], Y[:0])})


@pytest.mark.parametrize("clients", [{}, [], None, [(X, Y)]])
def test_a_federation_needs_clients_with_names(clients):
    with refused("invalid", says="a federation needs clients: give a dict"):
        Sequential(network(), clients)


def test_clients_have_names_that_are_text():
    with refused("invalid", says="client 3: names are text"):
        Sequential(network(), {3: (X, Y), "a": (X, Y)})


@pytest.mark.parametrize("engine", [Sequential, lambda *given, **how: Parallel(*given, workers=2, **how)])
def test_every_engine_checks_before_it_starts(engine):
    with refused("data", says="site-3, set 'train': labels are float32"):
        engine(network(), {"site-3": (X, Y.float().unsqueeze(1))})
    with refused("model", says=r"the model is a dict: give a torch.nn.Module"):
        engine({}, {"a": (X, Y)})
    with refused("invalid", says=r"task = .*Regression.*: give an instance"):
        engine(network(), {"a": (X, Y)}, task=Regression)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Schedule(unlearn_rounds=-1), "unlearn_rounds = -1: it must be a whole number, 0 or more"),
        (lambda: Schedule(recover_rounds=3.5), "recover_rounds = 3.5"),
        (lambda: Schedule(unlearn_lr=-0.1), "unlearn_lr = -0.1: it must be a positive, finite number"),
        (lambda: Schedule(recover_lr=float("nan")), "recover_lr = nan"),
        (lambda: Schedule(pretrain_lr="fast"), "pretrain_lr = 'fast'"),
        (lambda: LocalTraining(epochs=0), "epochs = 0: it must be a whole number, 1 or more"),
        (lambda: LocalTraining(epochs=1.5), "epochs = 1.5"),
        (lambda: LocalTraining(batch_size=-4), "batch_size = -4"),
        (lambda: LocalTraining(decay=0), "decay = 0: it must be above 0 and at most 1"),
        (lambda: LocalTraining(decay="slow"), "decay = 'slow'"),
        (lambda: Participation(share=0), "share = 0: it must be above 0 and at most 1"),
        (lambda: Participation(share=1.5), "share = 1.5"),
        (lambda: Participation(count=0), "count = 0"),
        (lambda: Participation(minimum=0), "minimum = 0"),
        (lambda: Participation(count=2, minimum=3), "count = 2: it must be at least the minimum, 3"),
        (lambda: Averaging(-1, 0.1), "rounds = -1"),
        (lambda: Averaging(2, -0.1), "lr = -0.1"),
        (lambda: Request(flatten(network()), ("a", "b", "a"), ("b",)), "client 'a' is named twice"),
        (lambda: Request(flatten(network()), ("a", "b"), ("b", "b")), "target 'b' is named twice"),
        (lambda: Request(flatten(network()), "ab", ("a",)), r"clients = 'ab': give a sequence of names"),
        (lambda: Request(flatten(network()), ("a", "b"), "b"), r"targets = 'b': give a sequence"),
        (lambda: Request(flatten(network()), ("site-1", "b"), ("site-2",)), "known: b, site-1"),
        (lambda: Request(flatten(network()), ("a",), ("a",)), "nobody is left"),
        (lambda: Request(network(), ("a", "b"), ("a",)), "params must be one vector: make it with"),
        (
            lambda: Request(flatten(network()), ("a", "b"), ("a",), shapes={"w": torch.Size((2, 2))}),
            "the shapes of the model have 4",
        ),
        (
            lambda: Request(flatten(network()), ("a", "b"), ("a",), anchors=(torch.zeros(3),)),
            "anchor 0 has 3 numbers",
        ),
    ],
)
def test_settings_and_requests_are_checked_where_they_are_made(make, said):
    with refused("invalid", "other-model", "unknown") as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_parameters_of_another_model_are_refused_before_round_one():
    federation = Sequential(network(), {"a": (X, Y), "b": (X, Y)})
    asked = Request(torch.zeros(7), ("a", "b"), ("b",))
    with refused("other-model", says="brings 7 parameters and the model of a has 43"):
        unlearn([Averaging(1, 0.1)], asked, federation)
