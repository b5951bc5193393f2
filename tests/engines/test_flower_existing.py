"""An existing Flower app: its own training function, its own FedAvg, and a history recorded beside it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg
from support.codes import refused, warned
from support.federations import holdings, network
from support.flower_apps import CLIENTS, QUICK, existing, grid, number_of, served
from torch import nn

from fedunlearn import (
    Job,
    Request,
    Schedule,
    Status,
    Terms,
    flatten,
    forget,
    method,
    shapes,
    train,
)
from fedunlearn.core import Reason
from fedunlearn.core.hashes import module_hash
from fedunlearn.core.history import HeardRound, History
from fedunlearn.core.state import State
from fedunlearn.driver import rehearsal
from fedunlearn.engines import flower
from fedunlearn.runs import read_tensors

NAME = "perceptron"
KINDS = ["locals", "norms", "residuals", "updates"]
SCHEDULE = Schedule(4, 0.05, 3, 0.05)
FEDOSD: dict[str, Any] = {"method": "fedosd", "schedule": SCHEDULE}
WITH_UCE_ALONE = {
    *("federaser", "fedosd", "fedosd-m2", "fedosd-m3", "fedosd-m4", "fedosd-m5"),
    *(
        "fast-retrain",
        "fedmemprune",
        "fedrecovery",
        "finetune",
        "noisy-finetune",
        "not",
        "puf",
        "reset",
        "retrain",
    ),
}
pytestmark = [
    # True of an app that measures nothing and of short runs, and not the subject of most tests here.
    pytest.mark.filterwarnings("ignore:no retained client reports a loss, so no step is tried"),
    pytest.mark.filterwarnings("ignore:nothing is measured of the targets"),
    pytest.mark.filterwarnings("ignore:the targets' own unlearning loss has hardly fallen"),
    pytest.mark.filterwarnings("ignore:the retained clients are worse off than before"),
    pytest.mark.filterwarnings("ignore:a step of unlearning was longer than 10% of the model, and cut"),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(level)


def trained(path: Path, rounds: int = 8, app: Any = None, **options: Any) -> tuple[nn.Module, Any]:
    """A model that Flower's FedAvg trained, while its history was recorded."""
    model = network(NAME)
    strategy = flower.Recording(FedAvg(fraction_evaluate=0.0, **options), model, path, KINDS)
    result = strategy.start(
        grid=grid(app or existing(NAME)),
        initial_arrays=ArrayRecord(model.state_dict()),
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=rounds,
    )
    model.load_state_dict(result.arrays.to_torch_state_dict())
    return model, strategy


@pytest.fixture(scope="module")
def omega0(tmp_path_factory) -> tuple[nn.Module, Path]:
    path = tmp_path_factory.mktemp("trained") / "history.safetensors"
    return trained(path)[0], path


def connected(app: Any = None, **options: Any) -> flower.ExistingApp:
    return flower.connect_existing(
        grid(app or existing(NAME)), network(NAME), clients=5, patience=QUICK, **options
    )


def copies(omega0: tuple[nn.Module, Path], folder: Path) -> tuple[nn.Module, Path]:
    model, path = network(NAME), folder / "history.safetensors"
    model.load_state_dict(omega0[0].state_dict())
    path.write_bytes(omega0[1].read_bytes())
    return model, path


