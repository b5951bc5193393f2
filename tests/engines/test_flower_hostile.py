"""Broken and hostile nodes: nothing that they send crashes the server, stalls it or enters the model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord
from flwr.common.constant import ErrorCode
from support.codes import refused, warned
from support.federations import holdings, network
from support.flower_apps import CLIENTS, QUICK, Grid, existing, grid, number_of, served
from torch import nn

from fedunlearn import Mean, Reply, Schedule, Terms, flatten, forget, train
from fedunlearn.core import Failure, Reason
from fedunlearn.core.messages import Replies
from fedunlearn.driver.gate import admit
from fedunlearn.engines import flower

NAME = "perceptron"
SCHEDULE = Schedule(2, 0.02, 1, 0.02)
HEADER = b"\x93NUMPY\x01\x00v\x00{'descr': '%s', 'fortran_order': False, 'shape': "


def answering(app: Any, change: Callable[[Message], Message | None], kind: str, number: int = 2) -> Any:
    """An app of which one node changes its replies to messages of a kind."""

    def answer(message: Message, context: Context) -> Message:
        reply = app(message, context)
        if message.metadata.message_type != kind or number_of(context) != number:
            return reply
        return change(reply) or reply

    return answer


def connected(app: Any, patience: flower.Patience = QUICK, clients: int = 5) -> flower.FlowerFederation:
    return flower.connect(grid(app), network(NAME), clients=clients, patience=patience)


def jobs() -> dict[str, Any]:
    return dict.fromkeys(CLIENTS, train(flatten(network(NAME))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04junk",
        b"\x80\x04\x95pickle",
        (HEADER % b"<f4" + b"(3").ljust(128),
        (HEADER % b"<f4" + b"(10000000000,), }").ljust(128),
        (HEADER % b"|O" + b"(3,), }").ljust(128),
    ],
    ids=["nothing", "an archive", "a pickle", "half a header", "a huge array", "objects"],
)
def test_bytes_that_are_no_array_make_a_client_missing(data):
    def damage(reply: Message) -> None:
        reply.content.array_records["tensors 0"]["displacement"].data = data

    federation = connected(answering(served(NAME), damage, "train.job"))
    with warned("no-reply", says="site-2 sent an array"):
        replies = federation.exchange(jobs(), Terms(batch_size=4))
    assert replies.missing["site-2"].reason is Reason.FIELD
    assert len(replies) == 4


HELLOS = [
    *({"knows": [[1]]}, {"knows": 5}, {"versions": []}, {"parts": 5}, {"parts": [1]}),
    *({"task": "x"}, {"name": 7}, {"fingerprint": None}),
]


@pytest.mark.parametrize("told", [*HELLOS, "no table", [1]], ids=str)
def test_a_node_whose_introduction_is_nonsense_is_left_out(told):
    def lie(reply: Message) -> None:
        record = reply.content.config_records["hello"]
        own = json.loads(record["json"])
        record["json"] = json.dumps({**own, **told} if isinstance(told, dict) else told)

    nodes = grid(answering(served(NAME), lie, "query.hello"))
    late = next(node.node_id for node in nodes.get_nodes() if node.name == "site-2")
    nodes.gone.add(late)
    federation = flower.connect(nodes, network(NAME), clients=4, patience=QUICK)
    nodes.gone.clear()
    with warned("absent", says="a node sent .* left out"):
        assert federation.present() == {*CLIENTS} - {"site-2"}
    assert len(federation.exchange({client: jobs()[client] for client in federation.present()})) == 4


def test_a_node_that_is_always_unavailable_gets_its_job_a_few_times_only():
    app = served(NAME)

    def gone(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train.job" and number_of(context) == 2:
            return Message(Error(ErrorCode.NODE_UNAVAILABLE, "gone"), reply_to=message)
        return app(message, context)

    nodes = grid(gone)
    federation = flower.connect(nodes, network(NAME), clients=5, patience=flower.Patience(3.0, 0.5))
    before = len(nodes.pushed)
    replies = federation.exchange(jobs())
    assert replies.missing["site-2"].reason is Reason.ABSENT
    assert len(nodes.pushed) - before == 4 + 3


class Slow(Grid):
    """Replies take a while."""

    seconds = 0.3

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._ready: dict[str, float] = {}

    def push_messages(self, messages: Any) -> Any:
        found = list(super().push_messages(messages))
        self._ready |= {each: time.monotonic() + self.seconds for each in found}
        return found

    def pull_messages(self, message_ids: Any) -> Any:
        now = time.monotonic()
        return super().pull_messages([each for each in message_ids if now >= self._ready.get(each, 0)])


def test_waiting_for_one_node_takes_nothing_from_the_time_of_the_others():
    configs = [{"partition-id": number} for number in range(5)]
    nodes = Slow(served(NAME), configs, names=CLIENTS)
    federation = flower.connect(nodes, network(NAME), clients=5, patience=flower.Patience(1.0, 1.5))
    nodes.gone.add(next(node.node_id for node in nodes.get_nodes() if node.name == "site-3"))
    replies = federation.exchange(jobs())
    assert {*replies} == {*CLIENTS} - {"site-3"}
    assert replies.missing["site-3"].reason is Reason.ABSENT


def test_introductions_may_take_longer_than_nodes_take_to_come_online():
    """On a busy machine, a deployed node needs many seconds for its first message."""
    configs = [{"partition-id": number} for number in range(5)]
    nodes = Slow(served(NAME), configs, names=CLIENTS)
    nodes.seconds = 1.5
    assert (
        len(flower.connect(nodes, network(NAME), clients=5, patience=flower.Patience(20.0, 0.2)).present())
        == 5
    )


def test_a_newcomer_that_does_not_say_who_it_is_holds_nobody_up():
    nodes = grid(served(NAME))
    silent = next(node.node_id for node in nodes.get_nodes() if node.name == "site-4")
    nodes.gone.add(silent)
    federation = flower.connect(nodes, network(NAME), clients=4, patience=flower.Patience(60.0, 0.3))
    nodes.gone.clear()
    nodes.silent.add(silent)
    began = time.monotonic()
    assert len(federation.present()) == 4
    assert len(federation.exchange({client: jobs()[client] for client in CLIENTS[:4]})) == 4
    assert time.monotonic() - began < 5


def test_an_introduction_that_fails_once_is_repeated():
    app, failed = served(NAME), []

    def unsteady(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "query.hello" and number_of(context) == 1 and not failed:
            failed.append(True)
            raise OSError("the disk is busy")
        return app(message, context)

    with warned("absent", says="the disk is busy"):
        assert len(connected(unsteady, flower.Patience(5.0, 3.0)).present()) == 5


def test_a_node_that_never_introduces_itself_is_named_in_the_refusal():
    def broken(message: Message, context: Context) -> Message:
        raise OSError("the disk is gone")

    with (
        warned("absent", says="the disk is gone"),
        refused("absent", says=r"0 of 5 clients .* a node sent an error .*the disk is gone"),
    ):
        connected(broken)


def test_a_node_that_comes_back_with_another_model_refuses_its_jobs():
    """An authenticated node keeps its id when it restarts, so it is not asked again who it is."""
    other, data, back = network(NAME), holdings(NAME), []
    other[2] = nn.Tanh()
    before, after = served(NAME), served(NAME, lambda context: flower.Site(other, data["site-3"]))

    def restarting(message: Message, context: Context) -> Message:
        return (after if back and number_of(context) == 3 else before)(message, context)

    federation = connected(restarting)
    back.append(True)
    with warned("no-reply", says="site-3 refused the job: the server has another model"):
        replies = federation.exchange(jobs())
    assert replies.missing.keys() == {"site-3"}


@pytest.mark.parametrize("name", ["ward #4", "two\nlines", "x" * 201])
def test_a_name_that_cannot_be_used_is_left_out_with_its_reason(name):
    nodes = grid(served(NAME), names=(*CLIENTS[:4], name))
    with warned("absent", says="has a name that cannot be used"):
        federation = flower.connect(nodes, network(NAME), clients=4, patience=QUICK)
    assert federation.present() == {*CLIENTS[:4]}


def test_two_nodes_of_one_name_in_mid_run_are_both_left_out():
    nodes = grid(served(NAME), names=(*CLIENTS[:4], "site-1"))
    second = [node.node_id for node in nodes.get_nodes()][-1]
    nodes.gone.add(second)
    federation = flower.connect(nodes, network(NAME), clients=4, patience=QUICK)
    nodes.gone.clear()
    with warned("absent", says="two nodes are online under the name 'site-1'"):
        assert federation.present() == {"site-0", "site-2", "site-3"}


def test_a_node_with_an_unreadable_key_is_nameless_and_nothing_else():
    nodes = grid(served(NAME), names=())
    assert len(flower.connect(nodes, network(NAME), clients=5, keys={"00": "nobody"}).present()) == 5


@pytest.mark.wording
def test_what_a_client_says_about_its_failure_is_one_short_line():
    failure = Failure(Reason.FAILED, "x\n\033[31mred\x07" + "y" * 10_000_000)
    assert failure.detail.isprintable()
    assert len(failure.detail) <= 300
    assert failure.detail.startswith("x [31mred yyy")


@pytest.mark.wording
def test_a_flood_of_scores_is_refused():
    params = flatten(network(NAME))
    scores = {f"score_{number}": Mean(1.0, 1) for number in range(20_000)}
    sent = Replies({"site-1": Reply(params, 1, {"test": scores})})
    admitted = admit({"site-1": train(params)}, sent, {})
    assert admitted.missing["site-1"].reason is Reason.FIELD
    assert "more than" in admitted.missing["site-1"].detail


# An existing app


def frozen() -> nn.Module:
    model = network(NAME)
    model[1].requires_grad_(False)
    return model


def with_weights(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Message], None]:
    def replace(reply: Message) -> None:
        held = dict(reply.content.array_records["arrays"].to_torch_state_dict())
        change(held)
        reply.content["arrays"] = ArrayRecord(held)

    return replace


def test_frozen_weights_of_one_client_reach_nobody_else():
    poison = with_weights(lambda held: held["1.weight"].fill_(torch.nan))
    seen: list[torch.Tensor] = []
    app = existing(NAME, frozen)

    def listening(message: Message, context: Context) -> Message:
        seen.append(message.content.array_records["arrays"].to_torch_state_dict()["1.weight"])
        return app(message, context)

    federation = flower.connect_existing(
        grid(answering(listening, poison, "train", 4)), frozen(), clients=5, patience=QUICK
    )
    asked = dict.fromkeys(CLIENTS, train(flatten(frozen())))
    for _ in range(2):
        with warned("no-reply", says="site-4 sent other values of '1.weight', which is frozen"):
            replies = federation.exchange(asked)
        assert replies.missing.keys() == {"site-4"}
    assert all(torch.equal(weight, frozen()[1].weight) for weight in seen)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.bool, torch.int64])
def test_weights_of_another_kind_of_number_are_refused(dtype):
    change = with_weights(lambda held: held.update({"1.weight": held["1.weight"].to(dtype)}))
    federation = flower.connect_existing(
        grid(answering(existing(NAME), change, "train")), network(NAME), clients=5, patience=QUICK
    )
    with warned("no-reply", says=r"site-2 sent weights '1.weight' of type"):
        replies = federation.exchange(jobs())
    assert replies.missing["site-2"].reason is Reason.DTYPE


def test_a_model_with_other_state_than_tensors_is_refused_at_once():
    class Counting(nn.Linear):
        def get_extra_state(self) -> int:
            return 3

        def set_extra_state(self, state: int) -> None:
            pass

    with refused("client", says=r"the model's state has '1\._extra_state', a int"):
        flower.connect_existing(
            grid(existing(NAME)), nn.Sequential(nn.Flatten(), Counting(36, 3)), clients=5, patience=QUICK
        )


@pytest.mark.filterwarnings("ignore:no retained client reports a loss")
def test_losses_that_are_not_finite_end_the_run(tmp_path):
    def ruined(reply: Message) -> None:
        reply.content["metrics"] = MetricRecord({"eval_loss": float("nan"), "num-examples": 3})

    app = existing(NAME)
    for number in range(5):
        app = answering(app, ruined, "evaluate", number)
    federation = flower.connect_existing(grid(app), network(NAME), clients=5, patience=QUICK)
    with refused("diverged", says="no loss that clients measured is finite"):
        forget(federation, network(NAME), ["site-1"], tmp_path, method="fedosd", schedule=SCHEDULE)
