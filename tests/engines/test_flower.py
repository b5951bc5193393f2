"""A federation on Flower: the same bits as every other engine, stable names, and nodes that must agree."""

from __future__ import annotations

import warnings

import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.clientapp import ClientApp
from support.codes import refused, warned
from support.federations import forget, holdings, network, same
from support.flower_apps import CLIENTS, QUICK, connected, grid, number_of, served, with_public
from torch import nn

from fedunlearn import (
    Averaging,
    ClientData,
    Job,
    MultiLabel,
    Parallel,
    Request,
    Schedule,
    Sequential,
    Terms,
    flatten,
    method,
    train,
    unlearn,
)
from fedunlearn import forget as unlearning
from fedunlearn.core.vectors import buffers
from fedunlearn.engines import flower

METHODS = [entry.name for entry in method if not entry.name.startswith("test")]


@pytest.mark.parametrize("how", METHODS)
def test_every_method_ends_in_the_same_bits_on_the_engines_of_one_machine_and_on_a_grid(how):
    name = "perceptron"
    federation = connected(name)
    data = holdings(name, public=how == "fedkdu")
    oracle = Sequential(network(name), data)
    if how == "fedkdu":
        federation = with_public(name, federation)
    expected = forget(how, name, oracle)
    assert not expected.status.failed
    assert same(forget(how, name, federation), expected)
    with Parallel(network(name), data, workers=2) as parallel:
        assert same(forget(how, name, parallel), expected)


@pytest.mark.parametrize("name", ["convolution", "batch norm", "counts and draws"])
@pytest.mark.parametrize("how", ["fedosd", "ewcsga", "sfu"])
def test_dropout_and_buffers_travel_with_the_messages(how, name):
    expected = forget(how, name, Sequential(network(name), holdings(name)), epochs=2)
    assert same(forget(how, name, connected(name), epochs=2), expected)


def test_arrays_settings_and_buffers_of_every_job_arrive():
    model, data = network("batch norm"), holdings("batch norm")
    jobs = {
        client: Job(
            "train",
            flatten(model) * (1 + number),
            {"weight": torch.tensor(float(number)), "empty": torch.empty(0)},
            {"loss": "uce" if number % 2 else "task", "lr": 0.1 / (1 + number), "flag": True, "name": "é"},
            {key: value + number for key, value in buffers(model).items()},
        )
        for number, client in enumerate(CLIENTS)
    }
    jobs["site-3"] = Job("measure", jobs["site-3"].params, buffers={})
    jobs["site-4"] = Job("layer_inputs", jobs["site-4"].params)
    terms = Terms(lr=0.3, decay=0.97, epochs=3, batch_size=4, seed=(2**62, 1, 3), exchange=1)
    expected = Sequential(model, data).exchange(jobs, terms)
    replies = connected("batch norm").exchange(jobs, terms)
    assert replies.keys() == expected.keys()
    for client, reply in replies.items():
        other = expected[client]
        assert reply.statistics == other.statistics
        assert (reply.displacement is None) == (other.displacement is None)
        if other.displacement is not None:
            assert torch.equal(reply.displacement, other.displacement)
        for sent, wanted in ((reply.arrays, other.arrays), (reply.buffers, other.buffers)):
            assert sent.keys() == wanted.keys()
            assert all(torch.equal(value, wanted[key]) for key, value in sent.items())


def test_virtual_clients_are_served_by_their_node_in_one_message():
    name = "perceptron"
    data = holdings(name)
    parts = {"#forget": data["site-0"]}

    def load(context):
        client = f"site-{number_of(context)}"
        return flower.Site(network(name), data[client], parts=parts if client == "site-2" else {})

    nodes = grid(served(name, load))
    federation = flower.connect(nodes, network(name), clients=5, patience=QUICK)
    assert federation.present() == {*CLIENTS, "site-2#forget"}
    before = len(nodes.pushed)
    jobs = dict.fromkeys(("site-1", "site-2", "site-2#forget"), train(flatten(network(name))))
    replies = federation.exchange(jobs)
    assert len(nodes.pushed) - before == 2
    held = {**data, "site-2#forget": data["site-0"]}
    expected = Sequential(network(name), held).exchange(jobs)
    assert all(torch.equal(replies[client].moved, expected[client].moved) for client in jobs)


