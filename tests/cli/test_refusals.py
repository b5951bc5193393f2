"""Every bad input ends in one sentence that says what to do."""

from __future__ import annotations

import pytest


@pytest.mark.wording
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("data.dataset=fashon-demo", "unknown dataset 'fashon-demo'; did you mean 'fashion-demo'?"),
        ("method=fedods", "unknown method 'fedods'; did you mean 'fedosd'?"),
        ("model=lenet", "unknown model 'lenet'; did you mean 'lenet5'?"),
        ("data.partition=pat50", "unknown partition 'pat50'; did you mean 'pat-50'?"),
        ("unlearning.rouns=3", "unknown key 'unlearning.rouns'; did you mean 'unlearning.rounds'?"),
        ("sede=3", "unknown key 'sede'; did you mean 'seed'?"),
        ("seed", "override 'seed' has no '='"),
        ("seed.deep=3", "seed"),
        ("options.ancor=always", "no option 'ancor'; did you mean 'anchor'?"),
        ("request.targets=0", "request.targets"),
        ("request.targets=4", "4 of 4 clients are targets, and one must stay: name at most 3"),
        ("request.targets=[]", "targets = []: name at least one client"),
        ("data.clients=3", "10 classes among 3 clients"),
        ("training.batch_size=400", "batch_size 400 is larger than the training set of client-"),
        ("model=cnn", "model 'cnn' takes 3x32x32 inputs, not 1x28x28"),
        ("unlearning.lr=1e300", "unlearning.lr = 1e+300: input should be less than"),
        ("unlearning.lr=nan", "unlearning.lr = nan: input should be a finite number"),
        ("=3", "override '=3' names no setting"),
        ("training.decay=1e-300", "the learning rate is zero after"),
        ("options.objective=1e300", "option objective = 1e+300: it must be between"),
        (f"seed={'9' * 5000}", "override of seed: the value has too many digits"),
        (f"seed=0x{'f' * 5000}", "seed = (a very large int)"),
        (f"unlearning.rounds={'[' * 1000}", "too many digits or levels"),
        ('data.directory="a\\u0000b"', "a path cannot contain a NUL character"),
    ],
)
def test_a_bad_setting(refused_here, small, change, sentence):
    partition = ["data.partition=pat-20"] if change == "data.clients=3" else []
    assert sentence in refused_here("run", small, change, *partition)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["rum"], "Did you mean 'run'"),
        (["run", "x.toml", "--uot", "y"], "--out"),
        (["demo", "--sed", "2"], "--seed"),
        (["demo", "--seed", "two"], "--seed"),
        (["run"], "Missing argument"),
        (["data", "gte"], "Did you mean 'get'"),
        (["data", "get", "minst"], "did you mean 'mnist'?"),
        (["data", "where", "minst"], "did you mean 'mnist'?"),
        (["run", "nowhere.toml"], "cannot read nowhere.toml"),
        (["run", "x.toml", "--seed", "3"], "seed is a setting, not an option: write seed=3"),
        (["compare", "x.toml", "--data.partition=iid"], "write data.partition=iid"),
        (["methods", "fedods"], "unknown method 'fedods'; did you mean 'fedosd'?"),
        (["run", "."], "cannot read ."),
        (["resume", "nowhere"], "nowhere does not exist"),
        (["report", "nowhere"], "name the folder of a run, of a comparison or of a Server"),
        (["report"], "Missing argument"),
    ],
)
def test_bad_words(refused_here, words, sentence):
    assert sentence in refused_here(*words)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[data\n", "is not TOML"),
        (f"seed = {'9' * 5000}\n", "is not TOML"),
        (f"seed = {'[' * 1000}\n", "is nested too deeply"),
        ('extends = "a\\u0000b"\n', "is not TOML"),
    ],
)
def test_broken_toml(refused_here, small, text, sentence):
    small.write_text(text)
    assert sentence in refused_here("compare", small)


@pytest.mark.wording
def test_a_comparison_is_no_experiment(refused_here, small):
    small.write_text("[methods.fedosd]\n")
    assert "is a comparison: run it with `fedunlearn compare" in refused_here("run", small)


@pytest.mark.wording
def test_data_that_are_not_here(refused_here, small, tmp_path):
    sentence = refused_here("run", small, "data.dataset=mnist", FEDUNLEARN_DATA=str(tmp_path))
    assert "was not found in" in sentence
    assert "fedunlearn data get mnist" in sentence
    nowhere = tmp_path / "nowhere"
    sentence = refused_here("run", small, "data.dataset=fmnist", FEDUNLEARN_DATA=str(nowhere))
    assert f"FEDUNLEARN_DATA names {nowhere}, which is not a folder" in sentence


@pytest.mark.wording
def test_a_minimum_that_the_retained_clients_cannot_meet_is_refused_before_pre_training(
    refused_here, small, tmp_path
):
    few = ["data.clients=2", "data.partition=iid", "participation.minimum=2"]
    sentence = refused_here("run", small, *few, "--out", "run")
    assert "1 client that can train is present and the minimum is 2: wait for others" in sentence
    assert not (tmp_path / "run/omega0.safetensors").exists()


def test_a_folder_that_cannot_be_written(refused_here, small, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in refused_here("run", small, "--out", "file/run")
