"""The loop: rounds, learning rates, evaluations, events, buffers, stop rules and probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    NO_TERMS,
    PUBLIC,
    Quadratics,
    Spoiled,
    measured,
    request,
    times,
)
from torch import nn
from torch.utils.data import Dataset

from fedunlearn import (
    Above,
    Below,
    Classification,
    ClientData,
    Conflicts,
    Event,
    Examples,
    FedUnlearnError,
    Guards,
    Job,
    LocalTraining,
    Outcome,
    Participation,
    Replies,
    Reply,
    Request,
    Schedule,
    Sequential,
    Stage,
    Status,
    Terms,
    flatten,
    loss,
    method,
    train,
    unlearn,
)
from fedunlearn.config.options import check_options, phases_of
from fedunlearn.core import Mean
from fedunlearn.core.seeds import derive, generator
from fedunlearn.core.vectors import buffers
from fedunlearn.maths import unlearning_transform
from fedunlearn.methods.ewcsga import ElasticAscent
from fedunlearn.methods.fedavg import Averaging, Pretraining
from fedunlearn.methods.fedosd import ForgettingDescent

SHORT = Schedule(3, 0.1, 2, 0.01)


class Listening(Quadratics):
    """Remembers the jobs it was given, with their terms, measuring included."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Mapping[str, Job], Terms]] = []

    def exchange(self, jobs, terms=NO_TERMS):
        self.heard.append((dict(jobs), terms))
        return super().exchange(jobs, terms)

    def trained(self) -> list[tuple[Mapping[str, Job], Terms]]:
        return [
            (jobs, terms) for jobs, terms in self.heard if {job.work for job in jobs.values()} == {"train"}
        ]


def test_the_learning_rate_decays_through_both_stages():
    federation = Listening()
    outcome = unlearn(method["fedosd"](SHORT), request(), federation, training=LocalTraining(decay=0.5))
    rates = [terms.rate(next(iter(jobs.values()))) for jobs, terms in federation.trained()]
    assert rates == pytest.approx([0.1, 0.05, 0.025, 0.01 / 8, 0.01 / 16])
    assert [row["lr"] for row in outcome.metrics[1:]] == pytest.approx(rates)


def test_clients_are_told_epochs_and_batch_size():
    federation = Listening()
    unlearn(method["mode"](SHORT), request(), federation, training=LocalTraining(epochs=3, batch_size=7))
    assert {(terms.epochs, terms.batch_size) for _, terms in federation.trained()} == {(3, 7)}


def test_every_training_of_a_run_has_a_seed_of_its_own():
    """MoDe trains clients twice in a round."""
    federation = Listening()
    unlearn(method["mode"](SHORT), request(), federation)
    seeds = [terms.seed_of(client) for jobs, terms in federation.trained() for client in jobs]
    assert len(set(seeds)) == len(seeds) == 3 * (4 + 5) + 2 * 4
    other = Listening()
    unlearn(method["mode"](SHORT), request(), other, seed=1)
    assert not {*seeds} & {t.seed_of(client) for jobs, t in other.trained() for client in jobs}


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
    assert {"asr", "r_acc", "r_acc_std", "r_acc_worst", "r_acc_best", "target_acc", "loss_retained"} <= set(
        start
    )
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


@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_evaluating_in_steps_that_are_no_number_is_refused(every):
    with pytest.raises(FedUnlearnError, match=r"evaluate_every = .*: it must be a whole number, 1 or more"):
        unlearn(method["fedosd"](SHORT), request(), Quadratics(), evaluate_every=every)


def test_only_present_clients_of_the_request_are_measured():
    class Left(Listening):
        """A client leaves after the first round."""

        def present(self):
            return super().present() - ({"site-3"} if len(getattr(self, "heard", [])) > 1 else set())

    federation = Left()
    outcome = unlearn([Averaging(2, 0.1)], request(clients=CLIENTS[:4]), federation)
    who = [set(jobs) for jobs, _ in federation.heard if next(iter(jobs.values())).work == "measure"]
    assert who == [set(CLIENTS[:4]), set(CLIENTS[:3]), set(CLIENTS[:3])]
    assert "r_acc site-3" in outcome.metrics[0]
    assert "r_acc site-3" not in outcome.metrics[-1]


