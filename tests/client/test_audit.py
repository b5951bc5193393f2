"""What a client computes in an audit, and what leaves it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from audits import TARGET, before, network, retrained, world
from torch import nn
from torch.nn.functional import cross_entropy

from fedunlearn import (
    ClientData,
    Examples,
    FedUnlearnError,
    Job,
    LanguageModel,
    MultiLabel,
    Sequential,
    State,
)
from fedunlearn.client.audit import NUMBERS, audit_job, unpacked
from fedunlearn.core.vectors import flatten, load
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
    assert reply.arrays.keys() == expected.keys() == job.expects.keys()
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
    for reply in replies.values():
        assert {name.rpartition(" ")[2] for name in reply.statistics} == {"test", "audit"}
        assert all(set(means) == {"loss", "accuracy"} for means in reply.statistics.values())


def test_nobody_looks_at_the_audit_set_before_the_audit(federation):
    reply = federation.exchange({TARGET: Job("measure", before().params, buffers=before().buffers)})[TARGET]
    assert reply.statistics.keys() == {"test", "seen"}


def test_a_target_without_an_audit_set_uses_its_test_set():
    held = world()[TARGET]
    job = audit_job(retrained(), compare=True)
    plain = {"test": held.evaluations["test"]}
    reply = Sequential(network(), {TARGET: ClientData(held.train, plain)}).exchange({TARGET: job})[TARGET]
    assert reply.arrays["losses"][-2:].tolist() == [620, 100]
    marked = ClientData(held.train, {**plain, "backdoor": held.train})
    with pytest.raises(FedUnlearnError, match="site-1 holds no examples like the forgotten ones"):
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
    with pytest.raises(FedUnlearnError, match="sent AUCs that are not between 0 and 1, or counts"):
        unpacked(torch.tensor(numbers))
