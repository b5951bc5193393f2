"""What a client computes in an audit, and what leaves it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from support.audits import TARGET, before, marked, network, retrained, world
from support.codes import refused
from torch import nn
from torch.nn.functional import cross_entropy

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    Job,
    LanguageModel,
    MultiLabel,
    Regression,
    Sequential,
    State,
)
from fedunlearn.client.audit import NUMBERS, audit_job, require_one_mix, unpacked, unpacked_counts
from fedunlearn.client.outputs import RIDGE, Outputs, probe
from fedunlearn.core.vectors import buffers, flatten, load
from fedunlearn.evidence import Scores, compare, hardest


def losses(state: State, client: str = TARGET) -> Scores:
    """Computed here, without a client."""
    model, held = network().eval(), world()[client]
    load(model, state)

    def of(examples: Examples) -> list[float]:
        with torch.inference_mode():
            return cross_entropy(model(examples.x), examples.y, reduction="none").tolist()

    return Scores(of(held.train), of(held.evaluations["audit"]))


@pytest.fixture(scope="module")
def federation() -> Sequential:
    return Sequential(network(), world())


def test_a_target_reveals_what_a_direct_computation_finds(federation):
    job = audit_job(
        retrained(3),
        retrained=retrained(),
        original=before(),
        references=[retrained(4), retrained(5)],
        compare=True,
    )
    reply = federation.exchange({TARGET: job})[TARGET]
    model, again, original = losses(retrained(3)), losses(retrained()), losses(before())
    references = [losses(retrained(4)), losses(retrained(5))]
    expected = {
        "losses": compare(model, again),
        "model": compare(model, again, references),
        "original": compare(original, again, references),
        "hardest": hardest(model, again, references),
    }
    assert reply.arrays.keys() == expected.keys() == {name for name in job.expects if " at " not in name}
    for name, pair in expected.items():
        found = unpacked(reply.arrays[name])
        assert (found.n_forgotten, found.n_unseen) == (pair.n_forgotten, pair.n_unseen)
        for part in ("model", "reference", "difference"):
            ours, theirs = getattr(found, part), getattr(pair, part)
            assert (ours.value, ours.error) == pytest.approx((theirs.value, theirs.error), abs=1e-5)


def test_every_model_is_measured_with_its_own_buffers(federation):
    states = {"model": retrained(3), "retrained": retrained(), "original": before()}
    others = {name: state for name, state in states.items() if name != "model"}
    reply = federation.exchange({"site-0": audit_job(states["model"], **others, compare=False)})["site-0"]
    for name, state in states.items():
        measured = federation.exchange({"site-0": Job("measure", state.params, buffers=state.buffers)})
        assert reply.statistics[f"{name} test"] == measured["site-0"].statistics["test"]


def test_little_leaves_a_client(federation):
    """A retained client sends sums and counts; a target also a few numbers, whatever it holds."""
    models = {"retrained": retrained(), "original": before(), "again": retrained(4)}
    sent = {
        client: audit_job(retrained(3), **models, compare=client == TARGET) for client in ("site-0", TARGET)
    }
    replies = federation.exchange(sent)
    assert replies["site-0"].arrays == {}
    assert {array.shape for array in replies[TARGET].arrays.values()} == {(len(NUMBERS),)}
    sent = {name: {held.rpartition(" ")[2] for held in reply.statistics} for name, reply in replies.items()}
    assert sent["site-0"] == {"test", "audit", "seen"}
    assert sent[TARGET] == {"test", "audit", "forgotten", "probe", "outputs"}
    scores = {"probe": {"accuracy"}, "outputs": {"forgotten", "unseen"}}
    for reply in replies.values():
        for held, means in reply.statistics.items():
            assert set(means) == scores.get(held.rpartition(" ")[2], {"loss", "accuracy"})


def test_less_leaves_a_client_without_retraining_and_of_references(federation):
    alone = federation.exchange({c: audit_job(before(), compare=c == TARGET) for c in world()})
    assert all(reply.statistics.keys() == {"model test", "model audit"} for reply in alone.values())
    job = audit_job(before(), retrained=retrained(), references=[retrained(4)], compare=True)
    sent = federation.exchange({TARGET: job})[TARGET].statistics
    assert not any(name.startswith("reference") for name in sent)


def test_the_sum_over_a_single_example_stays_with_its_client():
    held = world()["site-0"]
    sets = {"test": Examples(*(each[:1] for each in held.evaluations["test"])), "audit": held.train}
    job = audit_job(before(), retrained=retrained(), compare=False)
    alone = Sequential(network(), {"site-0": ClientData(held.train, sets)}).exchange({"site-0": job})
    assert {name.rpartition(" ")[2] for name in alone["site-0"].statistics} == {"audit", "seen"}


def test_nobody_looks_at_unseen_examples_before_the_audit():
    job = Job("measure", before().params, buffers=before().buffers)
    reply = Sequential(network(), marked()).exchange({TARGET: job})[TARGET]
    assert reply.statistics.keys() == {"test", "seen", "backdoor"}


def said(state: State, examples: Examples) -> tuple[torch.Tensor, torch.Tensor]:
    """Probabilities and what the last layer reads, computed here."""
    model = network().eval()
    load(model, state)
    with torch.inference_mode():
        return model(examples.x).softmax(1).double(), model[:-1](examples.x).double()


def test_rates_in_the_tail_are_counts_of_calibrated_losses():
    states = {"retrained": retrained(), "original": before(), "again": retrained(4)}
    target = Sequential(network(), marked())
    reply = target.exchange({TARGET: audit_job(retrained(3), **states, compare=True)})[TARGET]
    rated = {name: array for name, array in reply.arrays.items() if " at " in name}
    # 1,860 unseen examples are enough for 1 %, and not for 0.1 %.
    assert rated.keys() == {"model at 1 %", "retrained at 1 %", "original at 1 %", "again at 1 %"}
    held = marked()[TARGET]
    first, second, scores = (
        [
            cross_entropy(said(state, examples)[0].log(), examples.y, reduction="none")
            for examples in (held.train, held.evaluations["audit"])
        ]
        for state in (retrained(), retrained(4), before())
    )
    forgotten, unseen = (z - (x + y) / 2 for x, y, z in zip(first, second, scores, strict=True))
    threshold = unseen.sort().values[18]
    hits = int((forgotten < threshold).sum())
    assert rated["original at 1 %"].tolist() == [hits, 620, 18, 1860]
    assert hits > 2 * rated["again at 1 %"][0] > 0
    alone = audit_job(retrained(3), retrained=retrained(), compare=True)
    reply = target.exchange({TARGET: alone})[TARGET]
    assert "retrained at 1 %" not in reply.arrays  # it calibrates, so it has no scores of its own


def test_output_distances_are_those_of_scipy(federation):
    distance = pytest.importorskip("scipy.spatial.distance")
    states = {"model": retrained(3), "original": before(), "again": retrained(4)}
    job = audit_job(
        states["model"], retrained=retrained(), original=before(), again=retrained(4), compare=True
    )
    found = federation.exchange({TARGET: job})[TARGET].statistics
    held = world()[TARGET]
    for name, state in states.items():
        for part, examples in (("forgotten", held.train), ("unseen", held.evaluations["audit"])):
            rows = zip(said(state, examples)[0], said(retrained(), examples)[0], strict=True)
            expected = sum(distance.jensenshannon(p, q, base=2) for p, q in rows)
            mean = found[f"{name} outputs"][part]
            assert (mean.total, mean.count) == (pytest.approx(expected, rel=1e-4), 620)
    assert "retrained outputs" not in found


def test_the_probe_is_ridge_regression_on_the_last_hidden_layer(federation):
    """Here by least squares on a longer system, as an augmented matrix: another way to the same solution."""
    job = audit_job(retrained(3), retrained=retrained(), compare=True)
    found = federation.exchange({TARGET: job})[TARGET].statistics
    held = world()[TARGET]
    seen, unseen = (
        said(retrained(3), examples)[1].numpy() for examples in (held.train, held.evaluations["audit"])
    )
    centred, labels = seen - seen.mean(0), np.eye(3)[held.train.y]
    ridge = RIDGE * np.square(centred).sum() / centred.shape[1]
    longer = np.vstack([centred, np.sqrt(ridge) * np.eye(64)])
    weights = np.linalg.lstsq(longer, np.vstack([labels - labels.mean(0), np.zeros((64, 3))]), rcond=None)[0]
    right = ((unseen - seen.mean(0)) @ weights + labels.mean(0)).argmax(1) == held.evaluations[
        "audit"
    ].y.numpy()
    mean = found["model probe"]["accuracy"]
    assert (mean.total, mean.count) == (right.sum(), 620)
    assert mean.value > 0.7


def test_both_forms_of_the_probe_agree():
    """More features than examples, and fewer: repeated features change the form and nothing else."""
    torch.manual_seed(0)
    x, y = torch.randn(50, 8).double(), torch.arange(50) % 3
    x[:, 0] += y
    few = Outputs(torch.zeros(50, 3), y, x)
    many = replace(few, features=x.repeat(1, 10) / 10**0.5)
    # Ten copies have a tenth of the mean length each, and share the weight.
    assert probe(few, few)["accuracy"].value > 0.5
    with pytest.MonkeyPatch.context() as patch:
        expected = probe(few, few)
        patch.setattr("fedunlearn.client.outputs.RIDGE", 10 * RIDGE)
        assert probe(many, many) == expected


def test_a_probe_finds_what_the_last_layer_hides():
    """Forgetting in the last layer alone changes outputs and not the probe."""
    model = network()
    load(model, before())
    with torch.no_grad():
        model[-1].weight.zero_()
    hidden = State(flatten(model), buffers=before().buffers)
    job = audit_job(hidden, retrained=retrained(), original=before(), compare=True)
    found = Sequential(network(), world()).exchange({TARGET: job})[TARGET].statistics
    assert found["model probe"] == found["original probe"]
    assert found["model forgotten"]["accuracy"].value < 0.5 < found["original forgotten"]["accuracy"].value


def test_a_target_without_an_audit_set_uses_its_test_set():
    held = world()[TARGET]
    job = audit_job(retrained(), compare=True)
    plain = {"test": held.evaluations["test"]}
    reply = Sequential(network(), {TARGET: ClientData(held.train, plain)}).exchange({TARGET: job})[TARGET]
    assert reply.arrays["losses"][-2:].tolist() == [620, 100]
    marked = ClientData(held.train, {**plain, "backdoor": held.train})
    with refused("data", says="site-1 holds no examples like the forgotten ones"):
        Sequential(network(), {TARGET: marked}).exchange({TARGET: job})


def test_what_is_to_be_forgotten_may_be_a_part():
    held = world()[TARGET]
    part = Examples(held.train.x[:50], held.train.y[:50])
    data = {TARGET: replace(held, evaluations={**held.evaluations, "forget": part})}
    job = audit_job(retrained(), compare=True)
    reply = Sequential(network(), data).exchange({TARGET: job})[TARGET]
    assert reply.arrays["losses"][-2:].tolist() == [50, 620]


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


def test_texts_and_label_sets_count_once():
    """Tokens of a text are not independent; as many examples as tokens would make errors too small."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 5, (40, 7))
    labels = tokens.clone()
    labels[0] = -100  # a text without anything to learn is left out
    labels[1, :4] = -100
    texts = ClientData((tokens, labels), {"audit": (tokens[5:], labels[5:])})
    words = Words()
    reply = Sequential(words, {"a": texts}, task=LanguageModel()).exchange(
        {"a": audit_job(State(flatten(words)), compare=True)}
    )["a"]
    assert reply.arrays["losses"][-2:].tolist() == [39, 35]

    x, y = torch.randn(30, 4), torch.randint(0, 2, (30, 3))
    several = ClientData((x, y), {"audit": (x[:20], y[:20])})
    linear = nn.Linear(4, 3)
    reply = Sequential(linear, {"a": several}, task=MultiLabel()).exchange(
        {"a": audit_job(State(flatten(linear)), compare=True)}
    )["a"]
    assert reply.arrays["losses"][-2:].tolist() == [30, 20]


