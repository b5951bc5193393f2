"""Tasks against plain torch: losses, scores, forgetting losses, and every form of batch and model."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.codes import refused
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy
from torch.utils.data import TensorDataset

from fedunlearn import (
    Classification,
    ClientData,
    LanguageModel,
    MultiLabel,
    Regression,
    Sequential,
    Task,
    Terms,
    flatten,
    train,
)
from fedunlearn.core import Batch, LabelTask
from fedunlearn.core.seeds import generator
from fedunlearn.maths import unlearning_transform
from fedunlearn.tasks import described

N, T, CLASSES = 7, 5, 4


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator("tasks", *shape))


def whole(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape, generator=generator("labels", *shape))


class Logits(nn.Module):
    """Returns an object, as models of transformers do."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input: Tensor) -> SimpleNamespace:
        return SimpleNamespace(logits=self.model(input))


def seeded(make) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return make()


@dataclass(frozen=True)
class Case:
    task: Task
    model: nn.Module
    x: Tensor
    y: Tensor
    losses: Tensor
    """By plain torch."""
    scores: dict[str, Tensor]


def cases() -> dict[str, Case]:
    dense = seeded(lambda: nn.Linear(6, CLASSES))
    one = seeded(lambda: nn.Linear(6, 1))
    words = seeded(lambda: nn.Sequential(nn.Embedding(CLASSES, 6), nn.Linear(6, CLASSES)))
    x, tokens = numbers(N, 6), whole(CLASSES, N, T)
    labels, several, real, rows = (
        whole(CLASSES, N),
        whole(2, N, CLASSES).float(),
        numbers(N),
        numbers(N, CLASSES),
    )
    with torch.no_grad():
        out, scalar, spoken = dense(x), one(x)[:, 0], words(tokens)[:, :-1].reshape(-1, CLASSES)
        following = tokens[:, 1:].reshape(-1)
        return {
            "classification": Case(
                Classification(),
                dense,
                x,
                labels,
                cross_entropy(out, labels, reduction="none"),
                {"accuracy": out.argmax(1) == labels},
            ),
            "multi-label": Case(
                MultiLabel(),
                dense,
                x,
                several,
                binary_cross_entropy_with_logits(out, several, reduction="none"),
                {"accuracy": (out > 0) == several.bool()},
            ),
            "regression": Case(
                Regression(scale=2.0),
                one,
                x,
                real,
                (scalar - real) ** 2 / 8,
                {"mse": (scalar - real) ** 2},
            ),
            "regression of rows": Case(
                Regression(),
                dense,
                x,
                rows,
                ((out - rows) ** 2).mean(1) / 2,
                {"mse": ((out - rows) ** 2).mean(1)},
            ),
            "language model": Case(
                LanguageModel(),
                words,
                tokens,
                tokens,
                cross_entropy(spoken, following, reduction="none"),
                {"accuracy": spoken.argmax(1) == following},
            ),
        }


CASES = cases()


@pytest.fixture(params=CASES)
def case(request) -> Case:
    return CASES[request.param]


def test_losses_and_scores_are_those_of_plain_torch(case):
    batch = (case.x, case.y)
    assert torch.allclose(case.task.losses(case.model, batch), case.losses)
    for scores in (case.task.scores(case.model, batch), case.task.measure(case.model, batch)[1]):
        assert scores.keys() == case.scores.keys()
        assert all(torch.allclose(scores[name].float(), case.scores[name].float()) for name in scores)
    assert torch.allclose(case.task.measure(case.model, batch)[0], case.losses)


def test_training_minimises_the_mean_of_the_losses(case):
    assert torch.allclose(case.task.loss(case.model, (case.x, case.y)), case.losses.mean())


