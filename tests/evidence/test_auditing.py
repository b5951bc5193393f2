"""An audit: what the server concludes from what clients send, on every engine."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.audits import SITES, SIZE, TARGET, before, marked, network, retrained, world
from support.codes import refused, says, warned
from torch import nn

import fedunlearn as fu
from fedunlearn.core.vectors import load
from fedunlearn.evidence import Verdict
from fedunlearn.report import read_evidence
from fedunlearn.report.account import conclusion
from fedunlearn.runs import model_hash, read_json


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


def test_the_mean_of_two_retrainings_is_the_standard(federation):
    twins = [retrained(5), retrained(6)]
    one, other, both = (
        audit(federation, retrained(3), **models, references=twins)
        for models in (
            {"retrained": retrained(2)},
            {"retrained": retrained(4)},
            {"retrained": retrained(2), "again": retrained(4)},
        )
    )
    for name in ("finding", "original", "tail"):
        apart = [getattr(each.targets[TARGET], name) for each in (one, other)]
        found = getattr(both.targets[TARGET], name)
        assert found.difference == pytest.approx(sum(each.difference for each in apart) / 2)
    assert both.targets[TARGET].finding.auc == one.targets[TARGET].finding.auc
    widths = [each.targets[TARGET].finding.alarm_interval for each in (one, other, both)]
    assert widths[2].high - widths[2].low < min(each.high - each.low for each in widths[:2])
    assert both.targets[TARGET].distance.keys() - one.targets[TARGET].distance.keys() == {"again"}


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
    (told,) = (sentence for sentence in bad.sentences if sentence.startswith("Unseen data, accuracy"))
    assert "accuracy (n = 720): beyond chance (exact test after Holm, and three times the noise" in told
    assert "), worse than after retraining: site-" in told
    assert "site-0 (-0." in told
    assert "site-2 (-0." in told
    assert "target site-1 (-0." in told
    assert "better" not in told
    (told,) = (sentence for sentence in bad.sentences if sentence.startswith("Unseen data, loss"))
    assert "worse than after retraining: " in told
    assert "site-0 (+" in told
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
    assert found.targets[TARGET].asr_unseen == {}
    clean = audit(fu.Sequential(network(), world()), retrained(3))
    assert found.influence["loss"]["site-0"] == clean.influence["loss"]["site-0"]
    assert found.influence["loss"][TARGET] != clean.influence["loss"][TARGET]  # test, without the audit set


def test_several_targets_pass_only_together(federation):
    found = audit(federation, retrained(3), targets=[TARGET, "site-0"])
    assert found.targets["site-0"].finding.verdict is not Verdict.EQUIVALENT  # everybody has trained on it
    assert found.targets[TARGET].finding.verdict is Verdict.EQUIVALENT
    assert found.verdict is found.targets["site-0"].finding.verdict


def test_several_targets_raise_alarms_at_a_corrected_level(federation):
    alone = audit(federation, before())
    both = audit(federation, before(), targets=["site-0", TARGET])
    assert alone.targets[TARGET].finding.alarm_interval.level == 0.95
    for name in ("finding", "tail"):
        found = {target: getattr(each, name) for target, each in both.targets.items()}
        levels = sorted(each.alarm_interval.level for each in found.values())
        assert levels == pytest.approx([0.95, 0.975])
        (first,) = (each for each in found.values() if each.alarm_interval.level > 0.96)
        assert "(97.5 % interval" in first.sentence
    assert {each.original.alarm_interval.level for each in both.targets.values()} == {0.95}  # of the gate


def audit_in_full(federation) -> fu.Evidence:
    """An audit in which nothing is left out."""
    twins = [retrained(5), retrained(6)]
    return audit(federation, before(), again=retrained(4), references=twins)


@pytest.fixture(scope="module")
def everything() -> fu.Evidence:
    return audit_in_full(fu.Sequential(network(), marked()))


def test_a_model_that_forgot_nothing_is_far_from_retraining_in_every_measure(everything):
    found = everything.targets[TARGET]
    assert found.tpr.keys() == {"1 %"}
    tpr = found.tpr["1 %"]
    assert tpr["model"] == tpr["original"]
    assert tpr["model"].interval.low > tpr["again"].interval.high
    assert tpr["model"].tpr > 2 * tpr["retrained"].tpr
    distance = found.distance
    assert distance["model"] == distance["original"]
    # Two retrainings differ too, on forgotten as much as on unseen examples.
    assert distance["model"].forgotten > distance["again"].forgotten + 0.02
    assert distance["again"].forgotten == pytest.approx(distance["again"].unseen, abs=0.01)
    assert found.probe.keys() == {"model", "retrained", "original", "again"}
    assert found.probe["retrained"].gap is None
    assert found.probe["model"].gap == pytest.approx(
        found.probe["model"].share - found.probe["retrained"].share
    )
    assert found.probe["model"].n == found.finding.n_unseen == 3 * SIZE
    assert found.asr["model"].n == 50
    assert found.asr_unseen["model"].n == 80
    assert found.asr_unseen["model"].gap in found.asr_unseen["model"].gap_interval
    tug = everything.tug_of_war
    assert tug.keys() == {"model", "original", "again"}
    assert tug["model"].factors.keys() == {"forgotten", "retained", "test"}
    assert tug["model"].factors["forgotten"] < 0.9 < tug["again"].factors["forgotten"]
    assert tug["model"].value < tug["again"].value
    for start in (
        "site-1, forgotten examples: at 1 % false alarms an attack finds 0.",
        "site-1, outputs: their Jensen–Shannon distance to retraining is 0.",
        "site-1, last hidden layer: a linear probe is right on 0.",
        "site-1, backdoor: it succeeds on 0.",
        "ToW (tug of war) is 0.",
    ):
        assert any(sentence.startswith(start) for sentence in everything.sentences)
    (omitted,) = everything.omitted
    assert "10,000 at 0.1 % FPR), and there are only 1,860: not all measured for site-1." in omitted


def test_the_factors_of_tow_are_accuracies_that_anyone_can_compute(everything):
    def accuracy(state: fu.State, sets: list[fu.Examples]) -> float:
        model = network().eval()
        load(model, state)
        hits = [model(examples.x).argmax(1) == examples.y for examples in sets]
        return float(torch.cat(hits).double().mean())

    held, others = marked()[TARGET], [marked()[site] for site in SITES if site != TARGET]
    sets = {
        "forgotten": [held.train],
        "retained": [each.evaluations["seen"] for each in others],
        # The audit set of a target with a backdoor is not like the data of others.
        "test": [held.evaluations["test"]]
        + [each.evaluations[name] for each in others for name in ("test", "audit")],
    }
    for name, examples in sets.items():
        expected = 1 - abs(accuracy(before(), examples) - accuracy(retrained(), examples))
        assert everything.tug_of_war["model"].factors[name] == pytest.approx(expected)


def test_clients_without_a_set_of_seen_examples_are_measured_on_what_they_train_on():
    sites = {
        site: fu.ClientData(data.train, {"audit": data.evaluations["audit"]})
        for site, data in world().items()
    }
    found = audit(fu.Sequential(network(), sites), retrained(3))
    assert found.tug_of_war["original"].factors["retained"] > 0.9


def test_without_scipy_rates_in_the_tail_are_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.special", None)
    found = audit(fu.Sequential(network(), marked()), retrained(3))
    assert found.targets[TARGET].tpr == {}
    assert found.targets[TARGET].distance
    assert any("SciPy is missing, install fedunlearn[evidence]" in sentence for sentence in found.sentences)


def test_what_a_task_or_model_does_not_have_is_said_to_be_left_out():
    torch.manual_seed(0)
    x, y = torch.randn(60, 4), torch.randn(60)
    sites = {site: fu.ClientData((x, y), {"audit": (x[:40], y[:40])}) for site in SITES}
    models = [nn.Linear(4, 1) for _ in range(3)]
    found = fu.audit(
        fu.Sequential(models[0], sites, task=fu.Regression()),
        models[0],
        targets=TARGET,
        retrained=models[1],
        original=models[2],
    )
    assert [note.split(" need")[0] for note in found.omitted] == [
        "True positive rates",
        "Output distances",
        "The linear probe",
        "ToW",
    ]
    assert all(note in found.sentences for note in found.omitted)


def test_every_engine_finds_the_same(everything):
    with fu.Parallel(network(), marked(), workers=2) as parallel:
        assert audit_in_full(parallel) == everything


def test_flower_carries_an_audit(everything):
    pytest.importorskip("flwr")
    from support.flower_apps import QUICK, existing, grid, number_of, served

    from fedunlearn.engines import flower

    app = served("perceptron", lambda context: flower.Site(network(), marked()[f"site-{number_of(context)}"]))
    nodes = grid(app, names=SITES, nodes=3)
    connected = flower.connect(nodes, network(), clients=3, patience=QUICK)
    assert audit_in_full(connected) == everything

    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 8), nn.ReLU(), nn.Linear(8, 3))
    own = flower.connect_existing(grid(existing("perceptron")), model, clients=5, patience=QUICK)
    with refused("invalid", says="these clients cannot be audited: it needs the work 'audit'"):
        fu.audit(own, model, targets="site-1")


def test_the_evidence_can_be_written_as_json(federation, everything):
    whole = json.loads(json.dumps(everything.to_json(), allow_nan=False))
    assert whole["targets"][TARGET]["tpr"]["1 %"]["model"]["interval"]["level"] == 0.95
    assert whole["tug_of_war"]["model"]["factors"].keys() == {"forgotten", "retained", "test"}
    found = json.loads(json.dumps(audit(federation, retrained(3)).to_json(), allow_nan=False))
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
    assert says(found.sentences, "site-2 was not measured (did not answer).")
    two = audit(Missing("site-0", "site-2"), retrained(3))
    assert says(two.sentences, "site-0 was not measured (did not answer), nor was 1 other.")
    with refused("invalid", says="target 'site-1' was not audited, it did not answer"):
        audit(Missing(TARGET), retrained(3))


class Boasting(fu.Sequential):
    """Sends distances, or counts of the tail, that cannot be."""

    def __init__(self, what: str) -> None:
        super().__init__(network(), marked())
        self._what = what

    def exchange(self, jobs, *terms):
        replies = super().exchange(jobs, *terms)
        reply = replies[TARGET]
        if self._what == "distance":
            far = {"model outputs": {"forgotten": fu.Mean(900.0, 620), "unseen": fu.Mean(1.0, 620)}}
            reply = replace(reply, statistics={**reply.statistics, **far})
        else:
            reply = replace(reply, arrays={**reply.arrays, "model at 1 %": torch.full((4,), 0.5)})
        return fu.Replies({**replies, TARGET: reply})


@pytest.mark.parametrize(
    ("what", "sentence"),
    [
        ("distance", "target 'site-1' sent output distances that are not from 0 to 1"),
        ("counts", "target 'site-1' sent a true positive rate whose counts are not possible"),
    ],
)
def test_impossible_measures_are_refused(what, sentence):
    with refused("invalid", says=sentence):
        audit(Boasting(what), retrained(3))


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
        (
            torch.tensor([0.6, 0.01, 0.5, 0.01, 0.0, 0.01, 620, 620]),
            "target 'site-1' sent a difference of AUCs that is not theirs",
        ),
        (
            torch.tensor([0.6, 0.01, 0.5, 0.01, 0.1, 0.01, 700, 620]),
            "target 'site-1' compared models on different examples",
        ),
    ],
)
def test_a_reply_that_cannot_be_used_gives_no_verdict(numbers, sentence):
    with refused("invalid", says=sentence):
        audit(Sparing(numbers), retrained(3))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"targets": ()}, "no target is named"),
        ({"targets": "site-9"}, "target 'site-9' is not present.*no other client holds its data"),
        ({"retrained": retrained(3)}, "the model and the retrained model are equal"),
        ({"again": retrained()}, "the retrained model and the second retrained model are equal"),
        ({"references": [before()]}, "the model before unlearning and reference 0 are equal"),
        ({"retrained": None, "again": retrained()}, "give retrained"),
        ({"retrained": nn.Linear(2, 2)}, "parameters and the retrained model has 6"),
        ({"retrained": "runs/retrain"}, "a model to audit is a str"),
        ({"targets": 5}, "targets is a int: give the name of a client"),
        ({"references": network()}, "references is a .*: give a list of models"),
        ({"clients": 3}, "clients is a int"),
        ({"notes": "abc"}, "notes is a str: give a list of sentences"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(federation, options, sentence):
    with refused("invalid", says=sentence):
        audit(federation, retrained(3), **options)


def test_a_federation_is_needed():
    with refused("invalid", says="federation is a dict: make one with simulate"):
        fu.audit({}, network(), targets=TARGET)


def test_clients_to_ask_may_be_one_and_absent_ones_are_missing(federation):
    alone = audit(federation, retrained(3), clients=SITES[1])
    assert not alone.missing
    assert alone.influence["accuracy"].keys() == {TARGET, SITES[1]}
    found = audit(federation, retrained(3), clients=["site-77"])
    assert found.missing == {"site-77": "not present"}


def test_a_server_audits_its_last_request(tmp_path):
    torch.manual_seed(0)
    server = fu.Server(
        network(), world(), folder=tmp_path, training=fu.LocalTraining(batch_size=62), workers=1
    )
    with refused("not-forgotten", says="there is no request to audit"):
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
    assert found.exact == ""
    place = tmp_path / "1-forget-site-1-finetune"
    assert str(found).endswith(f"Written to {place / 'evidence.json'}\nWritten to {place / 'report.html'}")
    read = read_evidence(place)
    assert read.sentences == found.sentences
    assert read.models["retrained"]["sha256"] == model_hash(retrainings["retrain 1"].state)
    assert read.models["model"] == {**read.models["model"], "made": "run", "method": "finetune"}


@pytest.fixture(scope="module")
def exact(tmp_path_factory) -> tuple[fu.Server, fu.Evidence]:
    """A request that a new model answers, and its audit by a call without arguments."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("server")
    server = fu.Server(network(), world(), folder=folder, training=fu.LocalTraining(batch_size=62), workers=1)
    server.train(8, 0.3)
    server.train(2, 0.3)
    server.forget("site-0", "retrain", rounds=10)
    return server, server.audit()