def test_listeners_hear_the_start_and_every_round_and_resume_from_any_of_them():
    heard: list[Event] = []
    phases = method["mode"](SHORT)
    outcome = unlearn(phases, request(), Quadratics(), listeners=[heard.append], evaluate_every=2)
    assert [(event.progress.phase, event.progress.state.round) for event in heard] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (0, 3),
        (1, 1),
        (1, 2),
    ]
    assert [event.metrics for event in heard] == list(outcome.metrics)
    assert {event.phases for event in heard} == {phases}
    for number, event in enumerate(heard):
        again = unlearn(phases, request(), Quadratics(), resume=event.progress, evaluate_every=2)
        assert torch.equal(again.params, outcome.params)
        rest = measured(outcome)[number + 1 :] if number else measured(outcome)[1:]
        assert measured(again) == rest


def falling(name: str = "ascent", rounds: int = 20, **how: object) -> Outcome:
    """A run of 20 rounds of unlearning and three of recovery, evaluated by its stop rules alone."""
    phases = method[name](Schedule(rounds, 0.05, 3, 0.05))
    return unlearn(phases, request(), Quadratics(), **{"evaluate_every": 100, **how})


@pytest.mark.parametrize("name", ["ascent", "ewcsga", "fedosd"])
def test_a_stop_rule_ends_unlearning_and_leaves_the_recovery(name):
    course = [
        row["asr"] for row in falling(name, evaluate_every=1).metrics if row["stage"] != "post-training"
    ]
    bar = (course[0] + min(course)) / 2
    heard: list[Event] = []
    stopped = falling(name, stop=[Below("asr", bar)], listeners=[heard.append])
    (last,) = [row for row in stopped.metrics if row.get("status") == "converged"]
    assert last["asr"] < bar <= min(course[: last["elapsed"]])
    assert f"{bar:g}"[:5] in last["reason"]
    assert stopped.status is Status.DONE
    assert [row["stage"] for row in stopped.metrics[-3:]] == ["post-training"] * 3
    assert stopped.metrics[-4] is last
    assert torch.equal(stopped.params, falling(name, last["elapsed"]).params)
    (there,) = [event.progress for event in heard if event.metrics is last]
    assert torch.equal(falling(name, stop=[Below("asr", bar)], resume=there).params, stopped.params)
    assert torch.equal(falling(name, stop=[Below("asr", min(course) / 2)]).params, falling(name).params)


def test_any_of_several_stop_rules_counts_and_a_rule_may_look_upwards():
    class Telling(Quadratics):
        def measured(self, client, params):
            return {
                **super().measured(client, params),
                "forget": {"loss": Mean(self.loss(client, params), 1)},
            }

    phases = method["ascent"](Schedule(20, 0.05, 0, 0.05))
    bar = 1.1 * Quadratics().loss("site-1", request().params)
    rules = [Above("loss_target", bar), Below("asr", 0.0)]
    rows = unlearn(phases, request(), Telling(), stop=rules).metrics
    assert rows[-1]["status"] == "converged"
    assert len(rows) < 20
    assert [row["loss_target"] > bar for row in rows] == [False] * (len(rows) - 1) + [True]


def test_a_run_resumed_at_its_end_says_why_it_ended():
    heard: list[Event] = []
    phases = method["ascent"](Schedule(20, 0.05, 0, 0.05))[:1]
    how = {"stop": [Below("asr", 1.0)]}
    ended = unlearn(phases, request(), Quadratics(), listeners=[heard.append], **how)
    assert ended.reason == "every target meets a stop rule: Below(key='asr', value=1.0)"
    again = unlearn(phases, request(), Quadratics(), resume=heard[-1].progress, **how)
    assert (again.status, again.reason) == (ended.status, ended.reason)


def test_what_is_not_measured_cannot_end_unlearning():
    federation = Listening()
    with pytest.raises(FedUnlearnError, match=r"a stop rule needs 'asrr', which is not measured here"):
        unlearn(method["ascent"](SHORT), request(), federation, stop=[Below("asrr", 0.1)])
    assert not federation.trained()


def test_a_request_without_a_target_cannot_be_unlearned():
    with pytest.raises(FedUnlearnError, match="names no target, so there is nothing to unlearn"):
        unlearn(method["ascent"](SHORT), request(targets=()), Quadratics())
    assert unlearn([Pretraining(1, 0.1)], request(targets=()), Quadratics()).status is Status.DONE


