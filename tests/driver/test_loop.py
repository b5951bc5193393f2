from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from closed_form import CLIENTS, DIMENSION, Quadratics, request
from fedunlearn.objectives import Minimise, objective
from torch import nn

from fedunlearn import (
    ClientData,
    Examples,
    FedUnlearnError,
    LocalTraining,
    Replies,
    Request,
    Schedule,
    Sequential,
    State,
    Status,
    flatten,
    method,
    unlearn,
)
from fedunlearn.core.seeds import derive, generator
from fedunlearn.maths import unlearning_transform
from fedunlearn.methods.fedavg import Averaging, Pretraining


class Listening(Quadratics):
    """Remembers the jobs it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.jobs = []

    def train(self, jobs):
        self.jobs.append(dict(jobs))
        return super().train(jobs)


def test_the_learning_rate_decays_through_both_stages():
    federation = Listening()
    unlearn(
        method["fedosd"](Schedule(3, 0.1, 2, 0.01)), request(), federation, training=LocalTraining(decay=0.5)
    )
    rates = [next(iter(jobs.values())).lr for jobs in federation.jobs]
    assert rates == pytest.approx([0.1, 0.05, 0.025, 0.01 / 8, 0.01 / 16])


def test_every_job_has_a_seed_of_its_own():
    federation = Listening()
    unlearn(method["fedosd"](Schedule(3, 0.1, 3, 0.1)), request(), federation)
    seeds = [job.seed for jobs in federation.jobs for job in jobs.values()]
    assert len(set(seeds)) == len(seeds)


def test_pre_training_with_equal_clients_is_one_central_gradient_step():
    class Equal(Quadratics):
        def gradient(self, client, params):
            return super().gradient("site-0", params)

    outcome = unlearn((Pretraining(1, 0.1),), request(), Equal())
    expected = request().params - 0.1 * Quadratics().gradient("site-0", request().params)
    assert torch.allclose(outcome.params, expected, atol=1e-6)


def test_fedavg_weighs_by_examples():
    federation = Quadratics()
    outcome = unlearn((Pretraining(1, 0.1),), request(), federation)
    sizes = torch.tensor([10.0 + number for number in range(len(CLIENTS))])
    steps = torch.stack([federation.gradient(client, request().params) for client in CLIENTS])
    expected = request().params - 0.1 * (sizes[:, None] / sizes.sum() * steps).sum(0)
    assert torch.allclose(outcome.params, expected, atol=1e-6)


def test_metrics_of_a_round_have_the_documented_keys():
    outcome = unlearn(method["fedosd"](Schedule(2, 0.05, 1, 0.05)), request(), Quadratics())
    start, first, _, last = outcome.metrics
    assert {"r_acc", "r_acc_std", "r_acc_worst", "r_acc_best", "target_acc", "loss_retained"} <= set(start)
    assert {"sine", "amplification", "conflicts", "distance", "seconds", "bytes_up", "bytes_down"} <= set(
        first
    )
    assert first["local_trainings"] == 5
    assert last["local_trainings"] == 4
    assert first["bytes_up"] == first["bytes_down"] == 5 * 4 * DIMENSION
    assert first["conflicts"] == 0


def test_r_acc_is_over_retained_clients_only():
    federation = Quadratics()
    outcome = unlearn((), request(), federation)
    scores = [1 / (1 + federation.loss(c, request().params)) for c in CLIENTS if c != "site-1"]
    assert outcome.metrics[0]["r_acc"] == pytest.approx(sum(scores) / 4)
    assert outcome.metrics[0]["r_acc_worst"] == pytest.approx(min(scores))


def test_evaluation_happens_as_often_as_asked_and_at_the_end_of_each_stage():
    phases = method["fedosd"](Schedule(5, 0.05, 5, 0.05))
    outcome = unlearn(phases, request(), Quadratics(), evaluate_every=4)
    assert [row["elapsed"] for row in outcome.metrics if "r_acc" in row] == [0, 4, 5, 8, 10]


def test_evaluating_never_is_refused():
    with pytest.raises(FedUnlearnError, match="evaluate_every = 0: it must be 1 or more"):
        unlearn(method["fedosd"](Schedule(1, 0.05, 1, 0.05)), request(), Quadratics(), evaluate_every=0)


class Backdoored(Quadratics):
    """Evaluates the targets' examples too: the model knows them as well as its loss is low."""

    def evaluate(self, params, buffers):
        return {
            client: {**row, "backdoor_accuracy": row["test_accuracy"], "backdoor_examples": 1}
            for client, row in super().evaluate(params, buffers).items()
        }


