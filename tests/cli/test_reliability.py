"""Runs that are stopped, damaged, crowded out or led astray."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys

import pytest
from support.codes import says
from support.folders import drop
from support.interruptions import stopped

from fedunlearn.runs import locked, read_tensors


def rows(folder):
    return (folder / "metrics.jsonl").read_text().count("\n")


def model(folder):
    return json.loads((folder / "outcome.json").read_text())["model_sha256"]


INT, TERM = signal.SIGINT, signal.SIGTERM


@pytest.mark.parametrize(
    ("signals", "code", "word"),
    [
        ([INT], 130, "interrupted"),
        ([INT] * 5, 130, "interrupted"),
        ([TERM], 143, "terminated"),
        ([TERM, INT], 143, "terminated"),
    ],
)
def test_a_stopped_run_is_resumed_to_the_same_model(here, small, whole, tmp_path, signals, code, word):
    with stopped("unlearning", 2, *signals):
        result = here("run", small, "--out", "cut")
    assert (result.returncode, result.stderr) == (
        code,
        f"fedunlearn: {word}; continue with: fedunlearn resume cut\n",
    )
    assert rows(tmp_path / "cut") == 3
    assert not (tmp_path / "cut/outcome.json").exists()
    with stopped("unlearning", 2, signal.SIGINT):  # the second round is not repeated
        assert here("resume", "cut").returncode == 0
    assert model(tmp_path / "cut") == model(whole)
    assert rows(tmp_path / "cut") == rows(whole) == 6


def test_a_run_stopped_in_pre_training_is_resumed(here, small, tmp_path):
    own = {"FEDUNLEARN_CACHE": str(tmp_path / "cache")}
    with stopped("pre-training", 2, signal.SIGINT):
        result = here("run", small, "--out", "cut", **own)
    assert result.returncode == 130
    assert result.stderr == "fedunlearn: interrupted; continue with: fedunlearn resume cut\n"
    with stopped("pre-training", 2, signal.SIGINT):
        result = here("resume", "cut", **own)
    assert result.returncode == 0, result.stderr


def test_a_stopped_comparison_is_continued_by_the_same_command(here, small):
    small.write_text(small.read_text() + "[methods.fedosd]\n[methods.finetune]\n")
    with stopped("post-training", 1, signal.SIGTERM):
        result = here("compare", small, "--out", "both")
    assert result.returncode == 143
    assert result.stderr == "fedunlearn: terminated; the same command continues in both\n"
    result = here("compare", small, "--out", "both")
    assert result.returncode == 0
    assert "2 runs" in result.stdout


EARLY = """
import builtins, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedunlearn.cli import main
whole, (module, times, *sys.argv) = builtins.__import__, sys.argv[1:]
def stop(name, *rest, **more):
    if name == module and rest[-1] == 0:
        builtins.__import__ = whole
        for _ in range(int(times)):
            os.kill(os.getpid(), signal.SIGINT)
    return whole(name, *rest, **more)
builtins.__import__ = stop
main()
"""


@pytest.mark.parametrize("times", [1, 5])
@pytest.mark.parametrize("module", ["typer", "torch"])
def test_ctrl_c_while_the_program_starts_is_one_sentence(environment, small, tmp_path, module, times):
    result = subprocess.run(
        [sys.executable, "-c", EARLY, module, str(times), "fedunlearn", "run", small, "--out", "run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (result.returncode, result.stderr) == (130, "fedunlearn: interrupted\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.wording
def test_a_suggested_command_can_be_pasted(refused_here, here, small, whole, tmp_path):
    shutil.copytree(whole, tmp_path / "it's  mine")
    suggested = refused_here("run", small, "--out", "it's  mine").partition("with: ")[2]
    program, *words = shlex.split(suggested)
    assert (program, words) == ("fedunlearn", ["resume", "it's  mine"])
    assert here(*words).returncode == 0


@pytest.mark.wording
def test_a_command_that_the_desk_suggests_can_be_pasted(refused_here):
    suggested = refused_here("requests", "it's  ours").partition("with: ")[2]
    assert shlex.split(suggested) == ["fedunlearn", "desk", "it's  ours"]


@pytest.mark.wording
def test_a_finished_folder_and_one_of_another_run(refused_here, here, small, tmp_path):
    assert here("run", small, "--out", "run").returncode == 0
    assert "is finished" in refused_here("run", small, "--out", "run")
    for leftover in ("report.html", "curves.svg"):
        (tmp_path / "run" / leftover).unlink()
    assert "post-trained" in here("resume", "run").stdout
    assert (tmp_path / "run/report.html").exists()
    assert (tmp_path / "run/curves.svg").exists()
    drop(tmp_path / "run", "omega0.safetensors")
    asked = (tmp_path / "run/experiment.json").read_text()
    assert "another configuration" in refused_here("run", small, "seed=9", "--out", "run")
    assert (tmp_path / "run/experiment.json").read_text() == asked


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"3", b"\xff\xfe", b"[" * 100_000, b"9" * 5000])
def test_a_damaged_experiment_is_refused(refused_here, small, here, tmp_path, content):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/experiment.json").write_bytes(content)
    refused_here("resume", "run")


def test_two_processes_on_one_folder(refused_apart, small, tmp_path):
    with locked(tmp_path / "run/lock"):
        assert "[in-use]" in refused_apart("run", small, "--out", "run")


@pytest.mark.wording
@pytest.mark.filterwarnings("default:4 workers are enough")
def test_more_workers_than_clients_are_not_started(here, small):
    result = here("run", small, "unlearning.rounds=1", "--workers", 100_000)
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("note: 4 workers are enough for 4 clients") == 1


@pytest.mark.wording
def test_divergence_keeps_the_last_good_checkpoint_and_notices_damage(refused_here, small, tmp_path, cache):
    sentence = refused_here("run", small, "recovery.lr=1e6", "recovery.rounds=30", "--out", "run", code=3)
    assert "diverged" in sentence
    assert "lower the learning rate" in sentence
    newest = max((tmp_path / "run/checkpoints").iterdir())
    assert bool(read_tensors(newest)[0]["params"].isfinite().all())
    assert "diverged" in refused_here("resume", "run", code=3)

    foreign = tmp_path / "foreign"
    shutil.copytree(tmp_path / "run", foreign)
    other = next(cache.glob("pretraining/*/checkpoints/*.safetensors"))
    for path in (foreign / "checkpoints").iterdir():
        shutil.copy(other, path)
    assert "belongs to another run" in refused_here("resume", "foreign")

    for path in (tmp_path / "run/checkpoints").iterdir():
        os.truncate(path, path.stat().st_size // 2)
    assert "safetensors has " in refused_here("resume", "run")


def test_a_full_disk_costs_nothing_that_was_written(refused_here, here, small, whole, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = "size=600k"  # Room for ω⁰, not for a checkpoint and a model beside it.
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        sentence = refused_here("run", small, "--out", disk / "run")
        assert "[file]" in sentence
        assert says(sentence, "No space left on device", str(disk))
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        assert here("resume", disk / "run").returncode == 0
        assert model(disk / "run") == model(whole)
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)
