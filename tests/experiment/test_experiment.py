from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import warnings
from functools import partial

import pytest
import torch
from safetensors.torch import save_file
from support.codes import refused, warned
from support.folders import drop, edit

from fedunlearn import experiment as experiments
from fedunlearn.core.vectors import load
from fedunlearn.experiment import Experiment, check, prepare, read
from fedunlearn.experiment.pretraining import pretraining as training_of
from fedunlearn.runs import model_hash, read_json, read_metrics, read_outcome, read_state, read_tensors
from fedunlearn.runs.reading import public

SMALL = {
    "name": "small",
    "model": "lenet5",
    "data": {"partition": "pat-50", "clients": 4, "fraction": 0.05},
    "training": {"batch_size": 20},
    "pretraining": {"rounds": 4, "lr": 0.05},
    "unlearning": {"rounds": 3, "lr": 0.01},
    "recovery": {"rounds": 2, "lr": 0.01},
}

# The number of workers does not affect a result, and processes take time to start.
perform, resume, pretrained = (
    partial(function, workers=1)
    for function in (experiments.perform, experiments.resume, experiments.pretrained)
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def small(**changes: object) -> Experiment:
    return check({**SMALL, **changes}, "test")


def test_an_experiment_is_read_from_toml_with_overrides(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('method = "fedosd"\n[data]\nclients = 20\n')
    experiment = read(
        path, ["data.partition=iid", "unlearning.lr=1e-3", "seed=7", 'request.targets=["client-03"]']
    )
    assert experiment.name == "mine"
    assert experiment.data.clients == 20
    assert experiment.data.partition == "iid"
    assert experiment.unlearning.lr == 1e-3
    assert experiment.seed == 7
    assert experiment.request.targets == ["client-03"]


@pytest.mark.wording
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"sead": 1}, "unknown key 'sead'; did you mean 'seed'"),
        ({"data": {"datset": "mnist"}}, "unknown key 'data.datset'; did you mean 'data.dataset'"),
        ({"data": {"dataset": "minst"}}, "unknown dataset 'minst'; did you mean 'mnist'"),
        ({"data": {"partition": "pat20"}}, "unknown partition 'pat20'; did you mean 'pat-20'"),
        ({"model": "resnet"}, "unknown model 'resnet'; did you mean 'nfresnet18'"),
        ({"method": "fedsod"}, "unknown method 'fedsod'; did you mean 'fedosd'"),
        ({"options": {"ancor": "always"}}, "no option 'ancor'; did you mean 'anchor'"),
        ({"unlearning": {"lr": -1}}, "unlearning.lr = -1"),
        ({"unlearning": {"lr": float("nan")}}, "unlearning.lr = nan"),
        ({"data": {"clients": 1}}, "data.clients = 1"),
        ({"request": {"level": "clint"}}, "request.level = 'clint'"),
        ({"request": {"targets": 0}}, "request.targets = 0"),
        ({"options": {"anchor": "no"}}, "option anchor = 'no'"),
        ({"method": "fedosd-m4", "options": {"spread": float("inf")}}, "option spread = inf"),
        ({"method": "retrain", "options": {"rounds": "many"}}, "option rounds = 'many'"),
        ({"method": "retrain", "options": {"rounds": -5}}, "rounds = -5: it must be 1 or more"),
        ({"data": {"partition": "dirichlet", "options": {"alpha": "x"}}}, "option alpha = 'x'"),
        ({"data": {"partition": "iid", "options": {"alpha": 1}}}, "partition 'iid' has no option 'alpha'"),
        ({"pretraining": {"history": ["norm"]}}, "unknown history 'norm'; did you mean 'norms'"),
        (
            {"method": "federaser"},
            'federaser needs norms, and this experiment has none: set history = ["norms"] in [pretraining]',
        ),
        (
            {"method": "fedrecovery"},
            'has none: set history = ["residuals"] in [pretraining]',
        ),
        (
            {"method": "fupga"},
            'fupga needs locals, and this experiment has none: set history = ["locals"] in [pretraining]',
        ),
        ({"method": "fedkdu", "data": {"public": 9}}, "fedkdu needs updates, and this experiment has none"),
        (
            {"method": "fedkdu", "pretraining": {"history": ["updates"]}},
            "fedkdu needs public, and this experiment has none: set public = 1000 in [data]",
        ),
        (
            {"method": "knot"},
            "knot needs cluster, and this experiment has none: set clusters = 2 in [pretraining]",
        ),
        (
            {"method": "sisa", "pretraining": {"clusters": 2}},
            "sisa needs slice, and this experiment has none: set slices = 2 in [pretraining]",
        ),
        ({"method": "knot", "pretraining": {"clusters": 2, "slices": 2}}, "knot needs cluster"),
        (
            {"pretraining": {"slices": 2, "history": ["norms"]}},
            "its slices and no other history: remove slices or history",
        ),
        (
            {"pretraining": {"clusters": 2, "slices": 3}},
            "4 clients cannot form 3 slices in each of 2 clusters: lower slices or clusters",
        ),
        ({"pretraining": {"rounds": 1, "slices": 2}}, "1 rounds are too few for 2 slices: set rounds"),
        ({"method": "federaser", "pretraining": {"clusters": 2}}, "federaser needs norms"),
        (
            {"method": "federaser", "pretraining": {"rounds": 0, "history": ["norms"]}},
            "federaser needs norms, which pre-training records, and here it has no rounds: set rounds",
        ),
        ({"unlearning": {"lr": 1e300}}, "unlearning.lr = 1e+300: input should be less than or equal to"),
        ({"method": "puf", "options": {"scale": 1e300}}, "option scale = 1e+300: it must be between"),
        ({"training": {"decay": 0.5}, "pretraining": {"rounds": 2000}}, "zero after 2000 rounds"),
        ({"data": {"directory": "a\0b"}}, "a path cannot contain a NUL character"),
        ({"use": [3]}, "use = 3: a file is named by a string"),
        ({"checkpoint": "nowhere"}, "nowhere: No such file"),
        ({"seed": -1}, "seed = -1: input should be greater than or equal to 0"),
        ({"pretraining": {"clusters": 2, "history": ["norms"]}}, "remove clusters or history"),
        (
            {"pretraining": {"clusters": 5}},
            "4 clients cannot form 5 clusters: set clusters to 4 at most",
        ),
        (
            {
                "method": "fedrecovery",
                "pretraining": {"history": ["residuals"]},
                "request": {"level": "sample"},
            },
            "fedrecovery needs history, which knows whole clients only: use level = 'client'",
        ),
    ],
)
def test_a_bad_experiment_gets_one_sentence(changes, sentence):
    with refused("file", "history", "invalid", "unknown", "unsuitable") as problem:
        check({**SMALL, **changes}, "x.toml")
    assert sentence in str(problem.value)
    assert str(problem.value).startswith("x.toml: ")
    assert "\n" not in str(problem.value)


