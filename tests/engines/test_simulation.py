from __future__ import annotations

import multiprocessing
import os
import resource
import sys
from pathlib import Path

import pytest
import torch
from support.codes import refused, warned
from support.federations import holdings, network

from fedunlearn import Parallel, Sequential, simulate
from fedunlearn.engines import simulation, workers


def engine(**options: object) -> type:
    with simulate(network("mlp"), holdings("mlp"), **options) as federation:
        return type(federation)


def test_worker_processes_are_the_default_and_one_worker_is_this_process():
    assert engine(workers=2) is Parallel
    assert engine(workers=1) is Sequential
    if simulation.cores() > 1:
        assert engine() is Parallel


@pytest.mark.parametrize("asked", [400, 100_000])
def test_there_are_no_more_workers_than_clients(asked):
    def children() -> int:
        return len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())

    before = children()
    with simulate(network("mlp"), holdings("mlp"), workers=asked) as federation:
        assert len(federation.present()) == 5
        assert children() - before == 5


def test_one_client_trains_in_this_process():
    with simulate(network("mlp"), holdings("mlp", 1), workers=3) as federation:
        assert type(federation) is Sequential


def test_one_core_is_explained_in_a_line():
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with warned("workers", says="one after the other, because there is one core"):
            assert engine() is Sequential
    finally:
        os.sched_setaffinity(0, allowed)


def test_another_system_is_explained_in_a_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with warned("workers", says="one after the other, because worker processes need Linux"):
        assert engine(workers=2) is Sequential


@pytest.mark.filterwarnings("ignore:worker process .* ended with code 7")
def test_workers_that_die_at_once_are_explained_in_a_line(monkeypatch):
    monkeypatch.setattr(workers, "_serve", lambda *_: os._exit(7))
    why = r"because worker processes do not work here \(.*ended with code 7"
    with warned("workers", says=why):
        assert engine(workers=2) is Sequential


def test_a_worker_of_somebody_else_does_not_start_workers():
    def inside(line: multiprocessing.connection.Connection) -> None:
        with pytest.warns(UserWarning, match="because this process is a worker itself"):
            line.send(engine(workers=2).__name__)

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=inside, args=(theirs,), daemon=True)
    process.start()
    assert ours.poll(30)
    assert ours.recv() == "Sequential"
    process.join()


@pytest.mark.parametrize("device", ["cuda", "mps"])
def test_an_absent_device_is_refused(device):
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    with refused("environment", says=f"device '{device}' is not available .*: use 'cpu'"):
        engine(device=device)


def test_an_unknown_device_is_refused():
    with refused("unknown", says="unknown device 'cdua'; did you mean 'cuda'"):
        engine(device="cdua")


def test_an_unknown_precision_is_refused():
    with refused("unknown", says="unknown precision 'float32'"):
        engine(precision="float32")


def test_a_system_that_gives_no_more_files_is_explained_in_a_line():
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = set(map(int, os.listdir("/proc/self/fd")))
    two_free = next(n for n in range(2, allowed[0]) if n - len([fd for fd in used if fd < n]) == 2)
    resource.setrlimit(resource.RLIMIT_NOFILE, (two_free, allowed[1]))
    try:
        with warned("workers", says=r"because worker processes do not work here \(.*Too many open files"):
            assert engine(workers=2) is Sequential
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)


@pytest.mark.parametrize("workers", [0, "2", 1.5])
def test_no_workers_are_refused(workers):
    with refused("invalid", says=r"workers = .*: it must be a whole number, 1 or more"):
        engine(workers=workers)
    with refused("invalid", says=r"workers = .*: it must be a whole number, 1 or more"):
        Parallel(network("mlp"), holdings("mlp"), workers=workers)


@pytest.mark.parametrize(
    ("trial", "said"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", r"was killed \(SIGILL\): use 'fp32'"),
        ("raise RuntimeError('no kernel')", r"ended with code 1 \(RuntimeError: no kernel\): use 'fp32'"),
    ],
)
def test_reduced_precision_is_tried_in_a_process_of_its_own(trial, said, monkeypatch):
    simulation._reduced_precision_fails.cache_clear()
    monkeypatch.setattr(simulation, "TRIAL", trial)
    with refused("environment", says=said):
        engine(precision="bf16")
    simulation._reduced_precision_fails.cache_clear()