def test_the_forgetting_loss_is_the_mean_of_the_transformed_losses(case):
    for constant in (1.0, 2.0):
        found = case.task.unlearning_loss(case.model, (case.x, case.y), constant)
        expected = unlearning_transform(case.losses, constant=constant).mean()
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("factor", [1e-6, 1.0, 1e3])
def test_the_forgetting_loss_is_finite_and_bounded_with_finite_gradients(case, factor):
    """With the constant 2 a loss of zero costs log 2, and more error costs less."""

    class Scaled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return factor * case.model(x)

    case.model.zero_grad()
    found = case.task.unlearning_loss(Scaled(), (case.x, case.y))
    found.backward()
    assert 0 <= float(found.detach()) <= 0.6932
    assert all(p.grad is not None and p.grad.isfinite().all() for p in case.model.parameters())


@pytest.mark.parametrize("name", ["classification", "language model"])
def test_forgetting_has_a_gradient_where_the_probability_of_the_label_rounds_to_one(name):
    """The transform of the loss alone would see a loss of exactly 0."""
    task, output = CASES[name].task, torch.tensor([[40.0, 0.0]]).requires_grad_()
    batch = (torch.zeros(1, 1), torch.tensor([0]))
    if name == "language model":
        batch = (torch.zeros(1, 2, dtype=torch.int64), torch.zeros(1, 2, dtype=torch.int64))

    class Sure(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return output if name == "classification" else output.expand(2, 2)[None]

    losses = task.losses(Sure(), batch)
    assert float(losses.detach().max()) == 0.0
    found = task.unlearning_loss(Sure(), batch, 1.0)
    (slope,) = torch.autograd.grad(found, output)
    assert float(slope[0, 0]) == pytest.approx(1.0, rel=1e-3)
    assert float(slope[0, 1]) == pytest.approx(-1.0, rel=1e-3)


@pytest.mark.parametrize("wrapped", [False, True])
def test_batches_may_be_tuples_lists_or_dicts_and_models_may_return_an_object(case, wrapped):
    model = Logits(case.model) if wrapped else case.model
    batches = [(case.x, case.y), [case.x, case.y], {"input": case.x, "labels": case.y}]
    for batch in batches[: 2 if isinstance(case.model, nn.Embedding) else 3]:
        assert torch.allclose(case.task.losses(model, batch), case.losses)


def test_losses_keep_their_digits_where_a_model_returns_an_object_in_reduced_precision(case):
    with torch.autocast("cpu", torch.bfloat16):
        losses, scores = case.task.measure(Logits(case.model), (case.x, case.y))
    assert losses.dtype == torch.float32
    assert all(values.dtype in (torch.bool, torch.float32) for values in scores.values())


def test_the_entries_of_a_dict_can_be_named():
    case = CASES["classification"]
    task = Classification(label="diagnosis", input="picture")
    batch = {"picture": case.x, "patient": torch.arange(N), "diagnosis": case.y}
    assert torch.allclose(task.losses(case.model, batch), case.losses)
    with refused("invalid", says="no 'labels': name the right one in the task"):
        Classification(input="picture").losses(case.model, batch)


def test_a_language_model_needs_no_labels_and_reads_those_of_a_dict():
    case = CASES["language model"]
    expected = case.losses
    for batch in (case.x, (case.x, case.y), {"input": case.x, "labels": case.y}):
        assert torch.allclose(case.task.losses(case.model, batch), expected)
    named = LanguageModel(input="input_ids")
    assert torch.allclose(named.losses(case.model, {"input_ids": case.x}), expected)


def test_ignored_tokens_are_neither_learned_nor_scored():
    case = CASES["language model"]
    labels = case.y.clone()
    labels[:, 3:] = -100
    batch = (case.x, labels)
    expected = case.losses.reshape(N, T - 1)[:, :2].reshape(-1)
    losses, scores = case.task.measure(case.model, batch)
    assert torch.allclose(losses, expected)
    assert len(scores["accuracy"]) == 2 * N
    assert torch.allclose(case.task.loss(case.model, batch), expected.mean())
    assert torch.equal(case.task.labels(batch), case.y[:, 1:3].reshape(-1))
    assert torch.equal(LanguageModel(ignore_index=0).labels(case.x), case.x[:, 1:][case.x[:, 1:] != 0])


def test_a_batch_without_a_token_to_learn_teaches_nothing():
    case = CASES["language model"]
    batch = (case.x, torch.full_like(case.y, -100))
    case.model.zero_grad()
    for found in (case.task.loss(case.model, batch), case.task.unlearning_loss(case.model, batch)):
        found.backward()
        assert float(found.detach()) == 0
        assert not any(p.grad.any() for p in case.model.parameters())


def test_which_tasks_distil():
    assert isinstance(Classification(), LabelTask)
    assert isinstance(LanguageModel(), LabelTask)
    assert not isinstance(Regression(), LabelTask)
    assert not isinstance(MultiLabel(), LabelTask)


class Absolute(Task):
    """A task of one's own: one method."""

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return (model(batch[0])[:, 0] - batch[1]).abs()


def test_a_task_of_one_method_trains_forgets_and_is_measured():
    case = CASES["regression"]
    data = ClientData((case.x, case.y), {"test": (case.x, case.y), "forget": (case.x, case.y)})
    federation = Sequential(case.model, {"a": data}, task=Absolute())
    with torch.no_grad():
        losses = (case.model(case.x)[:, 0] - case.y).abs()
    (reply,) = federation.exchange({"a": train(flatten(case.model))}, Terms(lr=0.1)).values()
    expected = torch.autograd.grad(
        (case.model(case.x)[:, 0] - case.y).abs().mean(), list(case.model.parameters())
    )
    assert torch.allclose(reply.moved, 0.1 * torch.cat([g.reshape(-1) for g in expected]), atol=1e-6)
    assert reply.statistics["train"]["loss"].value == pytest.approx(float(losses.mean()), rel=1e-5)
    (away,) = federation.exchange({"a": train(flatten(case.model), "uce")}, Terms(lr=0.1)).values()
    assert float(away.moved @ reply.moved) < 0


def refusal(task: Task, model: nn.Module, train: object, **sets: object) -> str:
    """What the engine says to a client's data, before anything is trained."""
    fine = {"c-fine": train} if sets else {}
    with refused("data") as caught:
        Sequential(model, {**fine, "c-7": ClientData(train, sets)}, task=task)
    said = str(caught.value)
    assert "c-7" in said
    assert "\n" not in said
    assert (f"set {next(iter(sets))!r}" if sets else "set 'train'") in said
    return said


X, Y = numbers(N, 6), whole(CLASSES, N)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (Y.float().unsqueeze(1), r"labels are float32 of shape \(7, 1\): classification needs one whole"),
        (Y.unsqueeze(1), r"int64 of shape \(7, 1\)"),
        (Y.float(), r"float32 of shape \(7,\)"),
        (Y + 1, r"label 4 is out of range: the model has 4 classes, so labels are 0 to 3"),
        (Y - 3, r"label -\d is out of range"),
    ],
)
@pytest.mark.parametrize("where", ["train", "test"])
def test_wrong_labels_of_a_classification_are_named_with_client_and_set(labels, said, where):
    model = CASES["classification"].model
    train, sets = ((X, labels), {}) if where == "train" else ((X, Y), {"test": (X, labels)})
    assert re.search(said, refusal(Classification(), model, train, **sets))


