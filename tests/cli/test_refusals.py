"""Every bad input ends in one sentence that says what to do."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("data.dataset=fashon-demo", "unknown dataset 'fashon-demo'; did you mean 'fashion-demo'?"),
        ("method=fedods", "unknown method 'fedods'; did you mean 'fedosd'?"),
        ("model=lenet", "unknown model 'lenet'; did you mean 'lenet5'?"),
        ("data.partition=pat50", "unknown partition 'pat50'; did you mean 'pat-50'?"),
        ("unlearning.rouns=3", "unknown key 'unlearning.rouns'; did you mean 'rounds'?"),
        ("sede=3", "unknown key 'sede'; did you mean 'seed'?"),
        ("seed", "override 'seed' has no '='"),
        ("seed.deep=3", "seed"),
        ("options.ancor=always", "no option 'ancor'; did you mean 'anchor'?"),
        ("request.targets=0", "request.targets"),
        ("request.targets=4", "4 of 4 clients cannot be targets: name 1 to 3"),
        ("data.clients=3", "10 classes among 3 clients"),
        ("training.batch_size=400", "batch_size 400 is larger than the training set of client-"),
        ("model=cnn", "model 'cnn' takes 3x32x32 inputs, not 1x28x28"),
    ],
)
def test_a_bad_setting(refused_here, small, change, sentence):
    partition = ["data.partition=pat-20"] if change == "data.clients=3" else []
    assert sentence in refused_here("run", small, change, *partition)


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
        (["run", "."], "cannot read ."),
        (["resume", "nowhere"], "not a run folder"),
        (["report", "nowhere"], "no run and no comparison"),
        (["report"], "Missing argument"),
    ],
)
def test_bad_words(refused_here, words, sentence):
    assert sentence in refused_here(*words)


def test_broken_toml(refused_here, small):
    small.write_text("[data\n")
    assert "small.toml is not TOML" in refused_here("run", small)


def test_a_comparison_is_no_experiment(refused_here, small):
    small.write_text("[methods.fedosd]\n")
    assert "is a comparison: run it with `fedunlearn compare" in refused_here("run", small)


def test_data_that_are_not_here(refused_here, small, tmp_path):
    sentence = refused_here("run", small, "data.dataset=mnist", FEDUNLEARN_DATA=str(tmp_path))
    assert "was not found in" in sentence
    assert "fedunlearn data get mnist" in sentence


def test_a_folder_that_cannot_be_written(refused_here, small, tmp_path):
    (tmp_path / "file").write_text("")
    assert "file" in refused_here("run", small, "--out", "file/run")