def test_an_audit_trains_its_own_references_once(exact):
    server, found = exact
    assert found.verdict in (Verdict.EQUIVALENT, Verdict.INCONCLUSIVE, Verdict.NO_SIGNAL)
    folder = Path(found.files[0]).parent.parent
    rows = [read_json(path) for path in sorted(folder.glob("2-compare-site-0/seed-0/*/experiment.json"))]
    assert [row["options"] for row in rows] == [{"rounds": 10, "number": number} for number in (2, 3)]
    assert len({row["start"] for row in rows}) == 1
    written = {
        path: path.stat().st_mtime_ns for path in folder.glob("2-compare-site-0/seed-0/*/*.safetensors")
    }
    assert len(written) >= 2
    assert server.audit() == found
    assert written == {path: path.stat().st_mtime_ns for path in written}


def test_what_an_exact_method_guarantees_comes_before_the_verdict(exact):
    _, found = exact
    told = "This model never saw the data that was to be forgotten: retrain is exact"
    assert str(found).startswith(told)
    evidence, page = map(Path, found.files)
    assert json.loads(evidence.read_text())["sentences"][0].startswith(told)
    assert told in page.read_text()
    assert conclusion(read_evidence(evidence.parent)).startswith(told)


def test_a_server_that_did_not_train_the_model_asks_for_the_retrained_one(tmp_path):
    server = fu.Server(network(), world(), folder=tmp_path, workers=1)
    server.forget("site-0", "finetune", fu.Schedule(1, 0.01, 1, 0.01))
    with refused("invalid", says=r"nobody knows how long a retraining takes: compare two"):
        server.audit()
    assert server.audit(retrained(3)).verdict is not None


