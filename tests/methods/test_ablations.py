from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.closed_form import CLIENTS, DIMENSION, Quadratics, drive, jobs_of, request
from support.codes import refused
from torch import nn

from fedunlearn import (
    ClientData,
    Examples,
    LocalTraining,
    Replies,
    Reply,
    Request,
    Schedule,
    Sequential,
    State,
    Status,
    flatten,
    method,
    unlearn,
)
from fedunlearn.core.seeds import generator
from fedunlearn.maths import cosine, distance
from fedunlearn.methods.fedavg import Averaging

TARGET = "site-1"
SCHEDULE = Schedule(5, 0.05, 5, 0.05)


def replies(seed: str = "row") -> Replies:
    return Replies({c: Reply(torch.randn(DIMENSION, generator=generator(seed, c)), 1) for c in CLIENTS})


def step(name: str, heard: Replies, state: State | None = None, **options: object) -> torch.Tensor:
    state = state or State(request().params)
    return drive(method[name](SCHEDULE, **options)[0], request(), state, heard)[1].params - state.params


def loss(name: str) -> str:
    """What the target minimises; everybody else trains as ever."""
    jobs = jobs_of(method[name](SCHEDULE)[0], request(), State(request().params))
    assert set(jobs) == set(CLIENTS)
    assert {job.config["loss"] for client, job in jobs.items() if client != TARGET} == {"task"}
    return jobs[TARGET].config["loss"]


def test_each_ablation_changes_one_part():
    full = method["fedosd"](SCHEDULE)
    changed = {}
    for number in range(1, 7):
        unlearning, recovery = method[f"fedosd-m{number}"](SCHEDULE)
        assert type(unlearning) is type(full[0])
        assert type(recovery) is type(full[1])
        changed[number] = [
            field
            for phase, whole in ((unlearning, full[0]), (recovery, full[1]))
            for field in vars(phase)
            if vars(phase)[field] != vars(whole)[field]
        ]
    assert changed == {
        1: ["loss"],
        2: ["direction"],
        3: ["direction"],
        4: ["direction"],
        5: ["anchor"],
        6: ["loss"],
    }


def test_m1_climbs_cross_entropy_orthogonally():
    assert loss("fedosd-m1") == "ascent"
    heard = replies()
    assert torch.equal(step("fedosd-m1", heard), step("fedosd", heard))


def test_m2_takes_the_targets_step_as_it_is():
    assert loss("fedosd-m2") == "uce"
    heard = replies()
    assert torch.allclose(step("fedosd-m2", heard), -heard[TARGET].displacement, atol=1e-6)


def test_m3_descends_everybody():
    heard = replies()
    moved = step("fedosd-m3", heard).double()
    square = float(moved @ moved)
    assert square > 0
    for reply in heard.values():
        assert float(reply.displacement.double() @ moved) <= -square * (1 - 1e-5)
    matched = step("fedosd-m3", heard, match_norm=True)
    assert float(matched.norm()) == pytest.approx(float(heard[TARGET].displacement.norm()), rel=1e-5)
    assert cosine(matched, moved.float()) == pytest.approx(1, abs=1e-6)


def test_m3_between_opposite_gradients_there_is_no_direction():
    class Opposed(Quadratics):
        def exchange(self, jobs, terms):
            heard = super().exchange(jobs, terms)
            if TARGET not in heard or heard[TARGET].displacement is None:
                return heard
            return Replies({**heard, TARGET: replace(heard[TARGET], displacement=-heard["site-0"].moved)})

    outcome = unlearn(method["fedosd-m3"](SCHEDULE), request(), Opposed())
    assert outcome.status is Status.NO_DIRECTION
    assert torch.equal(outcome.params, request().params)


def test_m4_is_orthogonal_and_forgets_and_differs_from_round_to_round():
    heard = replies()
    steps = [step("fedosd-m4", heard, State(request().params, round=number)) for number in range(3)]
    for moved in steps:
        assert max(abs(cosine(moved, heard[client].displacement)) for client in request().retained) < 1e-5
        assert cosine(moved, heard[TARGET].displacement) < 0
        assert float(moved.norm()) == pytest.approx(float(heard[TARGET].displacement.norm()), rel=1e-5)
    assert abs(cosine(steps[0], steps[1])) < 0.999
    assert torch.equal(steps[2], step("fedosd-m4", heard, State(request().params, round=2)))


def test_m5_recovers_by_plain_averaging():
    heard = replies().of(request().retained)
    away = State(request().params + 1)
    _, after = drive(method["fedosd-m5"](SCHEDULE)[1], request(), away, heard)
    _, plain = drive(Averaging(1, 0.1), request(), away, heard)
    assert torch.allclose(after.params, plain.params, atol=1e-6)


def certain() -> tuple[nn.Module, dict[str, ClientData]]:
    """A model that is wholly sure of every label."""
    model = nn.Linear(2, 2, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[500.0, 0.0], [0.0, 500.0]]))
    data = Examples(torch.eye(2).repeat(4, 1), torch.tensor([0, 1] * 4))
    return model, {client: ClientData(data, {"test": data}) for client in CLIENTS}


def test_m6_moves_a_model_that_is_certain_and_the_bounded_loss_does_not():
    assert loss("fedosd-m6") == "unlikelihood"
    model, data = certain()
    asked, federation = Request(flatten(model), CLIENTS, (TARGET,)), Sequential(model, data)
    training = LocalTraining(batch_size=4)
    bounded, unbounded = (
        unlearn(method[name](SCHEDULE), asked, federation, training=training)
        for name in ("fedosd", "fedosd-m6")
    )
    assert distance(bounded.params, asked.params) < 1e-30
    assert 0.01 < distance(unbounded.params, asked.params) < 100


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("fedosd-m4", {"spread": -1.0}, "spread"),
        ("fedosd", {"objective": "ucee"}, "did you mean 'uce'"),
        ("fedosd", {"objective": "pseudo_labels"}, "is a part of mode"),
        ("fedosd-joint", {"objective": "ucee"}, "did you mean 'uce'"),
        ("ascent", {"clip": 0.0}, "clip"),
        ("ewcsga", {"penalty": -1.0}, "penalty"),
        ("rapid", {"lr": 0.0}, "lr"),
        ("fedkdu", {"epochs": -1}, "epochs"),
        ("fedkdu", {"temperature": 0.0}, "temperature"),
        ("fedquit", {"rounds": 0}, "rounds"),
        ("mode", {"momentum": 1.5}, "momentum"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_runs(name, options, word):
    with refused("invalid", "unknown", says=word):
        method[name](SCHEDULE, **options)