def test_a_run_folder_is_complete(tmp_path):
    outcome = perform(small(), tmp_path / "run")
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert names >= {"experiment.json", "environment.json", "metrics.jsonl", "checkpoints", "outcome.json"}
    assert check(json.loads((tmp_path / "run/experiment.json").read_text()), "x") == small()
    rows = read_metrics(tmp_path / "run")
    assert [row["stage"] for row in rows] == ["start", *["unlearning"] * 3, *["post-training"] * 2]
    assert {"asr", "r_acc", "r_acc_worst", "target_acc", "loss_target", "loss_retained"} <= set(rows[0])
    model, _ = read_tensors(tmp_path / "run/model.safetensors")
    module = prepare(small()).build(0)
    module.load_state_dict(model)
    assert torch.equal(torch.cat([p.detach().reshape(-1) for p in module.parameters()]), outcome.params)
    start, _ = read_state(tmp_path / "run/omega0.safetensors")
    assert torch.equal(start.params, pretrained(prepare(small())).params)


def test_the_environment_is_that_of_the_rounds(tmp_path):
    run = tmp_path / "run"
    perform(small(), run)
    written = read_json(run / "environment.json")
    drop(run, "outcome.json")
    edit(run, {"environment.json": '{"torch": "of the rounds"}'})
    perform(small(), run)
    assert read_json(run / "environment.json") == {"torch": "of the rounds"}  # a resume adds none
    drop(run, "outcome.json", *(f"checkpoints/{path.name}" for path in (run / "checkpoints").iterdir()))
    perform(small(), run)
    assert read_json(run / "environment.json") == written