@pytest.mark.parametrize("late", [Y.clone(), Y.to(torch.int32), Y.to(torch.uint8)])
def test_labels_of_any_whole_type_are_fine(late):
    model = CASES["classification"].model
    replies = Sequential(model, {"a": (X, late)}).exchange({"a": train(flatten(model))}, Terms(lr=0.1))
    expected = Sequential(model, {"a": (X, Y)}).exchange({"a": train(flatten(model))}, Terms(lr=0.1))
    assert torch.equal(replies["a"].moved, expected["a"].moved)


@pytest.mark.wording
def test_labels_out_of_range_are_found_in_dicts_and_in_language():
    model = CASES["classification"].model
    late = Y.clone()
    late[-1] = 9
    assert "label 9 is out of range" in refusal(Classification(input="x"), model, {"x": X, "labels": late})
    words, tokens = CASES["language model"].model, CASES["language model"].x
    labels = tokens.clone()
    labels[-1, -1] = 17
    assert "label 17 is out of range" in refusal(LanguageModel(), words, (tokens, labels))


@pytest.mark.wording
def test_labels_out_of_range_deep_in_a_dataset_are_refused_with_their_row():
    late = Y.clone()
    late[-1] = 9
    told = refusal(Classification(), CASES["classification"].model, TensorDataset(X, late))
    assert "row 6 (the first is 0): label 9 is out of range" in told


