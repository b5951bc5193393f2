"""Every row of every set is checked before round one, at the node that holds it."""

from __future__ import annotations

import pytest
import torch
from flwr.clientapp import ClientApp
from support.codes import refused, warned
from support.flower_apps import QUICK, grid, number_of
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import fedunlearn as fu
from fedunlearn.client import trial
from fedunlearn.core import Terms
from fedunlearn.core.seeds import generator
from fedunlearn.engines import flower

N = 450
X = torch.randn(N, 4, generator=generator("row inputs"))
Y = torch.randint(0, 3, (N,), generator=generator("row labels"))


class Named(Dataset):
    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"input": self.x[number], "labels": self.y[number]}


FORMS = {
    "pair": lambda x, y: (x, y),
    "arrays": lambda x, y: (x.numpy(), y.numpy()),
    "dict": lambda x, y: {"input": x, "labels": y},
    "dataset": TensorDataset,
    "dataset of dicts": Named,
    "loader": lambda x, y: DataLoader(TensorDataset(x, y), batch_size=7),
}


def spoilt(part: Tensor, row: int, value: float) -> Tensor:
    changed = part.clone()
    changed[row] = value
    return changed


def refusal(data: object, task: fu.Task | None = None, model: nn.Module | None = None) -> str:
    with refused("data") as caught:
        fu.Sequential(model or nn.Linear(4, 3), {"site-3": data}, task=task or fu.Classification())
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.wording
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_number_that_is_not_finite_is_named_with_its_row(form, value):
    told = refusal(FORMS[form](spoilt(X, 401, value), Y))
    which = "example that its loader yields" if form == "loader" else "row"
    assert told == (
        f"site-3, set 'train': {which} 401 (the first is 0): a number is not finite: correct it, or leave "
        "the row out"
    )


@pytest.mark.wording
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("label", "row"), [(3, 1), (-1, 449)])
def test_a_label_out_of_range_is_named_with_its_row(form, label, row):
    told = refusal(fu.ClientData((X, Y), {"test": FORMS[form](X, spoilt(Y, row, label))}))
    assert told.startswith("site-3, set 'test': ")
    assert told.endswith(
        f" {row} (the first is 0): label {label} is out of range: the model has 3 classes, so labels are 0 "
        "to 2"
    )


@pytest.mark.wording
def test_labels_of_other_tasks_are_checked_by_their_losses():
    labels = torch.rand(N, 3, generator=generator("many labels")).round()
    told = refusal((X, spoilt(labels, 300, 5.0)), fu.MultiLabel())
    assert "row 300 (the first is 0): MultiLabel.losses are negative" in told
    assert "row 7 (the first is 0): a number is not finite" in refusal(
        (X, spoilt(X[:, 0], 7, torch.nan)), fu.Regression(), nn.Linear(4, 1)
    )


@pytest.mark.wording
def test_a_number_that_the_type_of_the_model_cannot_hold_is_not_finite():
    assert "row 100 (the first is 0)" in refusal((spoilt(X.double(), 100, 1e300), Y))


@pytest.mark.wording
def test_a_model_that_fills_in_what_is_missing_takes_it():
    class Filling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.nan_to_num())

    missing = spoilt(X, 100, torch.nan)
    model = Filling(4, 3)
    replies = fu.Sequential(model, {"a": (missing, Y)}).exchange({"a": fu.train(fu.flatten(model))})
    assert replies["a"].moved.isfinite().all()
    # A saturated unit hides an infinite input from the loss, not from the gradient.
    assert "not finite" in refusal(
        (spoilt(X, 100, torch.inf), Y), model=nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    )


@pytest.mark.wording
def test_of_a_long_dataset_the_first_rows_are_read(monkeypatch):
    monkeypatch.setattr(trial, "MOST", 400)
    late = spoilt(X, 401, torch.nan)
    fu.Sequential(nn.Linear(4, 3), {"a": TensorDataset(late, Y)})
    assert "row 401" in refusal((late, Y))
    assert "row 399" in refusal(TensorDataset(spoilt(X, 399, torch.nan), Y))


def test_a_node_checks_its_own_rows():
    app = ClientApp()

    def load(context: object) -> flower.Site:
        number = number_of(context)
        x = spoilt(X, 100, torch.nan) if number == 2 else X
        return flower.Site(model, (x, Y), name=f"site-{number}")

    model = nn.Linear(4, 3)
    flower.serve(app, load)
    with warned("absent", says=r"row 100 \(the first is 0\): a number is not finite"):
        federation = flower.connect(grid(app), model, clients=4, patience=QUICK)
    assert "site-2" not in federation.present()


@pytest.mark.wording
def test_a_model_that_needs_two_examples_refuses_a_client_of_one():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    before = model[1].running_mean.clone()
    said = "set 'train': the model cannot train on a batch of one example (Expected more than 1 value"
    assert said in refusal((X[:1], Y[:1]), model=model)
    assert said in refusal(DataLoader(TensorDataset(X[:7], Y[:7]), batch_size=3), model=model)
    dropping = DataLoader(TensorDataset(X[:7], Y[:7]), batch_size=3, drop_last=True)
    one = fu.ClientData((X, Y), {"test": (X[:1], Y[:1])})  # measuring one is no trouble
    fu.Sequential(model, {"a": dropping, "b": one})
    assert torch.equal(model[1].running_mean, before)


def test_three_patients_and_a_client_of_one_class_take_part():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    clients = {"three": (X[:3], Y[:3]), "one class": (X[Y == 1], Y[Y == 1]), "odd": (X[:9], Y[:9])}
    jobs = dict.fromkeys(clients, fu.train(fu.flatten(model)))
    replies = fu.Sequential(model, clients).exchange(jobs, Terms(batch_size=4, shuffle=True))
    assert replies.keys() == clients.keys()