def two_of_three_labels() -> dict[str, fu.ClientData]:
    """The target's audit set lacks a label that a third of its training examples have."""
    held = world()[TARGET]
    unseen = held.evaluations["audit"]
    left = unseen.take(torch.where(unseen.y != 2)[0])
    return {**world(), TARGET: replace(held, evaluations={**held.evaluations, "audit": left})}


@pytest.mark.parametrize("workers", [1, 2])
def test_unseen_examples_with_other_labels_are_refused(workers):
    told = r"of site-1 have other labels than the forgotten ones \(3\d%, above all label 2\).* a set 'audit'"
    with fu.simulate(network(), two_of_three_labels(), workers=workers) as federation:
        with refused("data", "invalid", says=told):
            audit(federation, retrained(3))
        assert audit(federation, retrained(3), targets="site-0").verdict is not None
        assert audit(federation, retrained(3), retrained=None, original=None).verdict is None


def test_on_flower_they_are_refused_in_the_same_words():
    pytest.importorskip("flwr")
    from support.flower_apps import QUICK, grid, number_of, served

    from fedunlearn.engines import flower

    def site(context) -> flower.Site:
        return flower.Site(network(), two_of_three_labels()[f"site-{number_of(context)}"])

    connected = flower.connect(
        grid(served("perceptron", site), names=SITES, nodes=3), network(), clients=3, patience=QUICK
    )
    told = "site-1' was not audited, it refused the job: the unseen examples of site-1 have other labels"
    with (
        warned("no-reply", says="counts as missing"),
        refused("invalid", says=f"{told} .* as in the forgotten examples$"),
    ):
        audit(connected, retrained(3))