def test_one_broken_update_never_enters_the_model_and_does_not_end_the_run():
    broken = Spoiled(times(float("nan")), {"site-2"}, range(1, 4))
    outcome = unlearn((Averaging(3, 0.1),), request(), broken)
    without = Quadratics(absent={"site-2": range(1, 4)})
    assert outcome.status is Status.DONE
    assert torch.equal(outcome.params, unlearn((Averaging(3, 0.1),), request(), without).params)
    assert [row["missing"] for row in outcome.metrics[1:]] == [1, 1, 1]
    assert outcome.unheard == ("site-2",)


@pytest.mark.parametrize("guards", [None, Guards()])
def test_every_client_that_was_left_out_is_named_with_how_often_and_why_also_after_a_resume(guards):
    heard: list[Event] = []
    phases = [Pretraining(6, 0.1)]

    def federation():
        broken = Spoiled(times(float("nan")), {"site-2"}, {2, 3})
        broken._absent = {"site-3": [1], "site-2": [5]}
        return broken

    asked = request(targets=())
    outcome = unlearn(phases, asked, federation(), listeners=[heard.append], guards=guards)
    assert outcome.warnings == (
        "site-2 was left out of 2 of 6 rounds: sent a displacement that is not finite",
        "site-2 was left out of 1 of 6 rounds: is switched off",
        "site-3 was left out of 1 of 6 rounds: is switched off",
    )
    again = federation()
    again.exchanged = [({}, Replies({}))] * 2
    resumed = unlearn(phases, asked, again, resume=heard[2].progress, guards=guards)
    assert resumed.warnings == outcome.warnings


def test_a_client_that_was_not_drawn_is_not_missing_and_one_that_is_away_is():
    drawn = unlearn([Averaging(4, 0.1)], request(), Quadratics(), participation=Participation(count=2))
    assert not any("left out" in each for each in drawn.warnings)
    with pytest.warns(UserWarning, match="is not present"):
        away = unlearn([Averaging(4, 0.1)], request(clients=(*CLIENTS, "site-7")), Quadratics())
    assert "site-7 was left out of 4 of 4 rounds: was not there" in away.warnings


@pytest.mark.parametrize("where", ["train", "test"])
def test_a_loss_that_no_training_leads_to_is_divergence(where):
    class Absurd(Quadratics):
        def perform(self, client, job, terms):
            reply = super().perform(client, job, terms)
            wild = where == "train" and len(self.exchanged) == 2
            return replace(reply, statistics={"train": {"loss": Mean(7e20, 1)}}) if wild else reply

        def measured(self, client, params):
            wild = where == "test" and len(self.exchanged) == 3
            return {"test": {"loss": Mean(7e20 if wild else 1.0, 1)}}

    outcome = unlearn([Pretraining(5, 0.1)], request(targets=()), Absurd())
    assert outcome.status is Status.DIVERGED
    assert "the retained clients' mean loss is 7.0e+20" in outcome.reason
    assert torch.equal(outcome.params, unlearn([Pretraining(2, 0.1)], request(), Quadratics()).params)


@pytest.mark.parametrize(("lr", "warned"), [(1e-9, True), (0.05, False)])
def test_a_rate_at_which_a_new_model_does_not_learn_is_told_of_in_the_round_in_which_it_is_seen(
    lr, warned, caplog
):
    for phases in ([Pretraining(6, lr)], method["retrain"](Schedule(3, 0.1, 3, 0.1, pretrain_lr=lr))):
        caplog.clear()
        outcome = unlearn(phases, request(), Quadratics())
        told = [each for each in outcome.warnings if "has not fallen in the first 5 rounds" in each]
        assert bool(told) is warned
        assert [record.getMessage() for record in caplog.records] == told


def test_the_rate_that_was_sent_is_recorded():
    federation = Listening()
    outcome = unlearn(method["fast-retrain"](SHORT), request(), federation, training=LocalTraining(decay=0.9))
    sent = [terms.rate(job) for jobs, terms in federation.trained() for job in [next(iter(jobs.values()))]]
    assert [row["lr"] for row in outcome.metrics[1:]] == sent
    assert sent[-1] < 0.1 * sent[0]


def test_where_every_update_is_broken_the_run_ends_as_diverged_with_the_last_good_model():
    outcome = unlearn((Averaging(3, 0.1),), request(), Spoiled(times(float("inf")), CLIENTS, {2}))
    assert outcome.status is Status.DIVERGED
    assert "round 2 of post-training" in outcome.reason
    assert "lower the learning rate (now 0.1)" in outcome.reason
    assert torch.equal(outcome.params, unlearn((Averaging(1, 0.1),), request(), Quadratics()).params)


