"""An audit: what the server concludes from what clients send, on every engine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from audits import SITES, SIZE, TARGET, before, network, retrained, world
from torch import nn

import fedunlearn as fu
from fedunlearn.core.vectors import load
from fedunlearn.evidence import Verdict


@pytest.fixture(scope="module")
def federation() -> fu.Sequential:
    return fu.Sequential(network(), world())


def audit(federation, model, **options):
    given = {"targets": TARGET, "retrained": retrained(), "original": before(), **options}
    return fu.audit(federation, model, **given)


def test_a_model_that_knows_the_target_by_heart_is_under_forgotten(federation):
    found = audit(federation, before(), again=retrained(4))
    assert found.verdict is Verdict.UNDER
    (evidence,) = found.targets.values()
    assert evidence.finding.n_forgotten == evidence.finding.n_unseen == SIZE
    assert evidence.finding == evidence.original
    assert evidence.tail.verdict is Verdict.UNDER
    assert found.sentences[0].startswith("site-1: Under-forgotten: the AUC exceeds that of retraining by")


@pytest.mark.parametrize("references", [[], [retrained(4), retrained(5)]], ids=["one model", "two models"])
def test_models_that_never_saw_the_target_are_not_under_forgotten(federation, references):
    """With 620 examples the test finds most of them equivalent, and some inconclusive."""
    found = [audit(federation, retrained(seed), references=references) for seed in range(20, 26)]
    assert Verdict.UNDER not in {each.verdict for each in found}
    assert sum(each.verdict is Verdict.EQUIVALENT for each in found) >= 3
    assert not any(each.targets[TARGET].tail.verdict is Verdict.UNDER for each in found)


def test_a_second_retraining_does_not_affect_the_verdict(federation):
    alone, floored = audit(federation, retrained(3)), audit(federation, retrained(3), again=retrained(4))
    assert floored.targets == alone.targets
    assert floored.influence != alone.influence


def test_without_a_retrained_model_there_is_no_verdict(federation):
    found = audit(federation, before(), retrained=None)
    assert found.verdict is None
    assert found.influence == {}
    assert "No verdict possible without a retrained model" in found.sentences[0]
    assert found.targets[TARGET].finding.auc > 0.5


def test_without_the_model_before_there_is_no_pass(federation):
    assert audit(federation, retrained(3), original=None).verdict is Verdict.NO_SIGNAL


def test_too_few_unseen_examples_are_inconclusive():
    held = {
        site: replace(data, evaluations={"test": data.evaluations["test"]}) for site, data in world().items()
    }
    found = audit(fu.Sequential(network(), held), retrained(3))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.targets[TARGET].finding.n_unseen == 100


def test_a_client_that_was_harmed_is_named(federation):
    """A model whose classes are permuted is bad for everybody; one like retraining harms nobody."""
    fine = audit(federation, retrained(3), again=retrained(4))
    assert fine.influence["accuracy"].keys() == set(SITES)
    assert not any(each.beyond for each in fine.influence["accuracy"].values())
    ruined = network()
    load(ruined, retrained(3))
    with torch.no_grad():
        ruined[-1].weight.copy_(ruined[-1].weight.roll(1, 0))
    bad = audit(federation, ruined, again=retrained(4))
    assert all(each.beyond and each.difference < -0.3 for each in bad.influence["accuracy"].values())
    assert any("accuracy: beyond chance" in told and "site-0 (-0." in told for told in bad.sentences)
    alone = audit(federation, ruined)
    assert all(each.beyond is None for each in alone.influence["loss"].values())
    assert any("only a second retraining can tell" in told for told in alone.sentences)


def test_a_backdoor_has_its_rate_and_clean_unseen_data():
    held = dict(world())
    target = held[TARGET]
    marked = fu.Examples(target.train.x[:50], (target.train.y[:50] + 1) % 3)
    held[TARGET] = replace(target, evaluations={**target.evaluations, "backdoor": marked})
    found = audit(fu.Sequential(network(), held), retrained(3))
    rates = found.targets[TARGET].asr
    assert rates.keys() == {"model", "retrained", "original"}
    assert rates["model"].n == 50
    assert rates["model"].share in rates["model"].interval
    assert any(told.startswith("site-1, backdoor: it succeeds on 0.") for told in found.sentences)
    clean = audit(fu.Sequential(network(), world()), retrained(3))
    assert found.influence["loss"]["site-0"] == clean.influence["loss"]["site-0"]
    assert found.influence["loss"][TARGET] != clean.influence["loss"][TARGET]  # test, without the audit set


def test_several_targets_pass_only_together(federation):
    found = audit(federation, retrained(3), targets=[TARGET, "site-0"])
    assert found.targets["site-0"].finding.verdict is not Verdict.EQUIVALENT  # everybody has trained on it
    assert found.targets[TARGET].finding.verdict is Verdict.EQUIVALENT
    assert found.verdict is found.targets["site-0"].finding.verdict


def test_every_engine_finds_the_same(federation):
    expected = audit(federation, retrained(3), again=retrained(4))
    with fu.Parallel(network(), world(), workers=2) as parallel:
        assert audit(parallel, retrained(3), again=retrained(4)) == expected


def test_flower_carries_an_audit(federation):
    pytest.importorskip("flwr")
    from flower_apps import QUICK, existing, grid, number_of, served

    from fedunlearn.engines import flower

    app = served("perceptron", lambda context: flower.Site(network(), world()[f"site-{number_of(context)}"]))
    nodes = grid(app, names=SITES, nodes=3)
    connected = flower.connect(nodes, network(), clients=3, patience=QUICK)
    assert audit(connected, retrained(3)) == audit(federation, retrained(3))

    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    own = flower.connect_existing(grid(existing("perceptron")), model, clients=5, patience=QUICK)
    with pytest.raises(
        fu.FedUnlearnError, match="these clients cannot be audited: it needs the work 'audit'"
    ):
        fu.audit(own, model, targets="site-1")


def test_the_evidence_can_be_written_as_json(federation):
    found = json.loads(json.dumps(audit(federation, retrained(3)).as_dict(), allow_nan=False))
    assert found["verdict"] == "equivalent"
    assert found["targets"][TARGET]["finding"]["n_unseen"] == SIZE
    assert found["influence"]["accuracy"].keys() == set(SITES)


class Missing(fu.Sequential):
    """Does not reach some clients."""

    def __init__(self, *away: str) -> None:
        super().__init__(network(), world())
        self._away = away

    def exchange(self, jobs, *terms):
        return super().exchange({c: job for c, job in jobs.items() if c not in self._away}, *terms)


def test_clients_that_do_not_answer_are_named():
    found = audit(Missing("site-2"), retrained(3))
    assert found.missing.keys() == {"site-2"}
    assert "site-2 was not measured (did not answer)." in found.sentences
    with pytest.raises(fu.FedUnlearnError, match="target 'site-1' was not audited, it did not answer"):
        audit(Missing(TARGET), retrained(3))


class Sparing(fu.Sequential):
    """Leaves out what the verdict rests on, or sends what cannot be."""

    def __init__(self, numbers: torch.Tensor | None) -> None:
        super().__init__(network(), world())
        self._numbers = numbers

    def exchange(self, jobs, *terms):
        replies = super().exchange(jobs, *terms)
        arrays = {name: array for name, array in replies[TARGET].arrays.items() if name != "model"}
        if self._numbers is not None:
            arrays["model"] = self._numbers
        return fu.Replies({**replies, TARGET: replace(replies[TARGET], arrays=arrays)})


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        (None, "target 'site-1' was not audited, it sent no array 'model'"),
        (torch.zeros(3), "it sent a array 'model' of shape \\(3,\\) instead of \\(8,\\)"),
        (torch.full((8,), torch.nan), "it sent a array 'model' that is not finite"),
        (torch.full((8,), 7.0), "target 'site-1' sent AUCs that are not between 0 and 1"),
    ],
)
def test_a_reply_that_cannot_be_used_gives_no_verdict(numbers, sentence):
    with pytest.raises(fu.FedUnlearnError, match=sentence):
        audit(Sparing(numbers), retrained(3))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"targets": "site-9"}, "target 'site-9' is not present.*nobody else holds its data"),
        ({"retrained": retrained(3)}, "the model and the retrained model are equal"),
        ({"again": retrained()}, "the retrained model and the second retrained model are equal"),
        ({"references": [before()]}, "the model before unlearning and reference 0 are equal"),
        ({"retrained": None, "again": retrained()}, "give retrained"),
        ({"retrained": nn.Linear(2, 2)}, "parameters and the retrained model has 6"),
        ({"retrained": "runs/retrain"}, "a model to audit is a str"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(federation, options, sentence):
    with pytest.raises(fu.FedUnlearnError, match=sentence):
        audit(federation, retrained(3), **options)


def test_a_server_audits_its_last_request(tmp_path):
    torch.manual_seed(0)
    server = fu.Server(
        network(), world(), folder=tmp_path, training=fu.LocalTraining(batch_size=62), workers=1
    )
    with pytest.raises(fu.FedUnlearnError, match="nothing has been forgotten yet"):
        server.audit()
    server.train(15, 0.3)
    rows = {f"retrain {n}": {"method": "retrain", "rounds": 15, "number": n} for n in (1, 2)}
    retrainings = server.compare(TARGET, rows)
    assert not torch.equal(retrainings["retrain 1"].params, retrainings["retrain 2"].params)
    server.forget(TARGET, "finetune", fu.Schedule(1, 0.01, 1, 0.01))
    found = server.audit(retrainings["retrain 1"], again=retrainings["retrain 2"])
    assert found.targets.keys() == {TARGET}
    assert found.targets[TARGET].original is not None
    assert found.influence["accuracy"].keys() == set(SITES)
    assert server.audit().verdict is None
