from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.backdoors import TRAINING, planted
from support.closed_form import CLIENTS, DIMENSION, drive, jobs_of, request
from support.codes import refused
from support.federations import network
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedunlearn import (
    Classification,
    Phase,
    Replies,
    Reply,
    Schedule,
    State,
    flatten,
    method,
    unlearn,
)
from fedunlearn.client.proxies import class_proxies
from fedunlearn.core import Job, vectors
from fedunlearn.core.seeds import generator
from fedunlearn.core.state import Metrics
from fedunlearn.driver import Below
from fedunlearn.methods.ascent import Ascent
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.methods.fedcare import ConflictAwareAscent, RecoveryWithoutRollback, conflict_aware_ascent

TASK = Classification()


def batch(number: int, shape: tuple[int, ...] = (1, 6, 6)) -> tuple[Tensor, Tensor]:
    random = generator("fedcare", number)
    return torch.rand(30, *shape, generator=random), torch.randint(0, 3, (30,), generator=random)


def slope(found: Tensor, model: nn.Module) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(found, vectors.trainable(model))])


def gradients(number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the loss that is minimised, of plain ascent, and of the loss on the proxies."""
    model, (x, y) = network("perceptron"), batch(number)
    origin = flatten(model) + 0.02 * torch.randn(len(flatten(model)), generator=generator("origin", number))
    job = Job("train", flatten(model), {"origin": origin}, {"proxies": 4})
    proxies = class_proxies(TASK, model, origin, (x, y), 4)
    return (
        slope(conflict_aware_ascent(TASK, job)(model, (x, y)), model),
        slope(-cross_entropy(model(x), y), model),
        slope(cross_entropy(model(proxies.batch[0]), proxies.classes), model),
    )


def test_the_ascent_loses_what_would_raise_the_loss_on_the_proxies_and_nothing_else():
    conflicting = 0
    for number in range(12):
        used, ascent, keep = gradients(number)
        part = min(0.0, float(ascent @ keep)) / float(keep @ keep)
        assert torch.allclose(used, ascent - part * keep, atol=1e-6)
        assert float(used @ keep) >= -1e-6
        conflicting += part < 0
    assert 0 < conflicting < 12


def test_proxies_are_what_the_model_predicts_within_the_range_of_the_inputs():
    model, held = network("perceptron"), batch(1)
    proxies = class_proxies(TASK, model, flatten(model), held, 4)
    assert proxies.classes.bincount().tolist() == [4, 4, 4]
    assert torch.equal(model(proxies.batch[0]).argmax(1), proxies.classes)
    assert float(held[0].min()) <= float(proxies.batch[0].min())
    assert float(proxies.batch[0].max()) <= float(held[0].max())


def test_proxies_come_from_the_given_model_and_the_range_of_the_inputs_alone():
    model, (x, y) = network("perceptron"), batch(1)
    once = class_proxies(TASK, model, flatten(model), (x, y), 4).batch[0]
    assert torch.equal(once, class_proxies(TASK, model, flatten(model), (x.flip(0), y), 4).batch[0])
    other = network("perceptron")
    with torch.no_grad():
        vectors.bind(other).mul_(3)
    assert torch.equal(once, class_proxies(TASK, other, flatten(model), (x, y), 4).batch[0])


def test_proxies_leave_the_statistics_of_batch_norm_alone():
    model, held = network("batch norm"), batch(1, (3, 8, 8))
    before = vectors.buffers(model.train())
    class_proxies(TASK, model, flatten(model), held, 2).loss(TASK, model)
    assert all(torch.equal(buffer, before[name]) for name, buffer in vectors.buffers(model).items())
    assert model.training


def test_inputs_that_cannot_be_made_up_are_refused():
    words = torch.zeros(4, 5, dtype=torch.int64)
    with refused("unsuitable", says="use another method than fedcare"):
        class_proxies(TASK, network("perceptron"), torch.empty(0), (words, words[:, 0]), 2)


def test_only_the_targets_are_asked_and_they_get_the_old_model():
    away = State(request().params + 1)
    jobs = jobs_of(ConflictAwareAscent(1, 0.1), request(), away)
    assert set(jobs) == {"site-1"}
    assert torch.equal(jobs["site-1"].arrays["origin"], request().params)


@pytest.mark.parametrize("seed", range(10))
def test_the_recovery_loses_what_leads_back_to_the_old_model_or_an_earlier_one(seed):
    random = generator("recovery", seed)
    moved = {c: torch.randn(DIMENSION, generator=random) for c in CLIENTS if c != "site-1"}
    state, earlier = (State(request().params + torch.randn(DIMENSION, generator=random)) for _ in range(2))
    asked = replace(request(), anchors=(earlier.params,) if seed % 2 else ())
    heard = Replies({c: Reply(each, 1 + n) for n, (c, each) in enumerate(moved.items())})
    _, after = drive(RecoveryWithoutRollback(9, 0.1), asked, state, heard)
    step, mean = state.params - after.params, heard.average()
    away = [state.params - anchor for anchor in (asked.params, *asked.anchors)]
    assert all(float(step @ each) <= 1e-5 for each in away)
    if all(float(mean @ each) <= 0 for each in away):
        assert torch.allclose(step, mean, atol=1e-6)
    else:
        assert float(step.norm()) < float(mean.norm())


def test_the_claim_it_forgets_spares_the_others_and_recovers_without_bringing_the_backdoor_back():
    federation, asked = planted(("site-1",))

    def run(*phases: Phase) -> list[Metrics]:
        outcome = unlearn(
            phases, asked, federation, training=TRAINING, evaluate_every=99, stop=[Below("asr", 0.1)]
        )
        return [row for row in outcome.metrics if "r_acc" in row]

    *_, unlearned, recovered = run(ConflictAwareAscent(9, 0.02), RecoveryWithoutRollback(15, 0.1))
    *_, averaged = run(ConflictAwareAscent(9, 0.02), Averaging(15, 0.1))
    before, *_, climbed = run(Ascent(9, 0.02, clip=5.0))
    assert before["asr"] > 0.9
    assert unlearned["asr"] < 0.1
    assert climbed["asr"] < 0.1
    assert unlearned["r_acc"] > climbed["r_acc"] + 0.02
    assert unlearned["asr"] < recovered["asr"] < averaged["asr"]
    assert recovered["distance"] > averaged["distance"]
    assert recovered["r_acc"] >= before["r_acc"]


@pytest.mark.parametrize("options", [{"proxies": 0}, {"clip": 0.0}])
def test_options_out_of_range_are_refused(options):
    with refused("invalid", says=next(iter(options))):
        method["fedcare"](Schedule(1, 0.1), **options)