def test_a_step_that_is_not_finite_is_not_taken():
    class Wild(Averaging):
        def round(self, asked, state):
            yield {client: train(state.params) for client in asked.asked}
            return state.step(torch.full((DIMENSION,), torch.nan))

    outcome = unlearn((Wild(3, 0.1),), request(), Quadratics())
    assert outcome.status is Status.DIVERGED
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
    terms = Terms(lr=0.01, batch_size=10, seed=(0, 0, 0), shuffle=True)
    replies = federation.exchange({client: train(asked.params) for client in ("a", "b")}, terms)
    expected = replies["a"].buffers["1.running_mean"] * 0.4 + replies["b"].buffers["1.running_mean"] * 0.6
    assert torch.allclose(outcome.state.buffers["1.running_mean"], expected)
    assert outcome.state.buffers["1.num_batches_tracked"].dtype == torch.int64


def test_a_mask_of_minus_infinity_may_lie_beside_the_parameters():
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(4, 2)
            self.register_buffer("mask", torch.tensor([0.0, -torch.inf, 0.0, 0.0]))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dense(x.masked_fill(self.mask.isinf(), 0))

    model, data = Masked(), shifted(["a", "b"])
    for held in ({}, buffers(model)):
        asked = Request(flatten(model), ("a", "b"), ("b",), buffers=held)
        outcome = unlearn((Averaging(2, 0.1),), asked, Sequential(model, data))
        assert outcome.status is Status.DONE, outcome.reason
        assert torch.equal(outcome.state.buffers["mask"], model.mask)


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


