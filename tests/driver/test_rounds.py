"""Rounds: terms, replies, buffers, costs, and mistakes of a method's author."""

from __future__ import annotations

import pytest
import torch
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    NO_TERMS,
    PUBLIC,
    Listening,
    Quadratics,
    Spoiled,
    request,
    times,
)
from support.codes import refused, says, warned
from torch import nn
from torch.utils.data import Dataset

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    Guards,
    LocalTraining,
    Participation,
    Reply,
    Request,
    Schedule,
    Sequential,
    Status,
    Terms,
    flatten,
    loss,
    method,
    train,
    unlearn,
)
from fedunlearn.core import Event, Mean, Replies
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers
from fedunlearn.maths import unlearning_transform
from fedunlearn.methods.fedavg import Averaging, Pretraining
from fedunlearn.methods.fedosd import ForgettingDescent

SHORT = Schedule(3, 0.1, 2, 0.01)


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


def test_the_rate_that_was_sent_is_recorded():
    federation = Listening()
    outcome = unlearn(method["fast-retrain"](SHORT), request(), federation, training=LocalTraining(decay=0.9))
    sent = [terms.rate(job) for jobs, terms in federation.trained() for job in [next(iter(jobs.values()))]]
    assert [row["lr"] for row in outcome.metrics[1:]] == sent
    assert sent[-1] < 0.1 * sent[0]


def test_one_broken_update_never_enters_the_model_and_does_not_end_the_run():
    broken = Spoiled(times(float("nan")), {"site-2"}, range(1, 4))
    outcome = unlearn((Averaging(3, 0.1),), request(), broken)
    without = Quadratics(absent={"site-2": range(1, 4)})
    assert outcome.status is Status.DONE
    assert torch.equal(outcome.params, unlearn((Averaging(3, 0.1),), request(), without).params)
    assert [row["missing"] for row in outcome.metrics[1:]] == [1, 1, 1]
    assert outcome.unheard == ("site-2",)


@pytest.mark.wording
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
    with warned("absent", says="is not present"):
        away = unlearn([Averaging(4, 0.1)], request(clients=(*CLIENTS, "site-7")), Quadratics())
    assert says(away.warnings, "site-7 was left out of 4 of 4 rounds: was not there")


@pytest.mark.wording
@pytest.mark.parametrize(("lr", "expected"), [(1e-9, True), (0.05, False)])
def test_a_rate_at_which_a_new_model_does_not_learn_is_told_of_in_the_round_in_which_it_is_seen(
    lr, expected, caplog
):
    for phases in ([Pretraining(6, lr)], method["retrain"](Schedule(3, 0.1, 3, 0.1, pretrain_lr=lr))):
        caplog.clear()
        outcome = unlearn(phases, request(), Quadratics())
        told = [each for each in outcome.warnings if "has not fallen in the first 5 rounds" in each]
        assert bool(told) is expected
        assert [record.getMessage() for record in caplog.records] == told


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
    with warned("no-reply", says=r"failed with OSError: the disk is gone .* counts as missing"):
        outcome = unlearn([Pretraining(2, 0.1)], asked, federation)
    rounds = 2 if len(broken) == 1 else 1
    for client in broken:
        told = f"{client} was left out of {rounds} of {rounds} rounds: failed with OSError: the disk is gone"
        assert says(outcome.warnings, told)
    if len(broken) == 1:
        assert outcome.status is Status.DONE
        assert [row.get("missing") for row in outcome.metrics] == [None, 1, 1]
    else:
        assert outcome.status is Status.MISSING_REPLY
        assert says(outcome.reason, "failed with OSError: the disk is gone")
        assert "\n" not in outcome.reason


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

    with refused("invalid", says=told):
        unlearn([Mistaken(1, 0.1)], request(), Quadratics())


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
