from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.closed_form import CLIENTS, DIMENSION, Quadratics, drive, request

from fedunlearn import Replies, Reply, Request, Schedule, State, method, unlearn
from fedunlearn.core import ClientId, Statistics
from fedunlearn.core.seeds import generator
from fedunlearn.maths import orthogonal_direction
from fedunlearn.methods.joint import JointDescent

TARGET = "site-1"


def replies(seed: object) -> Replies:
    return Replies(
        {c: Reply(torch.randn(DIMENSION, generator=generator("joint", seed, c)), 1) for c in CLIENTS}
    )


def learned(state: State, heard: Replies, asked: Request | None = None) -> torch.Tensor:
    """What is subtracted for the retained clients: the step without its orthogonal part."""
    after = drive(JointDescent(9, 0.1), asked or request(), state, heard)[1].params.double()
    retain = heard.of(request().retained).matrix()
    return orthogonal_direction(heard[TARGET].displacement, retain).vector.double() + state.params - after


def away(seed: object) -> State:
    gone = torch.randn(DIMENSION, generator=generator("away", seed))
    return State(request().params + gone, round=3)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_learned_neither_undoes_the_forgetting_nor_leads_back(seed):
    heard, state = replies(seed), away(seed)
    step = learned(state, heard)
    assert float(step @ heard[TARGET].displacement.double()) >= -1e-5
    assert float(step @ (state.params - request().params).double()) <= 1e-5


@pytest.mark.parametrize("seed", range(20))
def test_what_is_learned_leads_back_to_no_earlier_request_either(seed):
    heard, state, before = replies(seed), away(seed), away(("earlier", seed)).params
    step = learned(state, heard, replace(request(), anchors=(before,)))
    assert float(step @ heard[TARGET].moved.double()) >= -1e-5
    for anchor in (request().params, before):
        assert float(step @ (state.params - anchor).double()) <= 1e-5


def test_what_conflicts_with_neither_is_learned_whole():
    whole = 0
    for seed in range(40):
        heard, state = replies(seed), away(seed)
        mean = heard.of(request().retained).mean().double()
        back = (request().params - state.params).double()
        if float(mean @ heard[TARGET].displacement.double()) >= 0 and float(mean @ back) >= 0:
            assert torch.allclose(learned(state, heard), mean, atol=1e-5)
            whole += 1
        else:
            assert not torch.allclose(learned(state, heard), mean, atol=1e-3)
    assert 0 < whole < 40


def test_at_the_start_only_the_target_is_in_the_way():
    heard, state = replies(1), State(request().params)
    target = heard[TARGET].displacement.double()
    mean = heard.of(request().retained).mean().double()
    product = min(0.0, float(mean @ target))
    expected = mean - product / float(target @ target) * target
    assert torch.allclose(learned(state, heard), expected, atol=1e-5)


def test_a_target_without_gradient_leaves_plain_training():
    heard = Replies({**replies(1), TARGET: Reply(torch.zeros(DIMENSION), 1)})
    state = State(request().params)
    _, after = drive(JointDescent(9, 0.1), request(), state, heard)
    assert torch.allclose(state.params - after.params, heard.of(request().retained).mean(), atol=1e-6)


def test_there_is_one_stage_and_everybody_trains_in_it():
    outcome = unlearn(method["fedosd-joint"](Schedule(4, 0.05, 9, 0.05)), request(), Quadratics())
    assert [row["stage"] for row in outcome.metrics[1:]] == ["unlearning"] * 4
    assert {row["local_trainings"] for row in outcome.metrics[1:]} == {5}


class Clean(Quadratics):
    """No client holds a backdoor set."""

    def measured(self, client: ClientId, params: torch.Tensor) -> Statistics:
        return {name: scores for name, scores in super().measured(client, params).items() if name == "test"}


@pytest.mark.wording
def test_for_targets_without_a_backdoor_one_warning_names_the_page():
    phases = method["fedosd-joint"](Schedule(2, 0.05))
    with pytest.warns(UserWarning, match=r"clean targets .*docs/methods/fedosd-joint\.md") as caught:
        unlearn(phases, request(), Clean())
    assert len(caught) == 1
    page = Path(__file__).parents[2] / "docs/methods/fedosd-joint.md"
    assert "## Clean targets" in page.read_text()


@pytest.mark.filterwarnings("error")
def test_with_a_backdoor_or_another_method_nothing_is_said():
    unlearn(method["fedosd-joint"](Schedule(2, 0.05)), request(), Quadratics())
    unlearn(method["fedosd"](Schedule(2, 0.05, 2, 0.05)), request(), Clean())