@pytest.mark.wording
@pytest.mark.parametrize(
    ("task", "data", "said"),
    [
        (MultiLabel(), (X, Y), "for labels that are int64"),
        (MultiLabel(), (X, whole(2, N, 3)), "give both one shape"),
        (Regression(), (X, numbers(N, 2)), "give both one shape"),
        (Classification(), X, "give pairs of inputs and labels"),
        (Classification(), (numbers(N, 5), Y), "check the shapes of inputs and labels"),
        (LanguageModel(), (X, Y), "language model"),
        (LanguageModel(), X, "a language model needs tokens"),
        (Classification(), (X, torch.zeros(N, dtype=torch.complex64)), "complex64"),
        (Classification(), (torch.full((N, 6), torch.nan), Y), "not finite"),
        (Regression(), (X, torch.full((N, 4), torch.inf)), "not finite"),
        (MultiLabel(), (X, 5 * torch.ones(N, 4)), "check the labels"),
    ],
)
def test_data_that_does_not_fit_the_task_is_named_with_client_and_set(task, data, said):
    assert said in refusal(task, CASES["classification"].model, data)


@pytest.mark.wording
def test_a_model_that_returns_something_else_needs_a_task_of_its_own():
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(6, CLASSES)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.dense(x), x

    assert "the model returns tuple, which is neither a tensor nor has logits" in refusal(
        Classification(), Pair(), (X, Y)
    )


@pytest.mark.wording
@pytest.mark.parametrize(
    ("losses", "said"),
    [
        (lambda out: out[:, 0] - 100, "Own.losses are negative"),
        (lambda out: out[:, 0] * torch.nan, "Own.losses are not finite"),
        (
            lambda out: out.abs().mean(),
            "Own.losses returns a single number: return one loss for each example",
        ),
        (lambda out: 1.0, "Own.losses returns a float"),
        (
            lambda out: out.abs().mean().reshape(1),
            "Own.losses returns 1 for 2 examples: return one loss for each example",
        ),
    ],
)
def test_losses_that_cannot_be_used_are_refused(losses, said):
    class Own(Task):
        def losses(self, model: nn.Module, batch: object) -> Tensor:
            return losses(model(batch[0]))

    assert said in refusal(Own(), CASES["classification"].model, (X, Y))


@pytest.mark.parametrize("scale", [0, -1, float("inf"), float("nan"), "wide"])
def test_a_scale_that_is_no_length_is_refused(scale):
    with refused("invalid", says=r"scale = .*: it must be"):
        Regression(scale)


def overriding(base: type[Task], **methods: object) -> Task:
    return type("Own", (base,), methods)()


@pytest.mark.parametrize("name", CASES)
def test_a_task_of_the_package_with_other_losses_trains_forgets_and_measures_with_them(name):
    case = CASES[name]
    batch = (case.x, case.y)

    def losses(self, model, batch):
        return 3 * super(type(self), self).losses(model, batch)

    own, plain = overriding(type(case.task), losses=losses), type(case.task)()
    three = 3 * plain.losses(case.model, batch)
    assert torch.equal(own.measure(case.model, batch)[0], three)
    assert own.measure(case.model, batch)[1].keys() == case.scores.keys()
    assert torch.allclose(own.loss(case.model, batch), three.mean())
    assert torch.allclose(own.unlearning_loss(case.model, batch), unlearning_transform(three).mean())
    assert own.criterion("task") is None


