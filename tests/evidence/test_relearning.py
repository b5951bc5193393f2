"""How soon the forgotten returns, beside a retrained model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.audits import SITES, TARGET, before, network, retrained, world
from support.codes import refused
from torch.nn.functional import cross_entropy

import fedunlearn as fu
from fedunlearn import State
from fedunlearn.client.relearning import measuring_job
from fedunlearn.core.seeds import derive
from fedunlearn.evidence import Comeback, Curves
from fedunlearn.experiment import audit_run, perform, prepare, pretrained, read

TRAINING = fu.LocalTraining(batch_size=62, decay=1.0)


@pytest.fixture(scope="module")
def federation() -> fu.Sequential:
    return fu.Sequential(network(), world())


def relearn(federation, model: State, **options) -> fu.Relearning:
    given = {
        "targets": TARGET,
        "retrained": retrained(),
        "original": before(),
        "lr": 0.02,
        "training": TRAINING,
        "rounds": 6,
        **options,
    }
    return fu.relearn(federation, model, **given)


def hidden() -> State:
    """ω⁰ behind a wrong bias of the last layer: its knowledge of the target's examples is all there."""
    known = before()
    params = known.params.clone()
    params[-3:] += torch.tensor([2.0, -1.0, -1.0])
    return replace(known, params=params)


def test_what_is_only_hidden_comes_back_at_once(federation):
    found = relearn(federation, hidden(), lr=0.1)
    for comeback, rounds in ((found.posttraining, 1), (found.finetuning, 2)):
        assert comeback.model[0] > comeback.retrained[0]  # worse than retraining before the attack
        assert (comeback.rounds, comeback.rounds_retrained) == (rounds, None)
    assert found.sentences == (
        "Relearning by post-training: the forgotten comes back after 1 round; "
        "a retrained model learns it in > 6.",
        "Relearning by fine-tuning on up to 100 of its examples: the forgotten comes back after 2 rounds; "
        "a retrained model learns it in > 6.",
    )


def test_what_was_not_forgotten_is_there_at_round_0(federation):
    found = relearn(federation, before())
    for comeback in (found.posttraining, found.finetuning):
        assert comeback.rounds == 0
        assert comeback.model[0] == comeback.original
        assert comeback.limit == 6
        assert "still there before the first round" in comeback.sentence


def test_a_retrained_model_relearns_like_another(federation):
    found = relearn(federation, retrained(3))
    for comeback in (found.posttraining, found.finetuning):
        assert (comeback.rounds, comeback.rounds_retrained, comeback.ratio) == (None, None, None)
        assert comeback.model[-1] == pytest.approx(comeback.retrained[-1], rel=0.1)


def test_teaching_teaches(federation):
    """The loss on the lesson's own examples would fall without end; that on the rest is what counts."""
    found = relearn(federation, retrained(3), rounds=3, examples=300).finetuning
    rest = measuring_job(retrained(3), 300, derive("relearning", 0))
    counted = federation.exchange({TARGET: rest})[TARGET].statistics["forgotten"]["loss"]
    assert counted.count == 320
    assert found.model[0] == counted.value
    assert len(set(found.model)) == 4


def test_curves_do_not_depend_on_the_engine(federation):
    expected = relearn(federation, hidden(), rounds=2)
    with fu.simulate(network(), world(), workers=2) as parallel:
        assert relearn(parallel, hidden(), rounds=2) == expected

    pytest.importorskip("flwr")
    from support.flower_apps import QUICK, grid, number_of, served

    from fedunlearn.engines import flower

    app = served("perceptron", lambda context: flower.Site(network(), world()[f"site-{number_of(context)}"]))
    nodes = grid(app, names=SITES, nodes=3)
    connected = flower.connect(nodes, network(), clients=3, patience=QUICK)
    assert relearn(connected, hidden(), rounds=2) == expected


def test_models_and_clients_stay_as_they_are(federation):
    model, original = hidden(), before()
    copies = [state.params.clone() for state in (model, original, retrained())]
    one, other = (relearn(federation, model, rounds=2) for _ in range(2))
    assert one == other
    assert all(
        torch.equal(copy, state.params)
        for copy, state in zip(copies, (model, original, retrained()), strict=True)
    )


def test_several_targets_are_pooled(federation):
    both = relearn(federation, before(), targets=(TARGET, "site-2"), rounds=1)
    losses = [
        federation.exchange({target: measuring_job(before(), 0, 0)})[target].statistics["forgotten"]["loss"]
        for target in (TARGET, "site-2")
    ]
    assert both.posttraining.original == (losses[0] + losses[1]).value


def test_rounds_are_counted_by_the_threshold():
    found = Comeback(1.0, (3.5, 2.5, 2.0, 1.5), (3.0, 2.9, 2.8, 2.0))
    assert (found.threshold, found.rounds, found.rounds_retrained) == (2.0, 2, 3)
    assert found.ratio == pytest.approx(2 / 3)
    assert found.sentence == "the forgotten comes back after 2 rounds; a retrained model learns it in 3."
    never = replace(found, model=(3.5, 3.4, 3.3, 3.2))
    assert (never.rounds, never.ratio) == (None, None)
    assert never.sentence == "the forgotten comes back after > 3 rounds; a retrained model learns it in 3."
    nothing = replace(found, original=3.0)
    assert (nothing.threshold, nothing.rounds, nothing.rounds_retrained) == (None, None, None)
    assert "nothing to relearn, because the loss of ω⁰ (3.000) is not below" in nothing.sentence