def test_methods_share_one_pre_training_and_other_settings_do_not(tmp_path, cache):
    perform(small(), tmp_path / "a")
    perform(small(method="finetune"), tmp_path / "b")
    perform(small(unlearning={"rounds": 1, "lr": 0.5}), tmp_path / "c")
    assert len(list((cache / "pretraining").iterdir())) == 1
    for number, change in enumerate(
        [
            {"seed": 2},
            {"pretraining": {"rounds": 4, "lr": 0.06}},
            {"training": {"batch_size": 10}},
            {"backdoor": {"pretrain_share": 0.5}},
            {"model": "mlp"},
        ]
    ):
        pretrained(prepare(small(**change)))
        assert len(list((cache / "pretraining").iterdir())) == 2 + number


def test_a_longer_pre_training_goes_on_where_a_shorter_one_ended(tmp_path, monkeypatch, cache):
    def after(rounds: int) -> torch.Tensor:
        return pretrained(prepare(small(pretraining={"rounds": rounds, "lr": 0.05}))).params

    grown = {rounds: after(rounds) for rounds in (4, 6, 5)}
    (folder,) = (cache / "pretraining").iterdir()
    assert [row["elapsed"] for row in read_metrics(folder)] == list(range(7))
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another"))
    assert torch.equal(after(5), grown[5])
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "a third"))
    assert torch.equal(after(6), grown[6])


def test_the_same_experiment_ends_in_the_same_model(tmp_path, monkeypatch):
    first = perform(small(), tmp_path / "a", workers=2)
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another-cache"))
    second = perform(small(), tmp_path / "b")
    other = perform(small(seed=2), tmp_path / "c")
    assert torch.equal(first.params, second.params)
    assert not torch.equal(first.params, other.params)


def test_a_folder_keeps_to_its_experiment(tmp_path):
    perform(small(), tmp_path / "run")
    with refused("finished", says="finished"):
        resume(tmp_path / "run")
    with refused("occupied", says="another configuration"):
        perform(small(seed=3), tmp_path / "run")
    with refused("missing", says="not a run folder"):
        resume(tmp_path)


def test_a_refused_setting_leaves_the_folder_free(tmp_path):
    with refused("invalid", says="batch_size 4000"):
        perform(small(training={"batch_size": 4000}), tmp_path / "run")
    with refused("model", says="takes 3x32x32"):
        perform(small(model="cnn"), tmp_path / "run")
    assert perform(small(), tmp_path / "run").status == "done"


def test_a_run_goes_on_without_the_cache(tmp_path, monkeypatch):
    def interrupt(event: object) -> None:
        if event.metrics["stage"] == "unlearning":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(small(), tmp_path / "run", [interrupt])
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "elsewhere"))
    assert resume(tmp_path / "run").status == "done"
    assert not (tmp_path / "elsewhere").exists()


def test_retraining_uses_the_learning_rate_of_pre_training(tmp_path):
    perform(small(method="retrain"), tmp_path / "run")
    assert read_metrics(tmp_path / "run")[1]["lr"] == SMALL["pretraining"]["lr"]


def test_an_interrupted_run_goes_on_to_the_same_model(tmp_path):
    whole = perform(small(), tmp_path / "whole")

    def interrupt(event: object) -> None:
        if event.metrics.get("elapsed") == 4 and event.metrics["stage"] == "post-training":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        perform(small(), tmp_path / "cut", [interrupt])
    assert torch.equal(resume(tmp_path / "cut").params, whole.params)