@pytest.mark.parametrize("how", sorted(entry.name for entry in method if "test" not in entry.name))
def test_a_method_runs_with_one_more_handler_or_is_refused_before_round_one(how, omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    asked = {"method": how, "schedule": SCHEDULE, "history": history}
    nodes = grid(existing(NAME))
    federation = flower.connect_existing(nodes, model, clients=5, patience=QUICK)
    if how in WITH_UCE_ALONE:
        outcome = forget(federation, model, ["site-2"], tmp_path, floor=None, **asked)
        assert not outcome.status.failed
        assert module_hash(model) != module_hash(omega0[0])
        assert 0 <= outcome.metrics[-1]["r_acc"] <= 1
        assert 0 <= outcome.metrics[-1]["forget_acc"] <= 1
    else:
        with refused(
            "history", "unsuitable", says=r"cannot run on this federation|needs (public|cluster|slice)"
        ):
            forget(federation, model, ["site-2"], tmp_path, **asked)
        assert not nodes.pushed
        assert module_hash(model) == module_hash(omega0[0])


@pytest.mark.parametrize(("how", "loss"), [("fedosd-joint", "unlikelihood"), ("fedosd-m1", "ascent")])
def test_a_loss_without_a_handler_is_named_with_what_to_add(how, loss, omega0, tmp_path):
    model, _ = copies(omega0, tmp_path)
    with refused("unsuitable", says=rf"@app.train\('{loss}'\), and connect_existing losses"):
        forget(connected(), model, ["site-2"], tmp_path, method=how)


def test_a_handler_that_the_app_does_not_have_ends_with_its_reason(omega0, tmp_path):
    model, _ = copies(omega0, tmp_path)
    with (
        warned("no-reply", says="No train function registered with name 'ascent'"),
        refused("missing_reply", says="site-2 failed to answer"),
    ):
        forget(connected(losses=["ascent"]), model, ["site-2"], tmp_path, method="fedosd-m1")


def test_the_app_is_asked_as_fedavg_asks(omega0):
    seen: list[Message] = []
    app = existing(NAME)

    def listening(message: Message, context: Context) -> Message:
        seen.append(message)
        return app(message, context)

    federation = connected(listening)
    params = flatten(omega0[0])
    jobs = {"site-0": train(params), "site-1": train(params, "uce"), "site-2": Job("measure", params)}
    federation.exchange(jobs, Terms(lr=0.1, decay=0.5, seed=(1, 0, 6)))
    assert [message.metadata.message_type for message in seen] == ["train", "train.uce", "evaluate"]
    for message in seen:
        config = message.content.config_records["config"]
        assert config["lr"] == 0.05
        assert config["server-round"] == 7
        sent = message.content.array_records["arrays"].to_torch_state_dict()
        assert all(torch.equal(value, omega0[0].state_dict()[key]) for key, value in sent.items())
    assert len({message.content.config_records["config"]["seed"] for message in seen}) == 3


def test_the_displacement_is_the_difference_of_the_weights():
    model = network("batch norm")
    federation = flower.connect_existing(grid(existing("batch norm")), model, clients=5, patience=QUICK)
    params = flatten(model)
    reply = federation.exchange({"site-3": train(params)}, Terms(lr=0.1))["site-3"]
    assert reply.examples == len(holdings("batch norm")["site-3"].train.y)
    assert reply.displacement.any()
    assert reply.buffers["1.num_batches_tracked"] == 2
    assert reply.buffers["1.running_mean"].any()
    assert reply.statistics["train"]["loss"].value > 0


def spoiled(change: Any) -> Any:
    app = existing(NAME)

    def answering(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if number_of(context) == 1:
            change(reply.content)
        return reply

    return answering


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content.__delitem__("arrays"), Reason.FIELD),
        (lambda content: content.__delitem__("metrics"), Reason.FIELD),
        (lambda content: content["metrics"].__delitem__("num-examples"), Reason.FIELD),
        (lambda content: content["arrays"].__delitem__("1.weight"), Reason.FIELD),
        (
            lambda content: content.__setitem__(
                "arrays",
                ArrayRecord({**content["arrays"].to_torch_state_dict(), "1.bias": torch.zeros(2)}),
            ),
            Reason.SHAPE,
        ),
        (lambda content: content.__setitem__("more", ArrayRecord()), Reason.FIELD),
        (lambda content: content.__setitem__("metrics", MetricRecord({"num-examples": 2.5})), Reason.FIELD),
    ],
    ids=[
        "no arrays",
        "no metrics",
        "no count",
        "a weight short",
        "a shape",
        "two records",
        "half an example",
    ],
)
def test_a_reply_that_is_not_one_has_its_reason(change, reason):
    job = train(flatten(network(NAME)))
    with warned("no-reply", says="site-1 sent"):
        replies = connected(spoiled(change)).exchange(dict.fromkeys(CLIENTS, job))
    assert replies.missing["site-1"].reason is reason
    assert len(replies) == 4


def test_recording_hears_what_pretraining_would(tmp_path):
    """The same rounds, replayed by hand from what clients answer, give the same history."""
    _, strategy = trained(tmp_path / "history.safetensors", rounds=3)
    model, app = network(NAME), existing(NAME)
    federation = flower.connect_existing(grid(app), model, clients=5, patience=QUICK)
    state, history = State(flatten(model), lr=0.1), History()
    for number in range(3):
        replies = federation.exchange(
            dict.fromkeys(CLIENTS, train(state.params)), Terms(lr=0.1, seed=(number,))
        )
        heard = HeardRound(state, replies, CLIENTS, shapes(model))
        history = history.hear(KINDS, heard)
        state = State(state.params - replies.average(), number + 1, lr=0.1)
    recorded = strategy.history.tensors()
    assert recorded.keys() == history.tensors().keys()
    for name, value in history.tensors().items():
        assert torch.allclose(recorded[name], value, rtol=1e-3, atol=1e-5), name
    assert read_tensors(tmp_path / "history.safetensors")[0].keys() == recorded.keys()