@pytest.mark.parametrize("name", ["ascent", "ewcsga", "fedosd"])
def test_unlearning_ends_where_too_little_is_remembered(name):
    def run(rounds: int, **how):
        phases = method[name](Schedule(rounds, 0.05, 3, 0.05))
        return unlearn(phases, request(), Backdoored(), evaluate_every=100, **how)

    course = [
        row["asr"]
        for row in unlearn(method[name](Schedule(20, 0.05, 0, 0.05)), request(), Backdoored()).metrics
    ]
    bar = (course[0] + min(course)) / 2
    heard = []
    stopped = run(20, stop_below=bar, listeners=[heard.append])
    (last,) = [row for row in stopped.metrics if row.get("status") == "converged"]
    assert last["asr"] < bar <= min(course[: last["elapsed"]])
    assert f"{bar:g}" in last["reason"]
    assert stopped.status is Status.DONE
    assert [row["stage"] for row in stopped.metrics[-3:]] == ["post-training"] * 3
    assert stopped.metrics[-4] is last
    if name != "ewcsga":  # whose first round moves nothing
        assert torch.equal(stopped.params, run(last["elapsed"]).params)
    (there,) = [event.progress for event in heard if event.metrics is last]
    assert torch.equal(run(20, stop_below=bar, resume=there).params, stopped.params)
    assert torch.equal(run(20, stop_below=min(course) / 2).params, run(20).params)


def test_a_run_resumed_at_its_end_says_why_it_ended():
    heard = []
    phases = method["ascent"](Schedule(20, 0.05, 0, 0.05))[:1]
    ended = unlearn(phases, request(), Backdoored(), stop_below=1.0, listeners=[heard.append])
    assert ended.reason == "less than 1 is remembered"
    again = unlearn(phases, request(), Backdoored(), stop_below=1.0, resume=heard[-1].progress)
    assert (again.status, again.reason) == (ended.status, ended.reason)


def test_what_is_not_evaluated_cannot_end_unlearning():
    with pytest.raises(FedUnlearnError, match="stop_below needs examples of the targets"):
        unlearn(method["ascent"](Schedule(2, 0.05, 0, 0.05)), request(), Quadratics(), stop_below=0.1)


def test_a_broken_update_never_enters_the_model():
    class Broken(Quadratics):
        def train(self, jobs):
            replies = super().train(jobs)
            bad = torch.full((DIMENSION,), float("nan"))
            return Replies(
                {c: replace(r, displacement=bad) if c == "site-2" else r for c, r in replies.items()}
            )

    outcome = unlearn((Averaging(3, 0.1),), request(), Broken())
    assert outcome.status is Status.DIVERGED
    assert "site-2" in outcome.reason
    assert torch.equal(outcome.params, request().params)


def test_threads_are_as_before_afterwards():
    threads = torch.get_num_threads()
    unlearn((Averaging(1, 0.1),), request(), Quadratics())
    assert torch.get_num_threads() == threads


def normalised() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def shifted(names: list[str]) -> dict[str, ClientData]:
    held = {}
    for number, name in enumerate(sorted(names)):
        random, size = generator("shifted", name), 20 + 10 * number
        x = torch.randn(size, 4, generator=random) + 5 * number
        data = Examples(x, torch.randint(0, 2, (size,), generator=random))
        held[name] = ClientData(data, {"test": data})
    return held


def test_buffers_are_averaged_over_the_clients_that_stay():
    model, data = normalised(), shifted(["a", "b", "c"])
    phase = method["fedosd"](Schedule(1, 0.01, 0, 0.01))[0]
    asked = Request(flatten(model), tuple(data), ("c",))
    federation = Sequential(model, data)
    outcome = unlearn((phase,), asked, federation, training=LocalTraining(batch_size=10))
    jobs = phase.ask(asked, State(asked.params))
    replies = federation.train({client: replace(job, lr=0.01, batch_size=10) for client, job in jobs.items()})
    expected = replies["a"].buffers["1.running_mean"] * 0.4 + replies["b"].buffers["1.running_mean"] * 0.6
    assert torch.allclose(outcome.state.buffers["1.running_mean"], expected)
    assert outcome.state.buffers["1.num_batches_tracked"].dtype == torch.int64


def test_batch_norm_models_do_not_depend_on_the_order_of_clients():
    def final(names: list[str]) -> tuple[torch.Tensor, float]:
        model = normalised()
        asked = Request(flatten(model), tuple(names), ("c",))
        phases = method["fedosd"](Schedule(3, 0.05, 3, 0.05))
        outcome = unlearn(
            phases, asked, Sequential(model, shifted(names)), training=LocalTraining(batch_size=10)
        )
        return outcome.state.buffers["1.running_var"], outcome.metrics[-1]["r_acc"]

    (one, accuracy), (other, same) = final(["a", "b", "c"]), final(["c", "b", "a"])
    assert torch.equal(one, other)
    assert accuracy == same


