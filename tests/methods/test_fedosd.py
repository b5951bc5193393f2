from __future__ import annotations

import pytest
import torch
from support.closed_form import CLIENTS, DIMENSION, Quadratics, drive, jobs_of, request
from support.codes import refused, says

from fedunlearn import (
    Replies,
    Reply,
    Request,
    Schedule,
    State,
    Status,
    Terms,
    method,
    unlearn,
)
from fedunlearn.core.seeds import generator
from fedunlearn.maths import cosine, distance
from fedunlearn.methods.ascent import Ascent
from fedunlearn.methods.fedavg import Averaging
from fedunlearn.methods.fedosd import PATIENCE, AnchoredAveraging, ForgettingDescent
from fedunlearn.methods.joint import JointDescent

TARGET = "site-1"


def replies_with(target: torch.Tensor, retained: dict[str, torch.Tensor]) -> Replies:
    return Replies({client: Reply(vector, 1) for client, vector in {TARGET: target, **retained}.items()})


def random_rows() -> dict[str, torch.Tensor]:
    return {c: torch.randn(DIMENSION, generator=generator("row", c)) for c in CLIENTS if c != TARGET}


def forget(asked: Request, state: State, replies: Replies) -> State:
    return drive(ForgettingDescent(1, 0.1), asked, state, replies)[1]


def test_only_the_target_gets_the_unlearning_loss():
    jobs = jobs_of(ForgettingDescent(1, 0.1), request(), State(request().params))
    assert {client: job.config["loss"] for client, job in jobs.items()} == {
        client: "uce" if client == TARGET else "task" for client in CLIENTS
    }


def test_the_step_is_orthogonal_to_every_retained_client_and_as_long_as_the_targets():
    target, rows = torch.randn(DIMENSION, generator=generator("target")), random_rows()
    state = State(request().params)
    after = forget(request(), state, replies_with(target, rows))
    step = after.params - state.params
    assert max(abs(cosine(step, row)) for row in rows.values()) < 1e-6
    assert abs(float(step.norm() / target.norm()) - 1) < 1e-5
    assert float(step @ target) < 0
    assert after.diagnostics["protected"] == 4
    assert 0 < after.diagnostics["sine"] < 1


@pytest.mark.parametrize(
    "phase",
    [ForgettingDescent(1, 0.1), JointDescent(1, 0.1), Ascent(1, 0.1, clip=1.0)],
    ids=["fedosd", "joint", "ascent"],
)
def test_several_targets_count_equally_whatever_they_hold(phase):
    rows = {client: row for client, row in random_rows().items() if client != "site-3"}
    one, other = torch.randn(2, DIMENSION, generator=generator("two")).unbind()
    asked = request(targets=(TARGET, "site-3"))

    def after(first: Reply, second: Reply) -> torch.Tensor:
        others = {} if isinstance(phase, Ascent) else {c: Reply(row, 1) for c, row in rows.items()}
        heard = Replies({TARGET: first, "site-3": second, **others})
        return drive(phase, asked, State(asked.params), heard)[1].params

    mean = Reply((one + other) / 2, 1)
    assert torch.allclose(after(Reply(one, 1), Reply(other, 1000)), after(mean, mean), atol=1e-6)


def test_a_vanished_target_gradient_ends_unlearning_as_converged_and_recovery_follows():
    class Finished(Quadratics):
        def gradient(self, client, params):
            return super().gradient(client, params) * (client != TARGET)

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
    assert says(outcome.reason, "without harming")
    assert torch.equal(outcome.params, request().params)
    assert len(outcome.metrics) == 1 + PATIENCE


def test_only_rounds_in_a_row_without_a_direction_end_the_run():
    class Wavering(Quadratics):
        """In two rounds out of three the target wants what a retained client does."""

        def gradient(self, client, params):
            twin = client == TARGET and len(self.exchanged) % 3 != 2
            return super().gradient("site-0" if twin else client, params)

    outcome = unlearn(method["fedosd"](Schedule(9, 0.1, 1, 0.1)), request(), Wavering())
    assert outcome.status is Status.DONE
    sines = [row["sine"] for row in outcome.metrics if row["stage"] == "unlearning"]
    assert [sine > 0.01 for sine in sines] == [False, False, True] * 3


def test_a_request_without_targets_is_refused():
    with refused("unsuitable", says="no target"):
        unlearn(method["fedosd"](Schedule()), request(targets=()), Quadratics())


def test_no_retained_client_means_nobody_could_be_protected():
    alone = Quadratics(absent={client: [1] for client in request().retained})
    outcome = unlearn([ForgettingDescent(1, 0.1)], request(), alone)
    assert outcome.status is Status.MISSING_REPLY
    assert says(outcome.reason, "0 of 4 clients sent what can be used in round 1 of unlearning")
    assert says(outcome.reason, "site-0, site-2, site-3, site-4 (absent: is switched off)")
    for client in request().retained:
        assert says(outcome.warnings, f"{client} was left out of 1 of 1 rounds: is switched off")
    assert torch.equal(outcome.params, request().params)


def test_without_the_anchor_the_same_replies_lead_back_to_the_start():
    away = State(request().params + 3 * torch.ones(DIMENSION))
    jobs = jobs_of(AnchoredAveraging(1, 0.05), request(), away)
    pulled = Quadratics().exchange(jobs, Terms(lr=0.05))
    free = drive(Averaging(1, 0.05), request(), away, pulled)[1].params
    held = drive(AnchoredAveraging(1, 0.05), request(), away, pulled)[1].params
    assert distance(free, request().params) < distance(away.params, request().params)
    assert distance(held, request().params) >= distance(away.params, request().params) * (1 - 1e-6)


def test_always_projecting_obeys_pythagoras():
    state = State(request().params + torch.randn(DIMENSION, generator=generator("away")))
    replies = replies_with(torch.zeros(DIMENSION), random_rows()).of(request().retained)
    _, after = drive(AnchoredAveraging(1, 0.1, "always"), request(), state, replies)
    step = distance(after.params, state.params)
    before, now = distance(state.params, request().params), distance(after.params, request().params)
    assert abs(now**2 - before**2 - step**2) < 1e-4 * now**2


def test_post_training_weighs_clients_equally():
    state = State(request().params)
    rows = random_rows()
    unequal = Replies({c: Reply(row, 1 + 100 * (c == "site-0")) for c, row in rows.items()})
    _, after = drive(AnchoredAveraging(1, 0.1), request(), state, unequal)
    assert torch.allclose(state.params - after.params, torch.stack(list(rows.values())).mean(0), atol=1e-6)