def test_recording_changes_no_bit_of_the_training(tmp_path):
    """Of one round: Flower draws the order of clients at random, and with it the last bits of the next."""
    model, nodes, config = network(NAME), grid(existing(NAME)), ConfigRecord({"lr": 0.1})
    arrays = ArrayRecord(model.state_dict())
    plain = FedAvg(fraction_evaluate=0.0)
    strategy = flower.Recording(plain, model, tmp_path / "history.safetensors", KINDS)
    replies = nodes.send_and_receive(strategy.configure_train(1, arrays, config, nodes))
    expected, _ = plain.aggregate_train(1, replies)
    found, _ = strategy.aggregate_train(1, replies)
    wanted = expected.to_torch_state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in found.to_torch_state_dict().items())


def test_a_forgotten_client_leaves_the_recorded_history(omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    asked = {"method": "federaser", "schedule": SCHEDULE, "history": history}
    forget(connected(), model, ["site-2"], tmp_path, **asked)
    left = History.from_tensors(read_tensors(history)[0])
    assert "site-2" not in left.rows["norms"]
    assert "site-1" in left.rows["norms"]


def test_a_request_that_has_been_answered_is_not_answered_again(omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    first = forget(
        connected(), model, ["site-2"], tmp_path, method="federaser", schedule=SCHEDULE, history=history
    )
    nodes = grid(existing(NAME))
    model, _ = copies(omega0, tmp_path)
    federation = flower.connect_existing(nodes, model, clients=5, patience=QUICK)
    again = forget(
        federation, model, ["site-2"], tmp_path, method="federaser", schedule=SCHEDULE, history=history
    )
    assert not nodes.pushed
    assert torch.equal(first.params, again.params)


def test_a_strategy_that_does_not_average_is_refused(tmp_path):
    with refused("history", says="FedAdam does not take the mean of its clients"):
        flower.Recording(FedAdam(), network(NAME), tmp_path / "history")


def test_recording_refuses_what_it_cannot_record(tmp_path):
    with refused("unknown", says="unknown history 'norm'; did you mean 'norms'"):
        flower.Recording(FedAvg(), network(NAME), tmp_path / "history", ["norm"])
    strategy = flower.Recording(FedAvg(), network(NAME), tmp_path / "history", ["residuals"])
    arrays = ArrayRecord(network(NAME).state_dict())
    with refused("history", says="'residuals' needs the learning rate"):
        strategy.configure_train(1, arrays, ConfigRecord(), grid(existing(NAME)))


def test_nodes_of_an_existing_app_can_introduce_themselves():
    app = existing(NAME)
    flower.introduce(app, lambda context: f"hospital-{number_of(context)}")
    federation = flower.connect_existing(grid(app, names=()), network(NAME), clients=5, patience=QUICK)
    assert federation.present() == {f"hospital-{number}" for number in range(5)}


def test_a_rehearsal_asks_nobody_and_ends_where_a_method_ends():
    params = flatten(network(NAME))
    request = Request(params, CLIENTS, ("site-1",), shapes=shapes(network(NAME)))
    exchanges = list(rehearsal.asked(method["fedosd"](SCHEDULE), request))
    assert [set(jobs) for jobs in exchanges] == [{*CLIENTS}, {*CLIENTS} - {"site-1"}]
    assert exchanges[0]["site-1"].config["loss"] == "uce"


def test_public_data_at_the_server_does_not_hide_what_the_clients_cannot_do(omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    nodes = grid(existing(NAME))
    federation = flower.connect_existing(nodes, model, clients=5, patience=QUICK)
    public = holdings(NAME, public=True)["public"].train
    with refused("unsuitable", says="needs the step rule 'clipped'"):
        forget(federation, model, ["site-2"], tmp_path, method="sfu", public=public)
    assert not nodes.pushed
    outcome = forget(
        federation,
        model,
        ["site-2"],
        tmp_path,
        method="fedkdu",
        schedule=Schedule(1, 0.05, 8, 0.05),
        history=history,
        public=public,
    )
    assert not outcome.status.failed


@pytest.mark.parametrize("how", ["fedosd", "ascent"])
def test_a_site_that_has_left_is_not_asked_for_help(how, omega0, tmp_path):
    """One sentence before round one, whether the caller says that it is gone or not."""
    model, _ = copies(omega0, tmp_path)
    nodes = grid(existing(NAME))
    federation = flower.connect_existing(nodes, model, clients=5, patience=QUICK)
    nodes.gone = {102}  # site-2
    for gone, said in (
        (True, f"{how} asks the targets to help, and they are gone: use a method that does not"),
        (False, r"'site-2' is not present \(present: .*\): start its SuperNode, or, if it has left"),
    ):
        with refused("absent", says=said) as caught:
            forget(federation, model, ["site-2"], tmp_path, method=how, schedule=SCHEDULE, gone=gone)
        assert "\n" not in str(caught.value)
    assert not nodes.pushed
    assert module_hash(model) == module_hash(omega0[0])
    options = {"method": "retrain", "schedule": SCHEDULE, "gone": True, "floor": None}
    assert forget(federation, model, ["site-2"], tmp_path, **options).status is Status.DONE


def test_a_phase_without_rounds_is_not_rehearsed(omega0, tmp_path):
    """FedOSD-M1 would ask for ascent, in rounds that it does not have."""
    model, _ = copies(omega0, tmp_path)
    outcome = forget(
        connected(), model, ["site-2"], tmp_path, method="fedosd-m1", schedule=Schedule(0, 0.1, 2, 0.05)
    )
    assert not outcome.status.failed


def starting(strategy: flower.Recording, app: Any, rounds: int = 3, **options: Any) -> None:
    strategy.start(
        grid=grid(app, **options),
        initial_arrays=ArrayRecord(network(NAME).state_dict()),
        train_config=ConfigRecord({"lr": 0.1}),
        num_rounds=rounds,
    )


def test_nodes_that_nobody_can_name_are_not_recorded_in_silence(tmp_path, monkeypatch):
    monkeypatch.setattr("fedunlearn.engines.flower.recording.INTRODUCTION", 0.2)
    strategy = flower.Recording(FedAvg(fraction_evaluate=0.0), network(NAME), tmp_path / "history")
    with (
        warned("absent", says="sent no name: register its SuperNode with --name"),
        refused("client", says="5 of the sampled nodes have no name"),
    ):
        starting(strategy, existing(NAME), names=())


def test_a_client_that_joins_later_was_away_until_then(tmp_path):
    strategy = flower.Recording(FedAvg(fraction_evaluate=0.0), network(NAME), tmp_path / "history")
    nodes = grid(existing(NAME))
    late = next(node.node_id for node in nodes.get_nodes() if node.name == "site-4")
    arrays, config = ArrayRecord(network(NAME).state_dict()), ConfigRecord({"lr": 0.1})
    for number in range(1, 5):
        nodes.gone = {late} if number < 3 else set()
        messages = strategy.configure_train(number, arrays, config, nodes)
        there = [message for message in messages if message.metadata.dst_node_id not in nodes.gone]
        strategy.aggregate_train(number, nodes.send_and_receive(there))
    rows = strategy.history.rows["norms"]
    assert {len(row) for row in rows.values()} == {4}
    assert not rows["site-4"][:2].any()
    assert rows["site-4"][2:].any(dim=1).all()


def test_clients_are_weighed_as_the_strategy_weighs_them(tmp_path):
    app = existing(NAME)

    def weighed(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if "metrics" in reply.content.metric_records:
            reply.content["metrics"]["w"] = 96 if number_of(context) == 0 else 1
        return reply

    averaging = FedAvg(fraction_evaluate=0.0, weighted_by_key="w")
    strategy = flower.Recording(averaging, network(NAME), tmp_path / "history")
    starting(strategy, weighed, rounds=1)
    assert float(strategy.history.of("share", "site-0")) == pytest.approx(0.96)


def test_a_history_is_not_overwritten_and_holds_no_infinities(tmp_path):
    (tmp_path / "history").write_bytes(b"recorded before")
    with refused("occupied", says="holds the history of another training"):
        flower.Recording(FedAvg(), network(NAME), tmp_path / "history")
    app = existing(NAME)

    def wild(message: Message, context: Context) -> Message:
        reply = app(message, context)
        held = reply.content["arrays"].to_torch_state_dict()
        reply.content["arrays"] = ArrayRecord({name: value / 0 for name, value in held.items()})
        return reply

    strategy = flower.Recording(FedAvg(fraction_evaluate=0.0), network(NAME), tmp_path / "other")
    with refused("client", says="sent weights that are not finite"):
        starting(strategy, wild)
    assert not (tmp_path / "other").exists()


def test_what_is_no_strategy_is_refused_by_its_name(tmp_path):
    with refused("history", says="object does not take the mean"):
        flower.Recording(object(), network(NAME), tmp_path / "history")


def test_a_site_that_was_forgotten_takes_no_part_in_the_next_request(omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    asked: set[str] = set()
    app = existing(NAME)

    def listening(message: Message, context: Context) -> Message:
        asked.add(f"site-{number_of(context)}")
        return app(message, context)

    forget(connected(), model, ["site-3"], tmp_path, **FEDOSD)
    with refused("forgotten", says="this model still knows site-3"):
        forget(connected(), copies(omega0, tmp_path)[0], ["site-1"], tmp_path, **FEDOSD)
    second = forget(connected(listening), model, ["site-1"], tmp_path, **FEDOSD, history=history)
    assert asked == {*CLIENTS} - {"site-3"}
    assert not second.status.failed
    again = copies(omega0, tmp_path)[0]
    assert not forget(connected(), again, ["site-3"], tmp_path, **FEDOSD).status.failed  # as it was
    with refused("forgotten", says="has been forgotten already"):
        forget(connected(), model, ["site-3", "site-4"], tmp_path, **FEDOSD)


def test_two_requests_side_by_side_both_leave_the_history(omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    inner: list[bool] = []

    def meanwhile(event: Any) -> None:
        if not inner:
            inner.append(True)
            other = copies_model(omega0)
            forget(connected(), other, ["site-2"], tmp_path / "b", **options)

    options: dict[str, Any] = {"method": "federaser", "schedule": SCHEDULE, "history": history}
    forget(connected(), model, ["site-1"], tmp_path / "a", listeners=[meanwhile], **options)
    left = History.from_tensors(read_tensors(history)[0])
    assert {*left.rows["norms"]} == {"site-0", "site-3", "site-4"}


def copies_model(omega0: tuple[nn.Module, Path]) -> nn.Module:
    model = network(NAME)
    model.load_state_dict(omega0[0].state_dict())
    return model


def test_other_history_frozen_weights_or_clients_are_another_run(omega0, tmp_path):
    model, history = copies(omega0, tmp_path)
    options: dict[str, Any] = {"method": "federaser", "schedule": SCHEDULE, "floor": None}
    forget(connected(), model, ["site-2"], tmp_path / "run", history=history, **options)
    other = tmp_path / "other.safetensors"
    trained(other, rounds=3)
    forget(connected(), copies_model(omega0), ["site-2"], tmp_path / "run", history=other, **options)
    assert (tmp_path / "run/0-forget-site-2-federaser-2/outcome.json").exists()
    assert "site-2" not in History.from_tensors(read_tensors(other)[0]).rows["norms"]
    with refused("occupied", says="has answered this request with other settings"):
        forget(connected(), model, ["site-2"], tmp_path / "run", method="retrain", schedule=SCHEDULE)
    with refused("missing", says="there is no history at"):
        forget(connected(), model, ["site-1"], tmp_path / "new", history=tmp_path / "absent", **options)

    def frozen(value: float) -> nn.Module:
        model = network(NAME)
        model[1].requires_grad_(False)
        model[1].weight.data.fill_(value)
        return model

    plan: dict[str, Any] = {"method": "finetune", "schedule": SCHEDULE, "floor": None}
    for value, run in ((0.1, "0-forget-site-2-finetune"), (0.2, "0-forget-site-2-finetune-2")):

        def build(value: float = value) -> nn.Module:
            return frozen(value)

        federation = flower.connect_existing(
            grid(existing(NAME, build)), frozen(value), clients=5, patience=QUICK
        )
        forget(federation, frozen(value), ["site-2"], tmp_path / "frozen", **plan)
        assert (tmp_path / "frozen" / run / "outcome.json").exists()
    ours = flower.connect(grid(served(NAME)), network(NAME), clients=5, patience=QUICK)
    forget(connected(), copies_model(omega0), ["site-2"], tmp_path / "own", **plan)
    with warned("outcome", says="backdoor still works"):
        forget(ours, copies_model(omega0), ["site-2"], tmp_path / "own", **plan)
    assert (tmp_path / "own/0-forget-site-2-finetune-2/outcome.json").exists()


def test_two_jobs_with_one_vector_and_other_buffers_are_two_models():
    model, seen = network("batch norm"), {}
    app = existing("batch norm")

    def listening(message: Message, context: Context) -> Message:
        held = message.content.array_records["arrays"].to_torch_state_dict()
        seen[f"site-{number_of(context)}"] = float(held["1.running_mean"][0])
        return app(message, context)

    federation = flower.connect_existing(grid(listening), model, clients=5, patience=QUICK)
    params = flatten(model)
    federation.exchange(
        {
            f"site-{number}": train(params, buffers={"1.running_mean": torch.full((4,), float(number))})
            for number in (1, 2)
        }
    )
    assert seen == {"site-1": 1.0, "site-2": 2.0}