class Headless(nn.Module):
    """No linear layer at all."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(12, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


@pytest.mark.parametrize(
    ("model", "task", "labels", "left"),
    [
        (nn.Linear(12, 3), Classification(), None, {"outputs"}),  # nothing is hidden in front of it
        (Headless(), Classification(), None, {"outputs"}),
        (network(), Classification(), "one", {"outputs"}),  # always right
        (network(), MultiLabel(), "several", set()),
        (nn.Sequential(network(), nn.Linear(3, 1)), Regression(), "numbers", set()),
    ],
    ids=["one layer", "no linear layer", "one class", "multi-label", "regression"],
)
def test_what_cannot_be_measured_is_left_out(model, task, labels, left):
    torch.manual_seed(0)
    x, y = world()[TARGET].train
    y = {
        "one": torch.zeros_like(y),
        "several": torch.nn.functional.one_hot(y, 3),
        "numbers": torch.randn(len(y)),
        None: y,
    }[labels]
    state = State(flatten(model), buffers=buffers(model))
    other = replace(state, params=state.params + 0.1)
    held = {"a": ClientData((x, y), {"audit": (x[:90], y[:90])})}
    sites = Sequential(model, held, task=task)
    reply = sites.exchange({"a": audit_job(state, retrained=other, compare=True)})["a"]
    kinds = {name.rpartition(" ")[2] for name, means in reply.statistics.items() if means}
    assert kinds & {"probe", "outputs"} == left
    assert "model" in reply.arrays


@pytest.mark.parametrize(
    "numbers", [[3, 2, 0, 9], [1, 2, 10, 9], [0.5, 2, 0, 9], [-1, 2, 0, 9], [0, 0, 0, 9]]
)
def test_impossible_counts_are_refused(numbers):
    with refused("client", says="sent a true positive rate whose counts are not possible"):
        unpacked_counts(torch.tensor(numbers))


@pytest.mark.parametrize(
    "numbers",
    [
        [1.2, 0, 0.5, 0, 0, 0, 9, 9],
        [0.5, -1, 0.5, 0, 0, 0, 9, 9],
        [0.5, 0, 0.5, 0, 2, 0, 9, 9],
        [0.5, 0, 0.5, 0, 0, 0, 9.5, 9],
        [0.5, 0, 0.5, 0, 0, 0, 9, 1],
    ],
)
def test_impossible_comparisons_are_refused(numbers):
    with refused("client", says="sent AUCs that are not between 0 and 1, or counts"):
        unpacked(torch.tensor(numbers))


@pytest.mark.parametrize("size", [30, 100, 1000])
@pytest.mark.parametrize("classes", [2, 10])
def test_labels_that_were_drawn_alike_are_taken_and_others_refused(size, classes):
    random = torch.Generator().manual_seed(size + classes)
    for _ in range(10):
        shares = torch.rand(classes, generator=random)
        labels = shares.multinomial(2 * size, replacement=True, generator=random)
        require_one_mix("site-1", *labels.split(size))
    with refused("data", says=r"\(100%, above all label 0\), so there can be no verdict"):
        require_one_mix("site-1", *torch.arange(2 * size).div(size, rounding_mode="floor").split(size))