def test_a_diverged_run_says_so_and_keeps_the_last_good_checkpoint(tmp_path):
    outcome = perform(small(recovery={"rounds": 30, "lr": 1e6}), tmp_path / "run")
    assert outcome.status.failed
    assert json.loads((tmp_path / "run/outcome.json").read_text())["status"] == "diverged"
    assert bool(outcome.params.isfinite().all())


def test_sample_level_forgets_some_examples_of_a_client_that_stays(tmp_path):
    experiment = small(request={"level": "sample", "share": 0.3})
    setting = prepare(experiment)
    (virtual,) = setting.population.targets
    assert virtual.endswith("#forget")
    assert virtual.partition("#")[0] in setting.population.unlearning
    rows = read_metrics_of(experiment, tmp_path)
    assert "asr" in rows[-1]
    assert rows[1]["local_trainings"] == 5


def test_class_level_forgets_a_class_at_every_holder(tmp_path):
    experiment = small(
        data={"partition": "iid", "clients": 4, "fraction": 0.05},
        request={"level": "class", "label": 3},
        backdoor={"enabled": False},
    )
    assert len(prepare(experiment).population.targets) == 4
    rows = read_metrics_of(experiment, tmp_path)
    assert "asr" not in rows[-1]
    assert {"forget_acc", "target_acc"} <= set(rows[-1])
    assert rows[1]["local_trainings"] == 8


def test_unlearning_ends_once_the_class_is_known_too_little(tmp_path):
    experiment = small(
        data={"partition": "iid", "clients": 4, "fraction": 0.05},
        request={"level": "class", "label": 3},
        backdoor={"enabled": False},
        unlearning={"rounds": 3, "lr": 0.01, "stop_below": 1.0},
    )
    rows = read_metrics_of(experiment, tmp_path)
    assert [row["stage"] for row in rows] == ["start", "unlearning", "post-training", "post-training"]
    assert rows[1]["forget_acc"] < 1
    assert rows[1]["status"] == "converged"


def test_several_targets_and_epochs(tmp_path):
    experiment = small(request={"targets": 2}, training={"batch_size": 20, "epochs": 3})
    rows = read_metrics_of(experiment, tmp_path)
    assert rows[1]["local_trainings"] == 4
    assert rows[-1]["local_trainings"] == 2


def read_metrics_of(experiment: Experiment, folder) -> list[dict[str, object]]:
    assert perform(experiment, folder / "run").status == "done"
    return read_metrics(folder / "run")


RECORDING = {"rounds": 4, "lr": 0.05, "history": ["norms", "residuals", "updates", "locals"]}


def test_recorded_history_survives_an_interruption_to_the_bit(tmp_path, monkeypatch):
    setting = prepare(small(pretraining=RECORDING))
    with warned("history", says="pre-training records locals, norms, residuals, updates"):
        whole = pretrained(setting)

    def interrupt(event: object) -> None:
        if event.metrics["elapsed"] == 2:
            raise KeyboardInterrupt

    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another"))
    with warned("history", says="MB"), pytest.raises(KeyboardInterrupt):
        pretrained(setting, [interrupt])
    with warned("history", says="MB"):
        again = pretrained(setting, workers=2)
    assert again.memory.keys() == whole.memory.keys()
    assert {name.partition("/")[0] for name in whole.memory} == {"share", *RECORDING["history"]}
    assert all(torch.equal(again.memory[name], value) for name, value in whole.memory.items())
    assert torch.equal(again.params, whole.params)


def test_recorded_history_survives_a_kill_to_the_bit(tmp_path, monkeypatch):
    setting = prepare(small(pretraining=RECORDING))
    with warned("history", says="MB"):
        whole = pretrained(setting)
    monkeypatch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "another"))

    def die() -> None:
        def kill(event: object) -> None:
            if event.metrics["elapsed"] == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        with warnings.catch_warnings(action="ignore"):
            pretrained(setting, [kill], workers=1, checkpoint_seconds=0)

    process = multiprocessing.get_context("fork").Process(target=die)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert len(list((tmp_path / "another").glob("pretraining/*/checkpoints/*"))) == 2
    with warned("history", says="MB"):
        again = pretrained(setting)
    assert torch.equal(again.params, whole.params)
    assert all(torch.equal(again.memory[name], value) for name, value in whole.memory.items())