def test_a_parameter_that_the_loss_does_not_reach_stays_as_it_is():
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    model, data = Spare(), shifted(["a", "b"])
    asked = Request(flatten(model), tuple(data), ("b",))
    outcome = unlearn(
        (Averaging(2, 0.1),), asked, Sequential(model, data), training=LocalTraining(batch_size=10)
    )
    assert torch.equal(outcome.params[-10:], asked.params[-10:])
    assert not torch.equal(outcome.params[:10], asked.params[:10])


def test_an_objective_of_ones_own_serves_every_stage():
    @objective("doubled", summary="test")
    def _doubled(arrays):
        return Minimise(lambda output, y: 2 * nn.functional.cross_entropy(output, y))

    @objective("undoubled", summary="test")
    def _undoubled(arrays):
        return Minimise(lambda output, y: unlearning_transform(nn.functional.cross_entropy(output, y)))

    federation = Listening()
    unlearn(
        method["fedosd"](Schedule(1, 0.1, 1, 0.1), objective="undoubled"),
        request(),
        federation,
        training=LocalTraining(objective="doubled"),
    )
    assert {job.objective for job in federation.jobs[0].values()} == {"doubled", "undoubled"}
    assert {job.objective for job in federation.jobs[1].values()} == {"doubled"}
    model, data = normalised(), shifted(["a", "b"])
    training = LocalTraining(batch_size=10, objective="doubled")
    asked = Request(flatten(model), tuple(data), ("b",))
    phases = method["fedosd"](Schedule(2, 0.1, 1, 0.1), objective="undoubled")
    assert unlearn(phases, asked, Sequential(model, data), training=training).status is Status.DONE


def test_bad_requests_are_refused():
    with pytest.raises(FedUnlearnError, match="nobody is left"):
        request(targets=CLIENTS)
    with pytest.raises(FedUnlearnError, match="site-9"):
        request(targets=("site-9",))
    with pytest.raises(FedUnlearnError, match="not in the federation"):
        unlearn((), request(clients=(*CLIENTS, "site-7")), Quadratics())


def test_derived_seeds_do_not_collide_for_other_groupings_of_the_same_text():
    assert derive("a", "bc") != derive("ab", "c")
    assert derive(1) != derive("1")
    assert 0 <= derive("anything") < 2**63


@pytest.mark.parametrize(
    "name", ["ascent", "ewcsga", "fupga", "sfu", "not", "fedrecovery", "puf", "mode", "fedkdu"]
)
def test_counting_conflicts_changes_neither_result_nor_cost(name):
    phases = method[name](Schedule(3, 0.05, 3, 0.05))
    plain = unlearn(phases, request(), Quadratics())
    counted = unlearn(phases, request(), Quadratics(), count_conflicts=True)
    assert torch.equal(plain.params, counted.params)
    for one, other in zip(plain.metrics, counted.metrics, strict=True):
        assert {k: v for k, v in other.items() if k not in ("conflicts", "seconds", "seconds_server")} == {
            k: v for k, v in one.items() if k not in ("conflicts", "seconds", "seconds_server")
        }
    asking = ("ewcsga",)  # whose first round moves nothing
    assert all("conflicts" in row for row in counted.metrics[1 + (name in asking) :])
    assert not all("conflicts" in row for row in plain.metrics[1:])


def test_conflicts_are_those_of_the_retained_clients_at_the_model_before_the_step():
    asked, federation = request(), Quadratics()
    outcome = unlearn(method["not"](Schedule(1, 0.05, 0, 0.05)), asked, federation, count_conflicts=True)
    step = outcome.params - asked.params
    against = [float(federation.gradient(client, asked.params) @ step) > 0 for client in asked.retained]
    assert outcome.metrics[1]["conflicts"] == sum(against)


def test_where_nobody_can_say_no_conflicts_are_counted():
    silent = Quadratics(absent={client: [1] for client in CLIENTS})
    outcome = unlearn(method["not"](Schedule(1, 0.05, 2, 0.05)), request(), silent, count_conflicts=True)
    assert "conflicts" not in outcome.metrics[1]
    assert outcome.status is Status.DONE


def test_an_upload_is_looked_through_for_what_is_no_number_and_may_be_empty():
    class Uploading(Quadratics):
        def __init__(self, value: float) -> None:
            super().__init__()
            self._value = value

        def train(self, jobs):
            arrays = {
                "none": torch.empty(0),
                "count": torch.tensor(3),
                "some": torch.tensor([1.0, self._value]),
            }
            return Replies({c: replace(r, arrays=arrays) for c, r in super().train(jobs).items()})

    assert unlearn((Averaging(2, 0.1),), request(), Uploading(2.0)).status is Status.DONE
    broken = unlearn((Averaging(2, 0.1),), request(), Uploading(float("nan")))
    assert broken.status is Status.DIVERGED
    assert torch.equal(broken.params, request().params)