@pytest.mark.parametrize("name", CASES)
def test_a_task_of_the_package_with_other_scores_reports_them(name):
    case = CASES[name]
    own = overriding(type(case.task), scores=lambda self, model, batch: {"mine": torch.ones(3)})
    assert own.measure(case.model, (case.x, case.y))[1].keys() == {"mine"}


@pytest.mark.parametrize("task", [Classification, LanguageModel])
def test_logits_of_ones_own_are_used_everywhere(task):
    case = CASES["classification" if task is Classification else "language model"]
    batch = (case.x, case.y)

    def logits(self, model, batch):
        return 2 * super(type(self), self).logits(model, batch)

    own = overriding(task, logits=logits)
    expected = cross_entropy(2 * task().logits(case.model, batch), task().labels(batch), reduction="none")
    assert torch.equal(own.losses(case.model, batch), expected)
    assert torch.equal(own.measure(case.model, batch)[0], expected)
    assert torch.allclose(own.loss(case.model, batch), expected.mean())
    assert torch.allclose(own.unlearning_loss(case.model, batch), unlearning_transform(expected).mean())


@pytest.mark.parametrize("loss", ["task", "uce", "unlikelihood"])
@pytest.mark.parametrize("what", ["losses", "logits", "loss", "unlearning_loss"])
def test_what_a_subclass_overrides_counts_on_a_perceptron(what, loss):
    def nothing(self, *given):
        return 0 * getattr(super(type(self), self), what)(*given)

    model = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, CLASSES)))
    federation = Sequential(model, {"a": (X, Y)}, task=overriding(Classification, **{what: nothing}))
    (reply,) = federation.exchange({"a": train(flatten(model), loss)}, Terms(lr=0.1)).values()
    uses = {"loss": {"task"}, "unlearning_loss": {"uce", "unlikelihood"}}.get(what, {loss})
    assert bool(reply.moved.any()) is (loss not in uses)


@pytest.mark.wording
@pytest.mark.parametrize("name", ["loss", "acc", "seen", "mse_std", "a score", "R2", 3])
def test_a_score_with_the_name_of_another_measure_is_refused(name):
    own = overriding(Classification, scores=lambda self, model, batch: {name: torch.ones(2)})
    said = refusal(own, CASES["classification"].model, (X, Y))
    assert f"Own.scores returns {name!r}, which is no name for a score" in said


def test_examples_without_a_token_to_learn_beside_one_with_a_few_are_fine():
    case = CASES["language model"]
    labels = torch.full_like(case.x, -100)
    labels[0, 1] = 2
    Sequential(
        case.model, {"a": (case.x, labels), "b": (case.x, torch.full_like(case.x, -100))}, task=case.task
    )


@pytest.mark.parametrize("loss", ["task", "uce", "unlikelihood"])
@pytest.mark.parametrize("depth", [1, 2])
def test_labels_may_be_truth_values(depth, loss):
    layers = [nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)]
    model = seeded(lambda: nn.Sequential(*(layers if depth == 2 else layers[:1])))
    moved = [
        Sequential(model, {"a": (X, labels)})
        .exchange({"a": train(flatten(model), loss)}, Terms(lr=0.1))["a"]
        .moved
        for labels in (Y > 1, (Y > 1).long())
    ]
    assert torch.equal(*moved)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.ones(3), torch.zeros(3)),
        (np.ones(3), np.zeros(3)),
        ((1, 2), (1, 3)),
        ({"a": [torch.ones(1)]}, {"a": [torch.zeros(1)]}),
        (nn.CrossEntropyLoss(torch.ones(3)), nn.CrossEntropyLoss(torch.zeros(3))),
        (len, {1}),
    ],
)
def test_a_task_is_described_by_all_of_its_settings(one, other):
    class Own(Task):
        def __init__(self, setting: object) -> None:
            self.setting = setting

        def losses(self, model: nn.Module, batch: Batch) -> Tensor:
            return torch.zeros(1)

    told = described(Own(one))
    assert json.loads(json.dumps(told)) == told == described(Own(one))
    assert told != described(Own(other))
    assert described(Classification()) == {"task": "Classification", "label": "labels"}