def test_recording_changes_no_bit_and_its_size_is_announced():
    with warned("history", says=r"1\.0 MB in memory"):
        recorded = pretrained(prepare(small(pretraining={**RECORDING, "history": ["updates"]})))
    plain = pretrained(prepare(small()))
    assert torch.equal(recorded.params, plain.params)
    assert plain.memory == {}
    assert 4 * 4 * len(plain.params) == pytest.approx(1.0e6, rel=0.05)


def test_a_run_keeps_only_the_history_that_its_method_needs(tmp_path):
    with warned("history", says="MB"):
        outcome = perform(small(method="fedrecovery", pretraining=RECORDING), tmp_path / "run")
    kept, _ = read_state(tmp_path / "run/omega0.safetensors")
    assert {name.partition("/")[0] for name in kept.memory} == {"share", "residuals"}
    assert outcome.status == "done"


def test_clusters_are_retrained_from_a_clustered_pre_training(tmp_path):
    clustered = {"rounds": 4, "lr": 0.05, "clusters": 2}
    outcome = perform(small(method="knot", pretraining=clustered), tmp_path / "run")
    kept, _ = read_state(tmp_path / "run/omega0.safetensors")
    members = {f"member/client-{number}" for number in range(4)}
    assert set(kept.memory) == {"cluster", "cluster-0", "cluster-1"} | members
    (anew,) = outcome.state.memory
    (other,) = {"cluster-0", "cluster-1"} - {anew}
    assert torch.equal(outcome.params, (kept.memory[other] + outcome.state.memory[anew]) / 2)


def test_slices_are_retrained_from_a_sliced_pre_training(tmp_path):
    sliced = {"rounds": 4, "lr": 0.05, "slices": 2}
    outcome = perform(small(method="sisa", pretraining=sliced), tmp_path / "run")
    kept, _ = read_state(tmp_path / "run/omega0.safetensors")
    rows = {f"slice/client-{number}" for number in range(4)}
    assert set(kept.memory) == {"slice", "slice-decays", "slice-0", "slice-0-1"} | rows
    assert torch.equal(kept.params, kept.memory["slice-0"])
    assert torch.equal(outcome.params, outcome.state.memory["slice-0"])
    assert not torch.equal(outcome.params, kept.params)
    more = training_of(prepare(small(method="sisa", pretraining={**sliced, "rounds": 6})))
    assert not more.folder.exists(), "slices begin in other rounds, so that nothing can be continued"


def test_public_examples_are_nobody_elses(tmp_path):
    public = {**SMALL["data"], "public": 40}
    setting = prepare(small(data=public, backdoor={"enabled": False}))

    def pictures(*sets) -> list[bytes]:
        return [picture.numpy().tobytes() for examples in sets for picture in examples.x]

    reserved = pictures(setting.population.public.train)
    assert len(set(reserved)) == 40
    held = pictures(
        *(
            examples
            for clients in (setting.population.pretraining, setting.population.unlearning)
            for data in clients.values()
            for examples in (data.train, *data.evaluations.values())
        )
    )
    assert not set(reserved) & set(held)
    everything = prepare(small(backdoor={"enabled": False})).population.pretraining
    all_pictures = pictures(*(s for d in everything.values() for s in (d.train, d.evaluations["test"])))
    assert set(reserved) < set(all_pictures)
    assert set(held) | set(reserved) == set(all_pictures)


def test_fedkdu_distils_on_the_public_examples(tmp_path):
    experiment = small(
        method="fedkdu",
        options={"epochs": 2},
        data={**SMALL["data"], "public": 40},
        pretraining={**RECORDING, "history": ["updates"]},
    )
    with warned("history", says="MB"):
        outcome = perform(experiment, tmp_path / "run")
    assert outcome.status == "done"
    assert [row["local_trainings"] for row in read_metrics(tmp_path / "run")[1:]] == [0, 0, 0, 3, 3]


