"""Runs that are stopped, damaged, crowded out or led astray."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from fedunlearn.record import locked, read_tensors

LONG = ("unlearning.rounds=60", "recovery.rounds=20")


def start(environment, folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "fedunlearn.cli", *map(str, arguments)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs deaf to Ctrl-C, and children inherit that from a test run among them.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def wait_for(condition, process, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.005)


def rows(folder):
    path = folder / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def model(folder):
    return json.loads((folder / "outcome.json").read_text())["model_sha256"]


def test_ctrl_c_then_resume_ends_in_the_model_of_an_unbroken_run(fedunlearn, environment, small, tmp_path):
    assert fedunlearn("run", small, *LONG, "--out", "whole").returncode == 0
    process = start(environment, tmp_path, "run", small, *LONG, "--out", "cut")
    wait_for(lambda: rows(tmp_path / "cut") >= 5, process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "fedunlearn: interrupted; go on with: fedunlearn resume cut\n"
    assert 5 <= rows(tmp_path / "cut") < 81
    assert not (tmp_path / "cut/outcome.json").exists()
    assert fedunlearn("resume", "cut").returncode == 0
    assert model(tmp_path / "cut") == model(tmp_path / "whole")
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole") == 81


def test_ctrl_c_in_pre_training_then_resume(environment, fedunlearn, small, tmp_path):
    own = {**environment, "FEDUNLEARN_CACHE": str(tmp_path / "cache")}
    process = start(own, tmp_path, "run", small, "pretraining.rounds=80", "--out", "cut")
    wait_for(lambda: any(rows(path) >= 5 for path in tmp_path.glob("cache/pretraining/*")), process)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "fedunlearn: interrupted; go on with: fedunlearn resume cut\n"
    result = fedunlearn("resume", "cut", FEDUNLEARN_CACHE=str(tmp_path / "cache"))
    assert result.returncode == 0, result.stderr


def test_a_finished_folder_and_one_of_another_run(refused, fedunlearn, small, tmp_path):
    assert fedunlearn("run", small, "--out", "run").returncode == 0
    assert "is finished" in refused("run", small, "--out", "run")
    for leftover in ("report.md", "curves.png"):
        (tmp_path / "run" / leftover).unlink()
    assert "post-trained" in fedunlearn("resume", "run").stdout
    assert (tmp_path / "run/report.md").exists()
    assert (tmp_path / "run/curves.png").exists()
    (tmp_path / "run/omega0.safetensors").unlink()  # somebody needed the room
    asked = (tmp_path / "run/experiment.json").read_text()
    assert "another configuration" in refused("run", small, "seed=9", "--out", "run")
    assert (tmp_path / "run/experiment.json").read_text() == asked


def test_two_processes_on_one_folder(refused, small, tmp_path):
    with locked(tmp_path / "run/lock"):
        assert "another process is working in run" in refused("run", small, "--out", "run")


def test_divergence_keeps_the_last_good_checkpoint_and_damage_is_noticed(refused, small, tmp_path, cache):
    sentence = refused("run", small, "recovery.lr=1e6", "recovery.rounds=30", "--out", "run", code=3)
    assert "diverged" in sentence
    assert "lower the learning rate" in sentence
    newest = max((tmp_path / "run/checkpoints").iterdir())
    assert bool(read_tensors(newest)[0]["params"].isfinite().all())
    assert "diverged" in refused("resume", "run", code=3)

    foreign = tmp_path / "foreign"
    shutil.copytree(tmp_path / "run", foreign)
    other = next(cache.glob("pretraining/*/checkpoints/*.safetensors"))
    for path in (foreign / "checkpoints").iterdir():
        shutil.copy(other, path)
    assert "belongs to another run" in refused("resume", "foreign")

    for path in (tmp_path / "run/checkpoints").iterdir():
        os.truncate(path, path.stat().st_size // 2)
    assert "is not a whole safetensors file" in refused("resume", "run")


def test_a_full_disk_costs_nothing_that_was_written(refused, fedunlearn, small, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    size = "size=600k"  # Room for ω⁰, not for a checkpoint and a model beside it.
    if subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("a small disk can be mounted by root only")
    try:
        sentence = refused("run", small, "--out", disk / "run")
        assert "No space left on device" in sentence
        assert str(disk) in sentence
        subprocess.run(["mount", "-o", "remount,size=20m", disk], check=True)
        assert fedunlearn("resume", disk / "run").returncode == 0
        assert fedunlearn("run", small, "--out", "roomy").returncode == 0
        assert model(disk / "run") == model(tmp_path / "roomy")
    finally:
        subprocess.run(["umount", disk], check=True)