def test_the_result_can_be_written_as_json(federation):
    found = relearn(federation, retrained(3), rounds=2)
    read = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert read["examples"] == 100
    assert read["posttraining"]["limit"] == 2
    assert read["finetuning"]["rounds"] is None
    assert len(read["finetuning"]["model"]) == 3


class Silent(fu.Sequential):
    """The target trains, but does not answer what it is measured on."""

    def exchange(self, jobs, *terms):
        return super().exchange({c: job for c, job in jobs.items() if job.work != "relearn"}, *terms)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"targets": "site-9"}, "target 'site-9' is not present.*no other client holds its data"),
        ({"targets": []}, "no target is named"),
        ({"rounds": 0}, "rounds = 0"),
        ({"retrained": Curves((2.0, 1.0), (2.0, 1.0))}, "were not measured in 6 rounds"),
        ({"examples": 0}, "examples = 0"),
        ({"examples": 3}, "site-1 holds 620 forgotten examples and is asked to teach 3"),
        ({"retrained": "runs/retrain"}, "a model to audit is a str"),
        ({"lr": 1e30}, "relearning was not measured: .* lower the learning rate"),
    ],
)
def test_what_cannot_be_measured_ends_in_one_sentence(federation, options, sentence):
    with refused("data", "invalid", "not-audited", says=sentence):
        relearn(federation, retrained(3), **options)


def test_a_target_that_does_not_answer_is_named():
    with refused("not-audited", says="relearning was not measured, site-1 did not answer: try"):
        relearn(Silent(network(), world()), retrained(3))


def test_clients_with_their_own_code_are_refused():
    pytest.importorskip("flwr")
    from support.federations import network as small
    from support.flower_apps import QUICK, existing, grid

    from fedunlearn.engines import flower

    model = small("perceptron")
    own = flower.connect_existing(grid(existing("perceptron")), model, clients=5, patience=QUICK)
    with refused("not-audited", says="with these clients: it needs the work 'relearn'"):
        fu.relearn(own, model, targets="site-1", retrained=model, original=model, lr=0.1)


WORLD = """
model = "mlp"
[data]
partition = "iid"
clients = 3
fraction = 0.1
[training]
batch_size = 20
[pretraining]
rounds = 2
lr = 0.1
[unlearning]
rounds = 2
lr = 0.01
[recovery]
rounds = 1
lr = 0.02
"""


@pytest.mark.parametrize(
    ("changes", "workers"),
    [
        (["backdoor.enabled=false"], 2),
        ([], 1),
        (["request.level=sample", "request.share=0.5"], 1),
        (["backdoor.enabled=false", "data.canaries=8"], 1),
    ],
    ids=["clean", "backdoor", "sample", "canaries"],
)
def test_an_audit_of_a_run_measures_it(tmp_path: Path, monkeypatch, changes, workers):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "world.toml").write_text(WORLD)
    experiment = read(tmp_path / "world.toml", ["data.audit=0.3", *changes])
    perform(experiment, tmp_path / "run", workers=1)
    one, *more = (audit_run(tmp_path / "run", relearn=2, workers=1 + n).relearning for n in range(workers))
    assert one is not None
    assert all(other == one for other in more)
    assert one.posttraining.limit == one.finetuning.limit == 2
    stored = json.loads((tmp_path / "run" / "evidence.json").read_text())
    assert stored["relearning"] == json.loads(json.dumps(one.as_dict()))
    assert set(one.sentences) <= set(stored["sentences"])
    setting = prepare(experiment)
    held, module = setting.population.auditing[setting.population.targets[0]], setting.build(0)
    known = held.evaluations["backdoor" if "backdoor" in held.evaluations else "forget"]
    fu.load(module, pretrained(setting, workers=1))
    with torch.inference_mode():
        loss = float(cross_entropy(module(known.x), known.y))
    assert one.posttraining.original == pytest.approx(loss, rel=1e-4)


def test_an_audit_that_cannot_measure_it_is_refused_before_anything_is_trained(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "world.toml").write_text(WORLD)
    few = ["data.audit=0.3", "request.level=sample", "request.share=0.1", "pretraining.rounds=1"]
    perform(read(tmp_path / "world.toml", few), tmp_path / "run", workers=1)
    for number, sentence in ((2, "is asked to teach 100 of them: relearning needs 10"), (-1, "relearn = -1")):
        with refused("data", "invalid", says=sentence):
            audit_run(tmp_path / "run", relearn=number, workers=1)
    with refused("invalid", says="twins = -1"):
        audit_run(tmp_path / "run", twins=-1, workers=1)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["pretraining"]


def test_curves_of_a_retrained_model_that_are_known_stand_for_it(federation):
    first = relearn(federation, before())
    assert relearn(federation, before(), retrained=first.retrained) == first