def test_conflicts_can_be_counted_for_methods_that_ask_no_retained_client(tmp_path):
    plain = perform(small(method="ascent"), tmp_path / "plain")
    counted = perform(small(method="ascent", count_conflicts=True), tmp_path / "counted")
    assert torch.equal(plain.params, counted.params)
    for one, other in zip(plain.metrics[1:], counted.metrics[1:], strict=True):
        assert ("conflicts" in one) is (one["stage"] == "post-training")
        assert 0 <= other["conflicts"] <= 3
        for key in ("local_trainings", "bytes_down", "bytes_up", "bytes_stored", "distance", "r_acc"):
            assert one[key] == other[key]


def test_a_file_names_its_experiment_in_letters_of_a_folder(tmp_path):
    for file, name in (("my exp.toml", "my_exp"), ("..a/b.toml", "b"), ("é.toml", "experiment")):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text("seed = 2")
        assert read(path).name == name


def test_a_trigger_has_a_grey_that_is_a_number():
    with refused("invalid", says=r"backdoor.value = nan: .*finite"):
        check({"backdoor": {"value": float("nan")}}, "mine")


def test_a_run_starts_from_a_checkpoint(tmp_path, cache):
    perform(small(), tmp_path / "whole")
    start, _ = read_state(tmp_path / "whole/omega0.safetensors")
    module = prepare(small()).build(0)
    load(module, start)
    save_file(module.state_dict(), tmp_path / "mine.safetensors")
    shutil.rmtree(cache)
    for number, file in enumerate(["whole/omega0.safetensors", "mine.safetensors"]):
        started = small(checkpoint=tmp_path / file)
        assert started.checkpoint.sha256
        outcome = perform(started, tmp_path / f"run-{number}")
        assert model_hash(outcome.state) == read_outcome(tmp_path / "whole")["model_sha256"]
    assert not cache.exists()
    (tmp_path / "mine.safetensors").write_bytes(b"other")
    with refused("changed", says=r"mine.safetensors has changed since the run began"):
        perform(started, tmp_path / "changed")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"0.weight": None}, r"holds no tensor '0.weight'"),
        ({"head.weight": torch.zeros(3)}, r"holds a tensor 'head.weight', and the model has none"),
        ({"0.weight": torch.zeros(3)}, r"'0.weight': its shape is \(3,\), and the model's is \(6, 1, 5, 5\)"),
        ({"0.bias": torch.zeros(6, dtype=torch.int64)}, r"'0.bias': its type is torch.int64"),
        ({"0.bias": torch.full((6,), torch.nan)}, r"holds values that are not finite"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(tmp_path, changes, sentence):
    tensors = {**prepare(small()).build(0).state_dict(), **changes}
    kept = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(kept, tmp_path / "mine.safetensors")
    with refused("other-model", says=sentence):
        perform(small(checkpoint=tmp_path / "mine.safetensors"), tmp_path / "run")


def test_a_checkpoint_without_the_history_that_a_method_needs_is_refused(tmp_path):
    perform(small(), tmp_path / "whole")
    started = small(method="federaser", checkpoint=tmp_path / "whole/omega0.safetensors")
    with refused("unsuitable", says="needs norms"):
        perform(started, tmp_path / "run")


def test_files_are_found_beside_the_experiment_and_not_published(tmp_path):
    (tmp_path / "code.py").write_text("")
    save_file({"x": torch.zeros(1)}, tmp_path / "start.safetensors")
    path = tmp_path / "mine.toml"
    path.write_text('use = ["code.py"]\ncheckpoint = "start.safetensors"\n')
    experiment = read(path)
    assert [file.path for file in experiment.use] == [tmp_path / "code.py"]
    assert experiment.checkpoint.path == tmp_path / "start.safetensors"
    assert str(tmp_path) not in json.dumps(public(experiment.model_dump(mode="json")))
