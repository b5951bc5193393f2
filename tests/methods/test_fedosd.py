from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from closed_form import CLIENTS, DIMENSION, Quadratics, request

from fedunlearn import FedUnlearnError, Replies, Reply, Schedule, State, Status, method, unlearn
from fedunlearn.core.seeds import generator
from fedunlearn.maths import cosine, distance
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.methods.fedosd import PATIENCE, AnchoredAveraging, ForgettingDescent

TARGET = "site-1"


def replies_with(target: torch.Tensor, retained: dict[str, torch.Tensor]) -> Replies:
    return Replies({client: Reply(vector, 1) for client, vector in {TARGET: target, **retained}.items()})


def random_rows() -> dict[str, torch.Tensor]:
    return {c: torch.randn(DIMENSION, generator=generator("row", c)) for c in CLIENTS if c != TARGET}


def test_only_the_target_gets_the_unlearning_objective():
    jobs = ForgettingDescent(1, 0.1).ask(request(), State(request().params))
    assert {client: job.objective for client, job in jobs.items()} == {
        client: "uce" if client == TARGET else None for client in CLIENTS
    }


def test_the_step_is_orthogonal_to_every_retained_client_and_as_long_as_the_targets():
    target, rows = torch.randn(DIMENSION, generator=generator("target")), random_rows()
    state = State(request().params)
    after = ForgettingDescent(1, 0.1).tell(request(), state, replies_with(target, rows))
    step = after.params - state.params
    assert max(abs(cosine(step, row)) for row in rows.values()) < 1e-6
    assert abs(float(step.norm() / target.norm()) - 1) < 1e-5
    assert float(step @ target) < 0
    assert after.diagnostics["protected"] == 4
    assert 0 < after.diagnostics["sine"] < 1


def test_several_targets_count_equally():
    rows = {client: row for client, row in random_rows().items() if client != "site-3"}
    one, other = torch.randn(2, DIMENSION, generator=generator("two")).unbind()
    asked = request(targets=(TARGET, "site-3"))
    state = State(asked.params)
    both = ForgettingDescent(1, 0.1).tell(asked, state, replies_with(one, {"site-3": other, **rows}))
    mean = ForgettingDescent(1, 0.1).tell(
        asked, state, replies_with((one + other) / 2, {"site-3": (one + other) / 2, **rows})
    )
    assert torch.allclose(both.params, mean.params, atol=1e-6)


def test_a_vanished_target_gradient_ends_unlearning_as_converged_and_recovery_follows():
    class Finished(Quadratics):
        def train(self, jobs):
            replies = super().train(jobs)
            return Replies(
                {c: replace(r, displacement=r.displacement * (c != TARGET)) for c, r in replies.items()}
            )

    outcome = unlearn(method["fedosd"](Schedule(5, 0.1, 3, 0.1)), request(), Finished())
    stages = [row["stage"] for row in outcome.metrics]
    assert stages == ["start", "unlearning", *["post-training"] * 3]
    assert outcome.metrics[1]["status"] == Status.CONVERGED
    assert outcome.metrics[1]["distance"] == 0
    assert outcome.status is Status.DONE


def test_a_target_inside_the_span_moves_nothing_and_ends_the_run_with_the_reason():
    class Twin(Quadratics):
        def gradient(self, client, params):
            return super().gradient("site-0" if client == TARGET else client, params)

    outcome = unlearn(method["fedosd"](Schedule(9, 0.1, 3, 0.1)), request(), Twin())
    assert outcome.status is Status.NO_DIRECTION
    assert "without harming" in outcome.reason
    assert torch.equal(outcome.params, request().params)
    assert len(outcome.metrics) == 1 + PATIENCE


def test_a_missing_target_is_refused_and_the_run_goes_on_when_it_is_back():
    phases = method["fedosd"](Schedule(4, 0.05, 2, 0.05))
    heard = []
    stopped = unlearn(phases, request(), Quadratics(absent={TARGET: [3]}), listeners=[heard.append])
    assert stopped.status is Status.MISSING_REPLY
    assert TARGET in stopped.reason
    back = unlearn(phases, request(), Quadratics(), resume=heard[-1].progress)
    assert torch.equal(back.params, unlearn(phases, request(), Quadratics()).params)


def test_a_request_without_targets_is_refused():
    with pytest.raises(FedUnlearnError, match="no target"):
        unlearn(method["fedosd"](Schedule()), request(targets=()), Quadratics())


def test_no_retained_client_means_nobody_could_be_protected():
    only_target = replies_with(torch.ones(DIMENSION), {})
    after = ForgettingDescent(1, 0.1).tell(request(), State(request().params), only_target)
    assert after.status is Status.MISSING_REPLY
    assert torch.equal(after.params, request().params)


def test_post_training_never_comes_closer_to_the_start():
    anchored = unlearn(method["fedosd"](Schedule(10, 0.3, 30, 0.05)), request(), Quadratics())
    rows = [row["distance"] for row in anchored.metrics if row["stage"] == "post-training"]
    assert all(later >= earlier * (1 - 1e-6) for earlier, later in pairwise(rows))


def test_without_the_anchor_the_same_replies_lead_back_to_the_start():
    away = State(request().params + 3 * torch.ones(DIMENSION))
    jobs = AnchoredAveraging(1, 0.05).ask(request(), away)
    pulled = Quadratics().train({client: replace(job, lr=0.05) for client, job in jobs.items()})
    free = Averaging(1, 0.05).tell(request(), away, pulled).params
    held = AnchoredAveraging(1, 0.05).tell(request(), away, pulled).params
    assert distance(free, request().params) < distance(away.params, request().params)
    assert distance(held, request().params) >= distance(away.params, request().params) * (1 - 1e-6)


def test_always_projecting_obeys_pythagoras():
    state = State(request().params + torch.randn(DIMENSION, generator=generator("away")))
    replies = replies_with(torch.zeros(DIMENSION), random_rows()).of(request().retained)
    after = AnchoredAveraging(1, 0.1, "always").tell(request(), state, replies)
    step = distance(after.params, state.params)
    before, now = distance(state.params, request().params), distance(after.params, request().params)
    assert abs(now**2 - before**2 - step**2) < 1e-4 * now**2


def test_post_training_weighs_clients_equally():
    state = State(request().params)
    rows = random_rows()
    unequal = Replies({c: Reply(row, 1 + 100 * (c == "site-0")) for c, row in rows.items()})
    after = AnchoredAveraging(1, 0.1).tell(request(), state, unequal)
    assert torch.allclose(state.params - after.params, torch.stack(list(rows.values())).mean(0), atol=1e-6)