def test_a_buffer_that_nobody_changes_keeps_its_bits():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(4, 2)
            self.register_buffer("scale", torch.linspace(0.1, 0.9, 4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.dense(x * self.scale)

    model, data = Scaled(), shifted(["a", "b", "c", "d"])
    for held in ({}, buffers(model)):
        asked = Request(flatten(model), tuple(data), (), buffers=held)
        outcome = unlearn((Pretraining(20, 0.1),), asked, Sequential(model, data))
        assert torch.equal(outcome.state.buffers["scale"], model.scale)


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


def test_a_loss_of_ones_own_can_be_the_unlearning_loss():
    @loss("test: squared", summary="test")
    def _squared(task, job):
        return lambda model, batch: unlearning_transform(task.losses(model, batch)).square().mean()

    model, data = normalised(), shifted(["a", "b"])
    asked = Request(flatten(model), tuple(data), ("b",))
    own, plain = (
        unlearn(method["fedosd"](Schedule(2, 0.1, 1, 0.1), objective=name), asked, Sequential(model, data))
        for name in ("test: squared", "uce")
    )
    assert own.status is Status.DONE
    assert not torch.equal(own.params, plain.params)


def test_public_data_that_is_not_here_is_refused_before_round_one():
    with pytest.raises(FedUnlearnError, match="'site-8', which holds the public data, is not present"):
        unlearn((), replace(request(), public="site-8"), Quadratics())


def test_a_client_that_is_not_here_is_named_and_waited_for():
    phases = method["finetune"](Schedule(1, 0.1, 1, 0.1))
    with pytest.warns(UserWarning, match="client 'site-7' of the request is not present"):
        outcome = unlearn(phases, request(clients=(*CLIENTS, "site-7")), Quadratics())
    assert outcome.status is Status.DONE
    assert outcome.unheard == ("site-7",)
    assert torch.equal(outcome.params, unlearn(phases, request(), Quadratics()).params)


def test_derived_seeds_do_not_collide_for_other_groupings_of_the_same_text():
    assert derive("a", "bc") != derive("ab", "c")
    assert derive(1) != derive("1")
    assert 0 <= derive("anything") < 2**63


@pytest.mark.parametrize(
    "name", ["ascent", "ewcsga", "fedcare", "fupga", "sfu", "not", "reset", "fedrecovery", "puf", "fedkdu"]
)
def test_counting_conflicts_changes_neither_result_nor_cost(name):
    phases = method[name](Schedule(3, 0.05, 3, 0.05))
    plain, counted, silent = (
        unlearn(phases, request(), Quadratics(), probes=probes)
        for probes in ([Conflicts()], [Conflicts(ask=True)], [])
    )
    assert torch.equal(plain.params, counted.params)

    def others(outcome: Outcome) -> list[dict[str, object]]:
        return [{k: v for k, v in row.items() if k != "conflicts"} for row in measured(outcome)]

    assert others(plain) == others(counted) == others(silent)
    unlearning = [row for row in counted.metrics[1:] if row["stage"] == Stage.UNLEARNING]
    assert all("conflicts" in row for row in unlearning)
    assert not all("conflicts" in row for row in plain.metrics[1:])
    assert not any("conflicts" in row for row in silent.metrics)


def test_conflicts_are_those_of_the_retained_clients_at_the_model_before_the_step():
    asked, federation = request(), Quadratics()
    phases = method["not"](Schedule(1, 0.05, 0, 0.05))
    outcome = unlearn(phases, asked, federation, probes=[Conflicts(ask=True)])
    step = outcome.params - asked.params
    against = [float(federation.gradient(client, asked.params) @ step) > 0 for client in asked.retained]
    assert outcome.metrics[1]["conflicts"] == sum(against)


def test_where_nobody_can_say_no_conflicts_are_counted():
    silent = Quadratics(absent={client: [1] for client in CLIENTS})
    phases = method["not"](Schedule(1, 0.05, 2, 0.05))
    outcome = unlearn(phases, request(), silent, probes=[Conflicts(ask=True)])
    assert "conflicts" not in outcome.metrics[1]
    assert outcome.status is Status.DONE


def test_a_probe_of_ones_own_sees_the_round_and_adds_to_its_metrics():
    def probe(round):
        return {
            "moved": float((round.after.params - round.before.params).norm()),
            "who": ",".join(sorted(round.exchanges[0].jobs)),
        }

    outcome = unlearn((Averaging(2, 0.1),), request(), Quadratics(), probes=[probe])
    assert outcome.metrics[1]["moved"] == pytest.approx(outcome.metrics[1]["distance"])
    assert outcome.metrics[1]["who"] == "site-0,site-2,site-3,site-4"


def test_work_on_public_data_is_not_counted_as_a_cost_of_clients():
    federation = Quadratics()
    outcome = unlearn(method["fedkdu"](Schedule(1, 0.05, 5, 0.05)), request(), federation)
    public = federation.asked().count({PUBLIC})
    assert public > 0
    rows = [row for row in outcome.metrics[1:] if row["local_trainings"] == 0]
    assert len(rows) == 1 + public  # the erasure asks nobody
    assert {row["bytes_down"] + row["bytes_up"] for row in rows} == {0}


class Counted(str):
    """A client's name that counts how often it is compared with another name."""

    __slots__ = ()
    compared = 0
    __hash__ = str.__hash__

    def __eq__(self, other):
        Counted.compared += 1
        return str.__eq__(self, other)


class Crowd:
    """Many clients that do next to nothing."""

    task = Classification()

    def __init__(self, size: int) -> None:
        self.names = tuple(Counted(f"site-{number:04}") for number in range(size))

    def present(self):
        return frozenset(self.names)

    def exchange(self, jobs, terms=NO_TERMS):
        measures = {"test": {"accuracy": Mean(1.0, 2)}}
        return Replies(
            {
                client: Reply(torch.ones(2), 1) if job.work == "train" else Reply(None, 1, measures)
                for client, job in jobs.items()
            }
        )


@pytest.mark.parametrize("phase", [Averaging, ForgettingDescent])
def test_a_round_looks_at_every_client_a_few_times_however_many_there_are(phase):
    crowd = Crowd(200)
    Counted.compared = 0
    asked = Request(torch.zeros(2), crowd.names, crowd.names[50:150])
    unlearn([phase(2, 0.1)], asked, crowd)
    assert Counted.compared < 10 * len(crowd.names)


class Broken(Dataset):
    """Fails in every round after the first few examples, once it is told to."""

    fails = False

    def __len__(self) -> int:
        return 5

    def __getitem__(self, number):
        if self.fails and number > 2:
            raise OSError("the disk is gone")
        return torch.ones(4), number % 3


@pytest.mark.parametrize("broken", [{"site-1"}, {"site-0", "site-1", "site-2"}])
def test_a_client_whose_data_fail_is_missing_and_if_nobody_is_left_the_run_ends_with_its_sentence(broken):
    model = nn.Linear(4, 3)
    data = {c: ClientData(Broken()) for c in ("site-0", "site-1", "site-2")}
    asked, federation = Request(flatten(model), tuple(data), ()), Sequential(model, data)
    for client in broken:  # every row could be read before round one
        data[client].train.fails = True
    with pytest.warns(UserWarning, match=r"failed with OSError: the disk is gone .* counts as missing"):
        outcome = unlearn([Pretraining(2, 0.1)], asked, federation)
    rounds = 2 if len(broken) == 1 else 1
    for client in broken:
        told = f"{client} was left out of {rounds} of {rounds} rounds: failed with OSError: the disk is gone"
        assert any(each.startswith(told) for each in outcome.warnings)
    if len(broken) == 1:
        assert outcome.status is Status.DONE
        assert [row.get("missing") for row in outcome.metrics] == [None, 1, 1]
    else:
        assert outcome.status is Status.MISSING_REPLY
        assert "failed with OSError: the disk is gone" in outcome.reason
        assert "\n" not in outcome.reason


@pytest.mark.parametrize("spoiled", [{"site-1"}, set(CLIENTS)])
def test_the_learning_rate_alone_is_to_blame_only_where_nobody_stays_finite(spoiled):
    phases = method["fedosd"](SHORT)
    outcome = unlearn(phases, request(), Spoiled(times(float("nan")), spoiled, [2]))
    assert outcome.status is Status.DIVERGED
    assert "sent a displacement that is not finite" in outcome.reason
    assert "lower the learning rate (now 0.1)" in outcome.reason
    assert ("check the data of site-1" in outcome.reason) is (spoiled == {"site-1"})
    assert ("as did everybody else" in outcome.reason) is (spoiled != {"site-1"})


@pytest.mark.parametrize(
    ("lr", "decay", "said"),
    [
        (1e-200, 1.0, "begins with 1e-200"),
        (1e-320, 1.0, "begins with"),
        (1e-30, 1e-9, "falls to 1e-39"),
        (0.1, 1e-300, "falls to 1e-301"),
        (1e200, 1.0, r"begins with 1e\+200"),
    ],
)
def test_learning_rates_that_cannot_be_computed_with_are_refused(lr, decay, said):
    training = LocalTraining(decay=decay)
    for phase in (Pretraining(2, lr, ("residuals",)), ElasticAscent(2, lr)):
        with pytest.raises(FedUnlearnError, match=rf"learning rate of .* {said} .*lr = .*decay = "):
            unlearn([phase], request(), Quadratics(), training=training)


def test_the_learning_rate_of_a_phase_without_rounds_does_not_matter():
    assert unlearn([Averaging(0, 1e-300)], request(), Quadratics()).status is Status.DONE


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (lambda request, state: None, "Mistaken.round returns a NoneType: return a State"),
        (lambda request, state: state.params, "Mistaken.round returns a Tensor: return a State"),
        (lambda request, state: (yield state.params), "yields a Tensor that does not map clients to jobs"),
        (lambda request, state: (yield {"site-1": state.params}), "does not map clients to jobs"),
        (lambda request, state: (yield {"site-77": train(state.params)}), "asks 'site-77', which is not a"),
        (lambda request, state: (yield {}), "Mistaken.round returns a Replies: return a State"),
    ],
)
def test_mistakes_in_a_round_are_told_to_its_author(body, told):
    class Mistaken(Averaging):
        def round(self, request, state):
            return body(request, state)

    with pytest.raises(FedUnlearnError, match=told):
        unlearn([Mistaken(1, 0.1)], request(), Quadratics())


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda schedule: [Averaging(1, 0.1)], "returns .*Averaging.*, which is not a phase"),
        (lambda schedule: Averaging(1), "cannot be made: .* missing 1 required positional argument: 'lr'"),
    ],
)
def test_mistakes_in_a_method_are_told_to_its_author(monkeypatch, made, told):
    monkeypatch.setattr(method, "_entries", {**method._entries})
    method("mistaken")(made)
    with pytest.raises(FedUnlearnError, match=f"method 'mistaken' {told}"):
        phases_of("mistaken", SHORT, {})


def test_one_phase_needs_no_tuple(monkeypatch):
    monkeypatch.setattr(method, "_entries", {**method._entries})
    method("single")(lambda schedule: Averaging(schedule.rounds, 0.1))
    assert phases_of("single", SHORT, {}) == (Averaging(5, 0.1),)


def test_a_parameter_without_a_default_is_no_option():
    with pytest.raises(FedUnlearnError, match="give the parameter 'scale' a default value"):
        check_options("method 'mine'", lambda schedule, scale: (), {"scale": 1})