def test_a_target_without_a_set_for_it_is_measured_by_its_node_as_in_one_process():
    name = "perceptron"
    data = {c: ClientData(held.train, {"test": held.train}) for c, held in holdings(name).items()}

    def load(context):
        client = f"site-{number_of(context)}"
        return flower.Site(network(name), data[client], name=client)

    federation = flower.connect(grid(served(name, load)), network(name), clients=5, patience=QUICK)
    request = Request(flatten(network(name)), CLIENTS, ("site-1",))
    there, here = (
        unlearn([Averaging(1, 0.1)], request, each).metrics
        for each in (federation, Sequential(network(name), data))
    )
    for key in ("loss_target", "forget_acc", "forget_auc"):
        assert [row[key] for row in there] == [row[key] for row in here]


def test_names_are_those_of_the_registration_and_ids_do_not_matter():
    """The ids of nodes decide neither names nor order: site-4 has the lowest id here."""
    name = "perceptron"
    expected = forget("fedosd", name, connected(name))
    data = holdings(name)
    app = served(
        name, lambda context: flower.Site(network(name), data[f"site-{4 - number_of(context)}"], name="liar")
    )
    nodes = grid(app, names=tuple(reversed(CLIENTS)))
    federation = flower.connect(nodes, network(name), clients=5, patience=QUICK)
    assert federation.present() == {*CLIENTS}
    assert same(forget("fedosd", name, federation), expected)


def test_nodes_without_a_registered_name_tell_their_own():
    nodes = grid(served("perceptron"), names=())
    assert flower.connect(nodes, network("perceptron"), clients=5).present() == {*CLIENTS}


def test_two_nodes_of_one_name_are_refused():
    nodes = grid(served("perceptron"), names=("site-0", "site-1", "site-2", "site-1", "site-4"))
    with refused("client", says="two nodes are online under the name 'site-1'"):
        flower.connect(nodes, network("perceptron"), clients=5)


@pytest.mark.parametrize(
    ("clients", "said"),
    [
        (6, "after 0 s, 5 of 6 clients are online: start the SuperNode"),
        (
            ["site-0", "site-7"],
            r"after 0 s, client 'site-7' is not online; known: site-0, .*: start the SuperNode",
        ),
        ("site-0", "clients = 'site-0': give their number, or a list of names"),
    ],
)
def test_clients_that_do_not_come_are_named(clients, said):
    with refused("absent", "invalid", says=said):
        flower.connect(grid(served("perceptron")), network("perceptron"), clients=clients, patience=QUICK)


def frozen(value: float) -> nn.Module:
    model = network("perceptron")
    model[1].weight.requires_grad_(False)
    with torch.no_grad():
        model[1].weight[0, 0] = value
    return model


@pytest.mark.parametrize(
    ("model", "at_the_node"),
    [
        (network("perceptron"), nn.Sequential(nn.Flatten(), nn.Linear(36, 9), nn.ReLU(), nn.Linear(9, 3))),
        (network("perceptron"), nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.Tanh(), nn.Linear(8, 3))),
        (frozen(1.0), frozen(1.5)),
        (network("perceptron"), network("perceptron").double()),
    ],
    ids=["shapes", "layers", "frozen values", "types"],
)
def test_a_node_with_another_model_is_named_before_round_one(model, at_the_node):
    data = holdings("perceptron")

    def load(context):
        odd = number_of(context) == 3
        return flower.Site(at_the_node if odd else model, data[f"site-{number_of(context)}"])

    nodes = grid(served("perceptron", load))
    with refused("other-model", says="site-3 has another model than the server"):
        flower.connect(nodes, model, clients=5)
    assert all(message.metadata.message_type == "query.hello" for message in nodes.pushed)


def test_equal_models_with_other_weights_fit():
    data = holdings("perceptron")

    def load(context):
        model = network("perceptron")
        with torch.no_grad():
            model[1].weight += number_of(context)
        return flower.Site(model, data[f"site-{number_of(context)}"])

    nodes = grid(served("perceptron", load))
    assert len(flower.connect(nodes, network("perceptron"), clients=5).present()) == 5


def test_a_node_with_another_task_is_named():
    with refused("client", says=r"site-0 learns .*Classification.* server .*MultiLabel"):
        flower.connect(grid(served("perceptron")), network("perceptron"), clients=5, task=MultiLabel())


def test_a_node_that_lacks_a_method_is_named():
    app = served("perceptron")

    def older(message: Message, context) -> Message:
        reply = app(message, context)
        told = reply.content.config_records.get("hello")
        if told is not None and number_of(context) == 1:
            told["json"] = told["json"].replace('"loss uce", ', "")
        return reply

    with refused("client", says="site-1 does not know 'loss uce'"):
        flower.connect(grid(older), network("perceptron"), clients=5)


