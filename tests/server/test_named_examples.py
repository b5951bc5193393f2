"""Some examples of a client are forgotten, and the client goes on without them."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support.children import in_child
from support.codes import refused, warned
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import fedunlearn as fu
from fedunlearn.client.data import batches, digest
from fedunlearn.client.parts import divided, parts_of
from fedunlearn.core.seeds import derive, generator
from fedunlearn.report import collect
from fedunlearn.report.description import request
from fedunlearn.runs import model_hash

pytestmark = pytest.mark.filterwarnings(
    "ignore:the loss on the data to be forgotten has hardly risen",
    "ignore:the retained clients are worse off than before",  # labels are drawn: there is nothing to learn
)

SCHEDULE = fu.Schedule(2, 0.05, 2, 0.05)
TEN = {"site-1": [0, 3, 4, 9, 11], "site-3": range(5)}
TRAINING = fu.LocalTraining(batch_size=10)


def drawn(number: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = generator("named", number, size)
    return torch.randn(size, 6, generator=random), torch.randint(0, 3, (size,), generator=random)


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(6, 3)


def sites() -> dict[str, fu.ClientData]:
    return {f"site-{n}": fu.ClientData(drawn(n, 20), {"test": drawn(n, 21)}) for n in range(5)}


def server(folder: Path, clients: dict[str, object] | None = None, **options: object) -> fu.Server:
    options = {"training": TRAINING, "workers": 1, "public": drawn(9, 20), **options}
    return fu.Server(network(), clients or sites(), folder=folder, **options)


def without(data: fu.ClientData, positions: object) -> fu.ClientData:
    stay = [row for row in range(20) if row not in positions]
    return fu.ClientData((data.train.x[stay], data.train.y[stay]), data.evaluations)


PARTS = parts_of(TEN, sites())


def reduced() -> dict[str, fu.ClientData]:
    return {name: without(data, TEN[name]) if name in TEN else data for name, data in sites().items()}


@pytest.mark.filterwarnings("ignore:a step of unlearning was", "ignore:these clients were never heard")
@pytest.mark.parametrize("method", sorted(entry.name for entry in fu.method))
def test_every_method_forgets_named_examples_or_says_why_not(tmp_path, method):
    needs = {need for phase in fu.method[method](SCHEDULE) for need in phase.needs}
    history = needs & {"norms", "residuals", "updates", "locals"}
    clusters, slices = (2 if {"cluster", "slice"} & needs else 1), (2 if "slice" in needs else 1)
    ours = server(tmp_path)
    ours.train(2, 0.1, history=history, clusters=clusters, slices=slices)
    before, options = ours.state, {"energy": 0.5} if method == "sfu" else {}
    if history:
        with refused("unsuitable", says="recorded of whole clients only, and 'site-1#forget-"):
            ours.forget(method=method, schedule=SCHEDULE, examples=TEN)
        assert ours.state is before
        assert not list(tmp_path.glob("1-*"))
        return
    outcome = ours.forget(method=method, schedule=SCHEDULE, examples=TEN, **options)
    assert outcome.status in (fu.Status.DONE, fu.Status.CONVERGED), outcome.reason
    assert not torch.equal(ours.state.params, before.params)
    assert ours.forgotten == tuple(PARTS)
    assert ours.clients == tuple(sites())


@pytest.mark.parametrize("method", ["fedosd", "not", "fedquit", "retrain"])
def test_the_model_is_that_of_clients_divided_by_hand(tmp_path, method):
    ours = server(tmp_path, public=None)
    ours.train(3, 0.1)
    clients = by_hand()
    request = fu.Request(
        ours.state.params,
        tuple(clients),
        tuple(PARTS),
        ours._surroundings.fresh,
        shapes=fu.shapes(network()),
        seed=derive("method", 0, 1),
    )
    phases = fu.method[method](replace(SCHEDULE, pretrain_lr=0.1))
    with fu.simulate(network(), clients, workers=1) as federation:
        wanted = fu.unlearn(
            phases,
            request,
            federation,
            training=TRAINING,
            seed=derive("request", 0, 1, *PARTS),
            guards=fu.Guards(),
        )
    outcome = ours.forget(method=method, schedule=SCHEDULE, examples=TEN)
    assert model_hash(outcome.state) == model_hash(wanted.state)
    assert outcome.metrics[-1]["forget_acc"] == wanted.metrics[-1]["forget_acc"]


def by_hand() -> dict[str, fu.ClientData]:
    """The clients with the parts as virtual ones, as experiments of level ``sample`` have them."""
    parts = {}
    for part, positions in PARTS.items():
        held = sites()[part.partition("#")[0]]
        train = held.train.take(torch.tensor(positions))
        parts[part] = fu.ClientData(train, {**held.evaluations, "forget": train})
    return dict(sorted({**reduced(), **parts}.items()))


def test_retraining_is_training_on_the_reduced_data_alone(tmp_path):
    ours = server(tmp_path, public=None)
    ours.train(3, 0.1)
    outcome = ours.forget(method="retrain", schedule=SCHEDULE, examples=TEN, guards=None)
    alone = fu.Request(
        ours.state.params, tuple(reduced()), (), ours._surroundings.fresh, shapes=fu.shapes(network())
    )
    with fu.simulate(network(), reduced(), workers=1) as federation:
        trained = fu.unlearn(
            fu.method["retrain"](replace(SCHEDULE, pretrain_lr=0.1)),
            replace(alone, seed=derive("method", 0, 1)),
            federation,
            training=TRAINING,
            seed=derive("request", 0, 1, *PARTS),
        )
    assert model_hash(outcome.state) == model_hash(trained.state)


def test_a_script_that_is_run_again_keeps_them_out_of_later_training(tmp_path):
    def script(folder: Path, interrupted: bool = False) -> str:
        def interrupt(event: fu.Event) -> None:
            if interrupted and event.metrics["stage"] == "post-training":
                raise KeyboardInterrupt

        warnings.simplefilter("ignore")
        ours = server(folder, listeners=[interrupt])
        ours.train(2, 0.1)
        ours.forget(method="fedosd", schedule=SCHEDULE, examples=TEN)
        ours.train(2, 0.1)
        ours.forget(method="not", schedule=SCHEDULE, examples={"site-1": [1, 19]})
        ours.forget("site-3", "retrain", SCHEDULE, floor=None)
        return model_hash(ours.state)

    whole = in_child(lambda: script(tmp_path / "whole"))
    with pytest.raises(KeyboardInterrupt):
        script(tmp_path / "cut", interrupted=True)
    assert in_child(lambda: script(tmp_path / "cut")) == whole
    assert in_child(lambda: script(tmp_path / "cut")) == whole
    data = json.loads((tmp_path / "cut/2-train/experiment.json").read_text())["data"]
    assert data["sha256"].items() >= {name: digest(held.train) for name, held in reduced().items()}.items()
    (last,) = (tmp_path / "cut").glob("4-forget-*")
    data = json.loads((last / "experiment.json").read_text())["data"]
    assert data["sha256"]["site-1"] == digest(without(sites()["site-1"], {*TEN["site-1"], 1, 19}).train)


def fresh_process(folder: Path, clients: dict[str, fu.ClientData]) -> list[str]:
    """Trains on in the folder of earlier steps, without repeating them."""

    def work() -> list[str]:
        with warnings.catch_warnings(action="ignore"):
            ours = server(folder, clients)
            return [model_hash(ours.train(3, 0.05).state), str(len(ours.forgotten))]

    return in_child(work)


def test_a_new_process_leaves_them_out_however_the_data_is_given(tmp_path):
    ours = server(tmp_path / "a")
    ours.train(2, 0.1)
    ours.forget(method="retrain", schedule=SCHEDULE, examples=TEN)
    for name in "bcde":
        shutil.copytree(tmp_path / "a", tmp_path / name)
    whole = model_hash(ours.train(3, 0.05).state)
    assert fresh_process(tmp_path / "b", sites()) == [whole, "2"]
    assert fresh_process(tmp_path / "c", reduced()) == [whole, "2"]  # they have been deleted
    grown = {**sites(), "site-1": fu.ClientData(join(sites()["site-1"].train, drawn(8, 4)))}
    fresh_process(tmp_path / "d", grown)
    data = json.loads((tmp_path / "d/2-train/experiment.json").read_text())["data"]
    assert data["sha256"]["site-1"] == digest(join(reduced()["site-1"].train, drawn(8, 4)))
    for other in (drawn(7, 20), drawn(7, 8)):
        with refused("changed", says="'site-1' forgot examples by position, and its data has"):
            server(tmp_path / "e", {**sites(), "site-1": fu.ClientData(other)})


def join(one: fu.Examples, other: tuple[torch.Tensor, torch.Tensor]) -> fu.Examples:
    return fu.Examples(*(torch.cat(parts) for parts in zip(one, other, strict=True)))


def test_a_client_forgotten_whole_joins_anew_without_them(tmp_path):
    ours = server(tmp_path)
    ours.train(2, 0.1)
    ours.forget(method="not", schedule=SCHEDULE, examples={"site-1": [2]})
    ours.forget("site-1", "retrain", SCHEDULE, floor=None)
    ours.rejoin("site-1")
    ours.train(2, 0.1)
    data = json.loads((tmp_path / "4-train/experiment.json").read_text())["data"]
    assert data["sha256"]["site-1"] == digest(without(sites()["site-1"], [2]).train)


def test_the_audit_compares_them_with_unseen_ones_and_utility_is_of_real_clients(tmp_path):
    ours = server(tmp_path)
    ours.train(3, 0.1)
    rows = {f"retrain {number}": {"method": "retrain", "rounds": 3, "number": number} for number in (1, 2)}
    retrained = ours.compare(rows=rows, schedule=SCHEDULE, examples=TEN)
    assert ours.forgotten == ()
    assert ours.clients == tuple(sites())
    outcome = ours.forget(method="fedosd", schedule=SCHEDULE, examples=TEN)
    assert {key for key in outcome.metrics[-1] if key.startswith("r_acc ")} == {f"r_acc {n}" for n in sites()}
    evidence = ours.audit(retrained["retrain 1"], again=retrained["retrain 2"])
    found = [each.finding for each in evidence.targets.values()]
    assert [(each.n_forgotten, each.n_unseen) for each in found] == [(5, 21), (5, 21)]
    assert set(evidence.influence["accuracy"]) >= {*sites()}
    (sentence,) = (text for text in request(collect([next(tmp_path.glob("1-forget*"))])) if "request" in text)
    assert sentence.startswith("The request: forget 5 examples of site-1, 5 examples of site-3")


def test_a_client_without_its_examples_is_a_client_like_any_other(tmp_path):
    """It can be forgotten later, and its record is gone: that knew the examples."""
    ours = server(tmp_path)
    ours.train(2, 0.1, history=["residuals"])
    ours.forget(method="not", schedule=SCHEDULE, examples={"site-1": [2]})
    again = shutil.copytree(tmp_path, tmp_path.with_name("again"))
    assert set(ours.history.rows["residuals"]) == {*sites()} - {"site-1"}
    with refused("history", says="clients that trained and have forgotten no examples"):
        ours.forget("site-1", "fedrecovery", SCHEDULE)
    assert ours.forget("site-1", "retrain", SCHEDULE, floor=None).status is fu.Status.DONE
    assert "site-1" not in ours.clients
    ours = server(again)
    with warned("continued", says="train continues from the last step"):
        ours.train(3, 0.1, history=["residuals"])
    ours.forget("site-3", "fedrecovery", SCHEDULE)
    assert set(server(again).history.rows["residuals"]) == {*sites()} - {"site-3"}


def loader(data: object, **options: object) -> DataLoader:
    return DataLoader(TensorDataset(*data.train), **options)


@pytest.mark.parametrize(
    "held",
    [
        lambda data: tuple(part.numpy() for part in data.train),
        lambda data: {"x": data.train.x, "y": data.train.y},
        lambda data: TensorDataset(*data.train),
        lambda data: loader(data, batch_size=10, drop_last=True),  # which would leave nothing of four
        lambda data: loader(data, batch_size=4, shuffle=True),
    ],
)
def test_data_of_every_kind_is_divided(held):
    """Into batches of the same rows; a loader goes on shuffling."""
    data = sites()["site-1"]
    part = "site-1#forget-1"
    both = divided({"site-1": fu.ClientData(held(data), data.evaluations)}, {part: (2, 7, 11, 13)})
    for name, rows in (("site-1", [n for n in range(20) if n not in (2, 7, 11, 13)]), (part, [2, 7, 11, 13])):
        found, wanted = both[name].train, data.train.x[rows]
        x = torch.cat([each["x"] if isinstance(each, dict) else each[0] for each in batches(found, 4)])
        if getattr(found, "drop_last", False):
            wanted = wanted[:10]
        if getattr(found, "batch_size", 0) == 4:
            assert name == part or not torch.equal(x, wanted)
            x, wanted = x.sort(0).values, wanted.sort(0).values
        assert torch.equal(x, wanted)
    assert set(both[part].evaluations) == {"test", "forget"}


def test_canaries_stay_and_sets_that_may_hold_the_examples_go():
    data = sites()["site-1"]
    planted = {
        "canary-in": data.train.take(torch.arange(17, 20)),
        "canary-out": drawn(8, 3),
        "seen": data.train,
    }
    both = divided({"a": fu.ClientData(data.train, {**data.evaluations, **planted})}, {"a#forget": (0, 16)})
    assert set(both["a"].evaluations) == {"test", "canary-in", "canary-out"}
    assert torch.equal(both["a"].train.x[-3:], planted["canary-in"].x)
    assert set(both["a#forget"].evaluations) == {"test", "forget"}
    with refused("invalid", says=r"examples\['a'\]\[0\] = 17: the client has 17 examples"):
        parts_of({"a": [17]}, {"a": fu.ClientData(data.train, {**data.evaluations, **planted})})


@pytest.mark.parametrize(
    ("examples", "sentence"),
    [
        (
            {"site-9": [1]},
            "name in examples = 'site-9': it must be a client that holds data here; known: site-0",
        ),
        ({3: [1]}, "name in examples = 3: it must be a client"),
        (["site-1"], r"examples = \['site-1'\]: it must be a dict from clients to positions"),
        ({}, r"examples = \{\}: it must be a dict from clients to positions"),
        *(
            ({"site-1": rows}, rf"examples\['site-1'\] = {told}: give a list of positions, such as \[0, 7\]")
            for rows, told in (
                ([], r"\[\]"),
                (None, "None"),
                ("3", "'3'"),
                ({3}, r"\{3\}"),
            )
        ),
        (
            {"site-1": [20]},
            r"\['site-1'\]\[0\] = 20: the client has 20 examples, so positions go from 0 to 19",
        ),
        ({"site-1": [3, -1]}, r"examples\['site-1'\]\[1\] = -1: the client has 20 examples"),
        ({"site-1": [[0], [1, 2]]}, r"examples\['site-1'\]\[0\] = \[0\]: a position is a whole number"),
        ({"site-1": [1.0]}, r"examples\['site-1'\]\[0\] = 1.0: a position is a whole number"),
        ({"site-1": [3, 4, 3]}, r"\['site-1'\]\[2\] = 3: examples\['site-1'\]\[0\] names it already"),
        (
            {"site-1": torch.ones(20, dtype=torch.bool)},
            r"\['site-1'\]\[0\] = True: give positions, which are mask.nonzero\(\) of a mask",
        ),
        ({"site-1": np.arange(20)}, "these are all that it holds, so name it as a target instead"),
        ({"site-0": [5]}, "these examples of 'site-0' have been forgotten already: leave this request out"),
        (
            {"site-0": [4, 5]},
            "examples of 'site-0': position 5 has been forgotten already: leave that out",
        ),
        ({"site-0": [n for n in range(20) if n != 5]}, "these are all that it holds"),
        ({"site-4": [0]}, "client 'site-4' has been forgotten already"),
        ({"public": [0]}, "name in examples = 'public'"),
        ({"site-2#odd": [0]}, "name in examples = 'site-2#odd'"),
        ({"unbatched": [0]}, "examples of 'unbatched': a DataLoader without a batch_size cannot be divided"),
        (
            {"weighted": [0]},
            "examples of 'weighted': a DataLoader with a sampler of its own cannot be divided",
        ),
    ],
)
@pytest.mark.parametrize("call", ["forget", "compare"])
def test_examples_that_cannot_be_forgotten_are_refused_in_one_sentence(tmp_path, call, examples, sentence):
    data = sites()
    weighted = WeightedRandomSampler(torch.ones(20), 20)
    ours = server(
        tmp_path,
        {
            **data,
            "site-2#odd": data["site-2"],
            "unbatched": loader(data["site-2"], batch_size=None),
            "weighted": loader(data["site-3"], batch_size=10, sampler=weighted),
        },
    )
    parts = parts_of({"site-0": [5]}, data)
    ours._memory.known = replace(ours._memory.known, examples=parts, forgotten=(*parts, "site-4"))
    before = ours.clients
    given = {"method": "retrain", "rounds": 1} if call == "forget" else {"rows": {"retrain": {"rounds": 1}}}
    with refused("forgotten", "invalid", says=sentence):
        getattr(ours, call)(examples=examples, **given)
    assert not list(tmp_path.iterdir())
    assert ours.clients == before


def test_examples_beside_targets_or_of_clients_elsewhere_are_refused(tmp_path):
    with refused("invalid", says="targets = 'site-1': it must be left out where examples are given"):
        server(tmp_path).forget("site-1", examples=TEN)
    with fu.simulate(network(), sites(), workers=1) as federation:
        with refused("unsuitable", says=r"parts=\{'#forget': …\}\), and forget 'site-3#forget'"):
            fu.Server(network(), federation, folder=tmp_path).forget(examples=TEN)
        with refused("invalid", says="examples are named where Server holds the data"):
            fu.forget(federation, network(), ["site-1"], tmp_path / "forget", examples=TEN)


def test_a_federation_that_serves_the_part_forgets_it(tmp_path):
    """As a Flower node does; the rest and the part together trained the model."""
    model = network()
    with fu.simulate(model, by_hand(), workers=1) as federation:
        fu.forget(
            federation,
            model,
            list(PARTS),
            tmp_path,
            method="retrain",
            schedule=SCHEDULE,
            training=TRAINING,
        )
    assert not torch.equal(fu.flatten(model), fu.flatten(network()))


@pytest.mark.parametrize(
    "call",
    [
        lambda ours, federation, folder: ours.forget(TEN),
        lambda ours, federation, folder: ours.compare(TEN, ["retrain"]),
        lambda ours, federation, folder: fu.forget(federation, network(), TEN, folder),
        lambda ours, federation, folder: fu.audit(federation, network(), targets=TEN),
        lambda ours, federation, folder: fu.Request(ours.state.params, ours.clients, TEN),
    ],
)
def test_a_mapping_is_no_list_of_targets(tmp_path, call):
    with (
        fu.simulate(network(), sites(), workers=1) as federation,
        refused("invalid", says=r"targets is a dict: .*Server.forget\(examples=\{'site-3': "),
    ):
        call(server(tmp_path), federation, tmp_path)
    assert not list(tmp_path.iterdir())
