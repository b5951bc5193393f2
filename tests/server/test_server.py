"""A server in Python: training, requests one after the other, run folders, resuming."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from support.codes import refused, warned
from torch import nn
from torch.utils.data import TensorDataset

import fedunlearn as fu
from fedunlearn.core.seeds import generator
from fedunlearn.experiment import recorded
from fedunlearn.report import collect, write_report
from fedunlearn.runs import read_state, verify

pytestmark = [
    pytest.mark.filterwarnings("ignore:the loss on the data to be forgotten has hardly risen"),
    pytest.mark.filterwarnings("ignore:this script repeats the steps"),
    pytest.mark.filterwarnings("ignore:these clients were never heard in this step"),
]

SCHEDULE = fu.Schedule(4, 0.05, 3, 0.05)


def held(number: int) -> fu.ClientData:
    random = generator("server", number)
    x, y = torch.randn(30, 6, generator=random), torch.randint(0, 3, (30,), generator=random)
    return fu.ClientData((x[:20], y[:20]), {"test": (x[20:], y[20:]), "forget": (x[:20], y[:20])})


def server(folder: Path, *, changed: fu.ClientData | None = None, **options: object) -> fu.Server:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    clients = {f"site-{number}": held(number) for number in range(5)}
    if changed is not None:
        clients["site-2"] = changed
    training = fu.LocalTraining(batch_size=10)
    return fu.Server(model, clients, folder=folder, training=training, workers=1, **options)


def test_a_trained_model_forgets_two_clients_one_after_the_other(tmp_path):
    ours = server(tmp_path)
    ours.train(5, 0.1, history=["norms"])
    trained = ours.state.params
    first = ours.forget("site-1", "fedosd", SCHEDULE)
    assert torch.equal(ours.anchors[0], trained)
    assert torch.equal(ours.state.params, first.params)
    assert set(ours.history.rows["norms"]) == {"site-0", "site-2", "site-3", "site-4"}
    second = ours.forget(["site-3"], "federaser", SCHEDULE)
    assert second.status in (fu.Status.DONE, fu.Status.CONVERGED)
    assert ours.forgotten == ("site-1", "site-3")
    assert ours.clients == ("site-0", "site-2", "site-4")
    assert len(ours.anchors) == 2
    assert torch.equal(fu.flatten(ours.model), second.params)


def test_a_script_that_is_run_again_continues_and_ends_in_the_same_bits(tmp_path):
    def script(folder: Path, *listeners: object) -> torch.Tensor:
        ours = server(folder, listeners=listeners)
        ours.train(5, 0.1)
        ours.forget("site-1", "fedosd", SCHEDULE)
        return ours.forget("site-2", "fedosd", SCHEDULE).params

    def interrupt(event: fu.Event) -> None:
        if event.metrics["stage"] == "post-training" and event.metrics["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        script(tmp_path / "cut", interrupt)
    assert torch.equal(script(tmp_path / "cut"), script(tmp_path / "whole"))
    again = server(tmp_path / "whole")
    assert len(again.train(5, 0.1).metrics) == 6  # read from the folder


def test_a_failed_request_leaves_the_server_as_it_was(tmp_path):
    ours = server(tmp_path)
    ours.train(2, 0.1)
    before = ours.state
    with refused("diverged", says="lower the learning rate") as failed:
        ours.forget("site-1", "ascent", fu.Schedule(400, 1e30, 1, 0.1))
    assert failed.value.outcome.status is fu.Status.DIVERGED
    assert repr(failed.value.outcome).endswith("model unchanged>")
    assert ours.state is before
    assert ours.clients == tuple(f"site-{number}" for number in range(5))
    assert ours.anchors == ()


def test_a_comparison_keeps_the_model_and_can_be_reported(tmp_path):
    ours = server(tmp_path)
    ours.train(3, 0.1)
    before = ours.state
    outcomes = ours.compare(
        "site-1", {"fedosd": {}, "free": {"method": "fedosd", "anchor": "never"}, "retrain": {}}, SCHEDULE
    )
    assert ours.state is before
    assert set(outcomes) == {"fedosd", "free", "retrain"}
    found = collect([tmp_path / "1-compare-site-1"])
    assert set(found.rows) == {"fedosd", "free", "retrain"}
    assert write_report(found, tmp_path / "report.html").exists()


def test_every_step_is_a_run_folder_that_can_be_reported(tmp_path):
    ours = server(tmp_path)
    ours.train(3, 0.1)
    ours.forget("site-1", "fedosd", SCHEDULE)
    folder = tmp_path / "1-forget-site-1-fedosd"
    assert json.loads((folder / "outcome.json").read_text())["status"] == "done"
    write_report(collect([folder]), tmp_path / "report.html")
    assert "site-1" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda ours: ours.forget("site-9", rounds=1), "unknown client 'site-9'; known: site-0"),
        (lambda ours: ours.forget([]), r"targets = \[\]: it must be the name of a client"),
        (lambda ours: ours.compare([], ["retrain"]), r"targets = \[\]: it must be the name of a client"),
        (lambda ours: ours.forget("site-1", "fedosdd"), "did you mean 'fedosd'"),
        (lambda ours: ours.forget("site-1", "federaser"), "needs norms"),
        (lambda ours: ours.train(2, 0.1, history=["norm"]), "unknown history 'norm'; did you mean 'norms'"),
        (lambda ours: ours.train(2.5, 0.1), "rounds = 2.5: it must be a whole number"),
        (lambda ours: ours.train(2, -0.1), "lr = -0.1: it must be a positive"),
    ],
)
def test_bad_arguments_end_in_one_sentence(tmp_path, call, sentence):
    with refused("history", "invalid", "unknown", says=sentence):
        call(server(tmp_path))


def test_a_forgotten_client_cannot_be_forgotten_again(tmp_path):
    ours = server(tmp_path)
    ours.forget("site-1", "fedosd", SCHEDULE)
    with refused("forgotten", says="'site-1' has been forgotten already"):
        ours.forget("site-1", "fedosd", SCHEDULE)


def test_another_training_in_the_same_folder_trains_on_and_says_what_differs(tmp_path):
    first = server(tmp_path).train(2, 0.1)
    ours = server(tmp_path)
    with warned("continued", says=r"last step of .*, 0-train, .*pretraining\.rounds was 2 and is 3"):
        ours.train(3, 0.1)
    assert not torch.equal(ours.train(1, 0.1).params, first.params)
    assert [step.name for step in sorted(tmp_path.glob("*-train"))] == ["0-train", "1-train", "2-train"]


def test_a_model_that_cannot_be_reset_needs_a_function_that_builds_it(tmp_path):
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(6, 3), nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) * self.scale

    clients = {f"site-{number}": held(number) for number in range(3)}
    with refused("model", says=r"'scale'.*build"):
        fu.Server(Scaled(), clients, folder=tmp_path / "a", workers=1).forget("site-1", "retrain", SCHEDULE)
    ours = fu.Server(Scaled(), clients, folder=tmp_path / "b", workers=1, build=Scaled)
    assert ours.forget("site-1", "retrain", SCHEDULE, floor=None).status is fu.Status.DONE


def test_other_starting_weights_are_refused(tmp_path):
    server(tmp_path).train(2, 0.1)
    clients = {f"site-{number}": held(number) for number in range(5)}
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    training = fu.LocalTraining(batch_size=10)
    with refused("occupied", says="begun with other starting weights: seed"):
        fu.Server(model, clients, folder=tmp_path, training=training, workers=1).train(2, 0.1)


def test_changed_data_are_trained_on_and_never_taken_for_those_of_a_step(tmp_path):
    sets = held(2).evaluations
    x, y = sets["test"]
    changed = {
        "tensors": (held(2), held(9)),
        "evaluation": (held(2), fu.ClientData(held(2).train, {**sets, "test": (x, 2 - y)})),
        "dataset": [fu.ClientData(TensorDataset(*held(number).train), sets) for number in (2, 9)],
    }
    for name, (before, after) in changed.items():
        first = server(tmp_path / name, changed=before).train(2, 0.1)
        second = server(tmp_path / name, changed=after).train(2, 0.1)
        assert not torch.equal(first.params, second.params)


def test_another_architecture_with_the_same_weights_is_refused(tmp_path):
    clients = {f"site-{number}": held(number) for number in range(3)}
    linear = nn.Linear(6, 3)
    fu.Server(nn.Sequential(linear, nn.ReLU()), clients, folder=tmp_path, workers=1).train(1, 0.1)
    with refused("other-model", says="another architecture"):
        fu.Server(nn.Sequential(linear, nn.Tanh()), clients, folder=tmp_path, workers=1)


def test_another_setting_of_a_task_of_ones_own_is_another_setting(tmp_path):
    class Weighted(fu.Classification):
        def __init__(self, weights: list[float]) -> None:
            super().__init__()
            object.__setattr__(self, "weights", weights)

    server(tmp_path, task=Weighted([1.0, 1.0, 1.0])).train(1, 0.1)
    with warned("continued", says=r"task\.weights was \[1\.0, 1\.0, 1\.0\] and is \[9\.0"):
        server(tmp_path, task=Weighted([9.0, 1.0, 1.0])).train(1, 0.1)


def test_other_stop_rules_are_other_settings(tmp_path):
    server(tmp_path).forget("site-1", "fedosd", SCHEDULE)
    with refused("forgotten", says="'site-1' has been forgotten already"):
        server(tmp_path).forget("site-1", "fedosd", SCHEDULE, stop=[fu.Below("forget_acc", 2.0)])


def test_after_a_refusal_or_a_failure_another_method_or_schedule_can_be_tried(tmp_path):
    ours = server(tmp_path)
    with refused("history", says="needs norms"):
        ours.forget("site-1", "federaser", SCHEDULE)
    wild = fu.Schedule(400, 1e30, 1, 0.1)
    with refused("diverged"):
        ours.forget("site-1", "ascent", wild)
    assert ours.forget("site-1", "ascent", SCHEDULE).status is fu.Status.DONE
    again = server(tmp_path)
    assert again.forget("site-1", "ascent", SCHEDULE).status is fu.Status.DONE
    assert torch.equal(again.state.params, ours.state.params)


def test_a_training_that_diverges_is_no_training(tmp_path):
    with refused("diverged", says="lower the learning rate"):
        server(tmp_path).train(5, 1e30)


def test_a_comparison_is_on_equal_terms_and_equals_the_request(tmp_path):
    ours = server(tmp_path, participation=fu.Participation(share=0.5))
    ours.train(2, 0.1)
    rows = {"one": {"method": "fedosd"}, "other": {"method": "fedosd"}}
    one, other = ours.compare("site-1", rows, SCHEDULE).values()
    assert torch.equal(one.params, other.params)
    assert torch.equal(one.params, ours.forget("site-1", "fedosd", SCHEDULE).params)


def test_a_comparison_refuses_every_row_before_it_runs_one(tmp_path):
    ours = server(tmp_path)
    with refused("history", says=r"federaser needs norms"):
        ours.compare("site-1", ["finetune", "federaser"], SCHEDULE)
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_random_numbers_of_successive_requests_differ(tmp_path):
    def moved(ours: fu.Server, target: str) -> torch.Tensor:
        """How far a request moves the model, which is noise of this size and hardly anything else."""
        before = ours.state.params
        noisy = ours.forget(target, "fedrecovery", fu.Schedule(1, 0.05, 0, 0.05), noise=10.0)
        return noisy.params - before

    ours = server(tmp_path)
    ours.train(2, 0.1, history=["residuals"])
    first, second = moved(ours, "site-1"), moved(ours, "site-2")
    assert float((first - second).norm()) > 0.5 * float(first.norm())


def test_history_continues_over_several_trainings(tmp_path):
    ours = server(tmp_path)
    ours.train(2, 0.1, history=["norms", "updates"])
    first = ours.history
    ours.train(3, 0.1, history=["norms", "updates"])
    assert len(ours.history.of("norms", "site-0")) == 5
    assert torch.equal(ours.history.shared["norms"], first.shared["norms"])
    with warned("history", says="records no norms, so what was recorded before is dropped"):
        ours.train(1, 0.1)
    assert not ours.history.rows


def test_what_was_recorded_about_a_forgotten_client_leaves_the_disk(tmp_path):
    def rows() -> set[str]:
        (path, *_) = sorted((tmp_path / "0-train/checkpoints").glob("*.safetensors"))
        return set(read_state(path)[0].memory)

    ours = server(tmp_path)
    ours.train(2, 0.1, history=["updates"])
    assert "updates/site-1" in rows()
    ours.forget("site-1", "fedosd", SCHEDULE)
    assert "updates/site-1" not in rows()
    assert "updates/site-2" in rows()
    again = server(tmp_path)
    again.train(2, 0.1, history=["updates"])
    assert torch.equal(again.forget("site-1", "fedosd", SCHEDULE).params, ours.state.params)


def test_a_damaged_step_is_refused_and_a_bad_answer_too(tmp_path):
    ours = server(tmp_path / "server")
    ours.train(3, 0.1, history=["norms"])
    ours.forget("site-1", "fedosd", SCHEDULE)
    for step in sorted((tmp_path / "server").glob("[01]-*")):
        assert verify(step).verified  # rows that were erased are erased in the manifest, too
    for name in ("model.safetensors", "metrics.jsonl", "checkpoints/00000001.safetensors", "experiment.json"):
        copy = shutil.copytree(tmp_path / "server", tmp_path / name.replace("/", "-"))
        path = copy / "0-train" / name
        whole = path.read_bytes()
        path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
        with refused("damaged", says=rf"0-train/{name} is not as it was written"):
            server(copy).train(3, 0.1, history=["norms"])


@pytest.mark.filterwarnings("ignore:the loss on the data to be forgotten has hardly risen in unlearning")
def test_what_was_answered_is_verified(tmp_path):
    model, clients = nn.Linear(6, 3), {f"site-{number}": held(number) for number in range(4)}

    def answer(target: str, folder: Path) -> None:
        with fu.simulate(model, clients, workers=1) as federation:
            short = fu.Schedule(2, 0.05, 1, 0.05)
            fu.forget(federation, model, target, folder, method="fedosd", schedule=short)

    answer("site-0", tmp_path / "one")
    answer("site-1", tmp_path / "two")
    shutil.copy(tmp_path / "two/answered.json", tmp_path / "one/answered.json")
    with refused("damaged", says=r"answered\.json is not as it was written"):
        answer("site-2", tmp_path / "one")
    (tmp_path / "one/answered.json").unlink()
    with refused("damaged", says=r"answered\.json is missing"):
        answer("site-2", tmp_path / "one")


def test_a_client_cannot_have_the_name_of_the_public_data(tmp_path):
    clients = {"site-0": held(0), "public": held(1)}
    with refused("invalid", says="a client is named 'public'"):
        fu.Server(nn.Linear(6, 3), clients, folder=tmp_path, public=held(2).train)


def test_a_client_that_has_left_must_have_taken_part(tmp_path):
    ours = server(tmp_path)
    ours.train(2, 0.1)
    with refused("unknown", says=r"unknown client 'site-33'; known: .*site-3"):
        ours.forget("site-33", "retrain", SCHEDULE, gone=True, rounds=1)
    left = {f"site-{number}": held(number) for number in range(4)}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    training = fu.LocalTraining(batch_size=10)
    later = fu.Server(model, left, folder=tmp_path, training=training, workers=1)
    later.train(2, 0.1)
    with refused("absent", says=r"'site-4' is not present .*say gone=True"):
        later.forget("site-4", "retrain", SCHEDULE)
    ended = later.forget("site-4", "retrain", SCHEDULE, gone=True, rounds=1, floor=None)
    assert ended.status is fu.Status.DONE


def test_who_has_left_is_checked_against_the_history(tmp_path):
    history = fu.History({"updates": {f"site-{number}": torch.zeros(21) for number in range(5)}})
    model, federation = (
        nn.Linear(6, 3),
        fu.Sequential(nn.Linear(6, 3), {"site-0": held(0), "site-1": held(1)}),
    )
    how = {"method": "retrain", "gone": True, "rounds": 1, "floor": None}
    with refused("unknown", says=r"unknown client 'site-44'; known: .*site-4"):
        fu.forget(federation, model, "site-44", tmp_path, history=history, **how)
    assert not fu.forget(federation, model, "site-4", tmp_path, history=history, **how).status.failed
    left = history.without(["site-4"])
    assert not fu.forget(federation, model, "site-4", tmp_path, history=left, **how).status.failed


def test_a_request_that_was_answered_is_answered_again_from_the_model_before_and_after(tmp_path):
    before = nn.Linear(6, 3)
    federation = fu.Sequential(before, {f"site-{number}": held(number) for number in range(3)})
    model, how = copy.deepcopy(before), {"method": "fedosd", "schedule": SCHEDULE}
    first = fu.forget(federation, model, "site-0", tmp_path, **how)
    for given in (model, copy.deepcopy(before)):
        again = fu.forget(federation, given, "site-0", tmp_path, **how)
        assert torch.equal(again.params, first.params)
        assert torch.equal(fu.flatten(given), first.params)
    with refused("forgotten", says="has already forgotten site-0, starting from another model"):
        fu.forget(federation, nn.Linear(6, 3), "site-0", tmp_path, **how)


def test_a_federation_whose_members_come_and_go_continues_a_step(tmp_path):
    class Partly(fu.Sequential):
        away: frozenset[str] = frozenset()

        def present(self) -> frozenset[str]:
            return super().present() - self.away

    def begin(away: set[str]) -> fu.Server:
        torch.manual_seed(0)
        model = nn.Linear(6, 3)
        federation = Partly(model, {f"site-{number}": held(number) for number in range(4)})
        federation.away = frozenset(away)
        return fu.Server(model, federation, folder=tmp_path)

    ours = begin(set())
    ours.train(2, 0.1)
    ours.forget("site-1", "fedosd", SCHEDULE)
    fewer = begin({"site-1", "site-2"})
    fewer.train(2, 0.1)
    assert torch.equal(fewer.forget("site-1", "fedosd", SCHEDULE).params, ours.state.params)


def test_unheard_clients_stay_on_record(tmp_path):
    def script() -> tuple[str, ...]:
        ours = server(tmp_path, participation=fu.Participation(count=1))
        return ours.forget("site-1", "fedosd", fu.Schedule(1, 0.05, 1, 0.05)).unheard

    first = script()
    assert first
    assert script() == first
    assert tuple(json.loads(next(tmp_path.glob("*/outcome.json")).read_text())["unheard"]) == first


def test_public_data_and_clusters_serve_the_methods_that_need_them(tmp_path):
    public = held(7).train
    ours = server(tmp_path / "public", public=public)
    ours.train(2, 0.1, history=["updates"])
    assert "public" not in ours.clients
    assert ours.forget("site-1", "fedkdu", SCHEDULE).status is fu.Status.DONE
    clustered = server(tmp_path / "clusters")
    clustered.train(2, 0.1, clusters=2)
    assert clustered.forget("site-1", "knot", SCHEDULE).status is fu.Status.DONE
    sliced = server(tmp_path / "slices")
    sliced.train(2, 0.1, slices=2)
    assert sliced.forget("site-2", "sisa", SCHEDULE).status is fu.Status.DONE
    assert "slice-0" not in sliced.history.shared
    assert sliced.forget("site-1", "sisa", SCHEDULE).status is fu.Status.DONE


def test_retraining_takes_the_learning_rate_of_the_training(tmp_path):
    ours = server(tmp_path)
    ours.train(2, 0.01)
    outcome = ours.compare("site-1", ["retrain"], SCHEDULE)["retrain"]
    assert outcome.metrics[1]["lr"] == 0.01


def test_names_that_no_folder_can_have_are_shortened(tmp_path):
    clients = {f"a very/long name of a hospital {number}": held(number) for number in range(9)}
    ours = fu.Server(nn.Linear(6, 3), clients, folder=tmp_path, workers=1)
    assert ours.forget(sorted(clients)[:7], "fedosd", SCHEDULE).status is fu.Status.DONE
    (step,) = tmp_path.glob("0-*")
    assert len(step.name) < 120


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda ours: ours.forget("site-1", "fedosd", objectve="uce"),
            "no option 'objectve'; did you mean 'objective'",
        ),
        (lambda ours: ours.forget("site-1", "fedosd", objective=3), "option objective = 3"),
        (lambda ours: ours.forget("site-1", stop=fu.Below("asr", 0.1)), "stop is a Below: give a list"),
        (lambda ours: ours.compare("site-1", "fedosd"), "rows is a str: give several methods"),
        (lambda ours: ours.forget("site-1", stop=["asr<.1"]), "a rule of stop is a str: give a list"),
        (lambda ours: ours.forget("site-1", guards=True), "guards is a bool: give Guards"),
        (lambda ours: ours.forget("site-1", schedule=3), "schedule is a int: give Schedule"),
        (lambda ours: ours.forget("site-1", 3), "unknown method 3"),
        (lambda ours: ours.forget(5), "targets is a int: give the name of a client"),
        (lambda ours: ours.forget(["site-1", None]), "None among targets is a NoneType: give the name"),
        (lambda ours: ours.compare(None, ["fedosd"]), r"targets = \(\)"),
        (lambda ours: ours.compare("site-1", {"a": "fedosd"}), "row 'a' is a str: give the options"),
        (lambda ours: ours.compare("site-1", ["fedosd"], 3), "schedule is a int"),
        (lambda ours: ours.train(2, 0.1, history="updates"), "history is a str: give a list of kinds"),
        (
            lambda ours: ours.train(2, 0.1, history=["updates"], clusters=2),
            "remove clusters or history",
        ),
        (lambda ours: ours.train(2, 0.1, clusters=0), "clusters = 0: it must be"),
        (lambda ours: ours.train(2, 0.1, clusters=9), "5 clients cannot form 9 clusters"),
        (lambda ours: ours.train(2, 0.1, slices=-1), "slices = -1: it must be"),
        (
            lambda ours: fu.forget({}, nn.Linear(1, 1), "a", "y"),
            "federation is a dict: make one with simulate",
        ),
        (lambda ours: fu.Above("r_acc", "x"), "value is a str: give a number"),
        (lambda ours: fu.flatten(nn.ReLU()), "the model has no trainable parameter"),
        (lambda ours: fu.load(nn.Linear(1, 1), ours.state), "2 trainable parameters and the state 83: give"),
        (lambda ours: fu.unlearn("fedosd", None, None), "phases is a str: give a list of phases"),
        (lambda ours: fu.unlearn(["fedosd"], None, None), "a phase is a str: give a list of phases"),
        (lambda ours: fu.pretrain(None, None, 1, 0.1, history="updates"), "history is a str"),
        (lambda ours: fu.Server("x", {}, folder="y"), r"model is a str: give a torch\.nn\.Module"),
        (lambda ours: fu.Server(nn.Linear(1, 1), [1], folder="y"), "clients is a list: give a dict"),
    ],
)
def test_wrong_types_end_in_one_sentence(tmp_path, call, sentence):
    with refused("invalid", "model", "unknown", "unsuitable", says=sentence):
        call(server(tmp_path))


def test_what_a_request_does_not_state_follows_from_the_training(tmp_path):
    ours = server(tmp_path)
    ours.train(3, 0.02)
    ours.train(2, 0.1)
    assert ours.forget("site-1", None, None).status is fu.Status.CONVERGED
    begun = json.loads((tmp_path / "2-forget-site-1-fast-retrain/experiment.json").read_text())
    assert begun["options"] == {"until_recovered": True, "rounds": 5}
    assert begun["pretraining"]["lr"] == 0.1
    ours.forget("site-2", poisoned=True)
    assert (tmp_path / "3-forget-site-2-fedosd").exists()


def test_where_nobody_knows_the_training_a_request_that_retrains_says_so(tmp_path):
    ours = server(tmp_path)
    with warned("effort-unknown", says="nobody knows here how long and at which rate"):
        ours.forget("site-1")
    ours.forget("site-2", rounds=2, floor=None)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"training": {"epochs": 1}}, "training is a dict: give LocalTraining"),
        ({"participation": 0.5}, "participation is a float: give Participation"),
        ({"task": "classification"}, "task is a str: give a Task"),
        ({"listeners": print}, "listeners is a builtin_function_or_method: give a list of functions"),
        ({"build": 3}, "build is a int: give a function"),
        ({"workers": "2"}, "workers = '2': it must be"),
        ({"workers": 1.5}, "workers = 1.5: it must be"),
        ({"seed": None}, "seed = None: it must be"),
        ({"seed": -1}, "seed = -1: it must be"),
        ({"seed": "x"}, "seed = 'x': it must be"),
    ],
)
def test_wrong_settings_of_a_server_end_in_one_sentence(tmp_path, options, sentence):
    clients = {f"site-{number}": held(number) for number in range(2)}
    with refused("invalid", says=sentence):
        fu.Server(nn.Linear(6, 3), clients, folder=tmp_path, **options)


def test_a_client_to_be_left_out_may_be_named_alone_and_an_absent_one_is_told(tmp_path):
    model = nn.Linear(6, 3)
    federation = fu.Sequential(model, {f"site-{number}": held(number) for number in range(4)})
    how = {"method": "fedosd", "schedule": fu.Schedule(1, 0.05, 1, 0.05)}
    fu.forget(federation, model, "site-0", tmp_path / "a", **how, without="site-1")
    begun = json.loads((tmp_path / "a/0-forget-site-0-fedosd/experiment.json").read_text())
    assert begun["data"]["names"] == ["site-0", "site-2", "site-3"]
    with warned("absent", says=r"'site-33', to be left out, is not present; known: .*site-3"):
        fu.forget(federation, model, "site-0", tmp_path / "b", **how, without=["site-33"])


def test_the_command_line_refers_to_the_script(tmp_path):
    server(tmp_path).train(2, 0.1)
    with refused("occupied", says=r"by the same calls or by Server\.audit"):
        recorded(tmp_path / "0-train")


def test_what_the_guards_note_is_a_warning_and_an_outcome_is_short(tmp_path):
    ours = server(tmp_path)
    ours.train(5, 0.1)
    with warned("outcome", says="has hardly risen in unlearning"):
        outcome = ours.forget("site-1", "fedosd", SCHEDULE)
    assert repr(outcome).startswith("<Outcome: done, ")
    assert "r_acc" in repr(outcome)
    assert repr(outcome).endswith(", 1 warning>")
    assert len(repr(outcome)) < 200


def test_a_folder_of_steps_is_answered_with_one_of_them(tmp_path):
    server(tmp_path).train(2, 0.1)
    with refused("missing", says=r"name one of the runs in it, such as .*0-train"):
        recorded(tmp_path)
    with refused("missing", says="nothing does not exist: name the folder of a run"):
        recorded(tmp_path / "nothing")
