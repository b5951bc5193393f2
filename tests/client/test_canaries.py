"""What a client does with its canaries in an audit, on every engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from support.audits import SITES, TARGET, world
from torch import nn
from torch.nn.functional import cross_entropy

import fedunlearn as fu
from fedunlearn import Examples, Job, Sequential, State
from fedunlearn.client.audit import audit_job, compared_sets
from fedunlearn.client.data import part
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers, flatten, load
from fedunlearn.data import draw_canaries, plant_canaries
from fedunlearn.evidence import guess_canaries

COUNT = 64


def drawn(site: str) -> tuple[Examples, Examples]:
    """Inputs of twelve numbers have too few patterns of bright and dark, so these are normal."""
    trained, held_out = draw_canaries(site, COUNT, shape=(12,), classes=3, seed=1)
    random = generator("inputs", site)
    one, other = (torch.randn(len(each.y), 12, generator=random) for each in (trained, held_out))
    return Examples(one, trained.y), Examples(other, held_out.y)


@cache
def clients() -> dict[str, fu.ClientData]:
    """A part of the small world, which a wide network can learn by heart."""
    return {site: replace(held, train=part(held.train, torch.arange(100))) for site, held in world().items()}


@cache
def planted() -> dict[str, fu.ClientData]:
    """The same, each client with canaries."""
    return {site: plant_canaries(held, *drawn(site)) for site, held in clients().items()}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 3))


@cache
def fitted(seed: int, *sites: str) -> State:
    """A model that has learned everything that these clients hold nearly by heart."""
    x = torch.cat([planted()[site].train.x for site in sites])
    y = torch.cat([planted()[site].train.y for site in sites])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(150):
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()
    return State(flatten(model), buffers=buffers(model))


def before() -> State:
    return fitted(1, *SITES)


def without(seed: int = 2) -> State:
    return fitted(seed, *(site for site in SITES if site != TARGET))


@pytest.fixture(scope="module")
def federation() -> Sequential:
    return Sequential(network(), planted())


def losses(state: State, examples: Examples) -> torch.Tensor:
    model = network().eval()
    load(model, state)
    with torch.inference_mode():
        return cross_entropy(model(examples.x), examples.y, reduction="none").double()


def test_counts_are_what_a_direct_computation_finds(federation):
    references = [without(4), without(5)]
    sets = [planted()[TARGET].evaluations[name] for name in ("canary-in", "canary-out")]

    def expected(state: State, references: list[State]) -> tuple[int, int]:
        hard = [sum(losses(each, examples) for each in references) / len(references) for examples in sets]
        scores = [
            (losses(state, examples) - mean).tolist() for examples, mean in zip(sets, hard, strict=True)
        ]
        return guess_canaries(*scores)

    for given in (references, []):
        job = audit_job(without(3), retrained=without(), original=before(), references=given, compare=True)
        reply = federation.exchange({TARGET: job})[TARGET]
        for name, state in (("model", without(3)), ("original", before())):
            found = reply.statistics[f"{name} canaries"]["accuracy"]
            assert (found.total, found.count) == expected(state, given or [without()])


def test_only_counts_leave_a_target_and_nothing_a_retained_client(federation):
    for client, compare in ((TARGET, True), ("site-0", False)):
        job = audit_job(without(3), retrained=without(), original=before(), compare=compare)
        reply = federation.exchange({client: job})[client]
        about = {name: means for name, means in reply.statistics.items() if "canar" in name}
        if not compare:
            assert about == {}
            continue
        assert about.keys() == {"model canaries", "original canaries"}
        for means in about.values():
            assert means.keys() == {"accuracy"}
            assert means["accuracy"].count == COUNT
            assert means["accuracy"].total == int(means["accuracy"].total)


def test_nobody_looks_at_canaries_before_the_audit(federation):
    reply = federation.exchange({TARGET: Job("measure", before().params, buffers=before().buffers)})[TARGET]
    assert reply.statistics.keys() == {"test", "seen"}


def test_the_verdict_does_not_rest_on_canaries():
    """Nobody has unseen canaries in the audit set, so trained ones among the forgotten would be found."""
    forgotten, _ = compared_sets(TARGET, planted()[TARGET])
    assert torch.equal(forgotten.x, clients()[TARGET].train.x)
    sets = {**planted()[TARGET].evaluations, "forget": part(forgotten, torch.arange(9))}
    named = replace(planted()[TARGET], evaluations=sets)
    assert len(compared_sets(TARGET, named)[0].y) == 9


def audit(federation, model: State) -> fu.Evidence:
    return fu.audit(federation, model, targets=TARGET, retrained=without(), original=before())


def test_a_model_that_was_trained_on_canaries_is_found_out(federation):
    pytest.importorskip("scipy")
    found = audit(federation, before()).targets[TARGET].canaries
    assert found["model"] == found["original"]
    assert found["model"].bound.epsilon_low > 0.3
    evidence = audit(federation, without(3))
    assert evidence.targets[TARGET].canaries["model"].bound.epsilon_low == 0
    told = [sentence for sentence in evidence.sentences if "canaries" in sentence]
    assert told[0].startswith("site-1, canaries: ")
    assert told[1].startswith("site-1, canaries in ω⁰: ")
    assert evidence.to_json()["targets"][TARGET]["canaries"]["original"]["guesses"] == COUNT


def test_without_canaries_or_models_to_compare(federation):
    plain = Sequential(network(), clients())
    assert audit(plain, without(3)).targets[TARGET].canaries == {}
    alone = fu.audit(federation, without(3), targets=TARGET).targets[TARGET]
    assert alone.canaries.keys() == {"model"}  # by plain losses


def test_workers_and_flower_find_the_same(federation):
    expected = audit(federation, without(3))
    with fu.simulate(network(), planted(), workers=2) as parallel:
        assert audit(parallel, without(3)) == expected

    pytest.importorskip("flwr")
    from support.flower_apps import QUICK, grid, number_of, served

    from fedunlearn.engines import flower

    app = served(
        "perceptron", lambda context: flower.Site(network(), planted()[f"site-{number_of(context)}"])
    )
    nodes = grid(app, names=SITES, nodes=3)
    assert audit(flower.connect(nodes, network(), clients=3, patience=QUICK), without(3)) == expected