@pytest.mark.parametrize(
    ("site", "said"),
    [
        (lambda data: flower.Site(network("perceptron"), ClientData((data.x, data.y + 7))), "label 8 is out"),
        (lambda data: "no site", "load returns a str: return a Site"),
    ],
)
def test_a_node_whose_data_does_not_fit_its_model_is_left_out_with_the_reason(site, said):
    data = holdings("perceptron")

    def load(context):
        client = f"site-{number_of(context)}"
        return (
            site(data[client].train)
            if client == "site-4"
            else flower.Site(network("perceptron"), data[client])
        )

    with warned("absent", says=said):
        federation = flower.connect(
            grid(served("perceptron", load)), network("perceptron"), clients=4, patience=QUICK
        )
    assert federation.present() == {*CLIENTS} - {"site-4"}


def test_different_versions_are_a_warning():
    app = served("perceptron")

    def older(message: Message, context) -> Message:
        reply = app(message, context)
        told = reply.content.config_records.get("hello")
        if told is not None and number_of(context) == 1:
            told["json"] = told["json"].replace(f'"torch": "{torch.__version__}', '"torch": "2.6.0')
        return reply

    with warned("version", says=r"a node has torch 2.6.0 and the server 2\."):
        flower.connect(grid(older), network("perceptron"), clients=5)


def test_a_node_that_joins_later_is_checked_too():
    data = holdings("perceptron")

    def load(context):
        odd = number_of(context) == 3
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)) if odd else network("perceptron")
        return flower.Site(model, data[f"site-{number_of(context)}"])

    nodes = grid(served("perceptron", load))
    late = {node.node_id for node in nodes.get_nodes() if node.name in ("site-3", "site-4")}
    nodes.gone |= late
    federation = flower.connect(nodes, network("perceptron"), clients=3, patience=QUICK)
    assert federation.present() == {"site-0", "site-1", "site-2"}
    nodes.gone -= late
    with warned("absent", says="site-3 has another model than the server.*left out"):
        assert federation.present() == {"site-0", "site-1", "site-2", "site-4"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert federation.present() == {"site-0", "site-1", "site-2", "site-4"}


def test_sites_are_kept_by_run_and_configuration():
    """A process that lives on, as in a simulation, must not serve the model of another run."""
    calls = []
    data = holdings("perceptron")

    def load(context):
        calls.append(dict(context.run_config))
        return flower.Site(network("perceptron"), data["site-1"])

    app = ClientApp()
    flower.serve(app, load)
    for run_config in ({"seed": 1}, {"seed": 2}):
        nodes = flower.LocalGrid(app, [{"partition-id": 0}, {"partition-id": 1}], run_config=run_config)
        federation = flower.connect(nodes, network("perceptron"), clients=2)
        for _ in range(2):
            federation.exchange(dict.fromkeys(federation.present(), train(flatten(network("perceptron")))))
    assert calls == [{"seed": 1}] * 2 + [{"seed": 2}] * 2


def test_a_grid_in_this_process_is_a_grid_for_flowers_own_strategies():
    nodes = grid(served("perceptron"))
    message = nodes.create_message(RecordDict(), "query.hello", next(iter(nodes.get_node_ids())), "1", ttl=5)
    (reply,) = nodes.send_and_receive([message])
    assert reply.has_content()
    assert nodes.run.run_id == 1


@pytest.mark.filterwarnings("ignore:the targets' backdoor still works after")
def test_rounds_are_told_in_flowers_log(caplog, tmp_path):
    federation = connected("perceptron")
    with caplog.at_level("INFO", logger="fedunlearn"):
        unlearning(
            federation,
            network("perceptron"),
            ["site-2"],
            tmp_path,
            method="fedosd",
            schedule=Schedule(2, 0.02, 1, 0.02),
        )
    told, *lines = [record.message for record in caplog.records]
    assert told == "targets: site-2; retained: 4 clients"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "unlearning 1/2",
        "unlearning 2/2",
        "post-training 1/1",
    ]
    assert "(before)" in lines[0]
    assert "R-Acc" in lines[1]
    assert "(before); " in lines[1]  # nothing was measured in this round
    assert "(post-training 1/1); " in lines[3]
    assert all(" s left" in line for line in lines[1:])
