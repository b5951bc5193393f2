"""The package imports and trains where the tools of Linux are missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ELSEWHERE = """
import multiprocessing.context, os, signal, sys, warnings
sys.modules["fcntl"] = None
import torch
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # filelock: only soft file lock is available
    import filelock
for name in ("fork", "memfd_create", "pidfd_open", "sched_getaffinity", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGKILL", "pthread_sigmask"):
    delattr(signal, name)
del multiprocessing.context.ForkProcess

import fedunlearn, fedunlearn.cli, fedunlearn.data, fedunlearn.engines, fedunlearn.experiment
import fedunlearn.runs
sys.platform = "win32"

from pathlib import Path
from support.federations import forget, holdings, network
from fedunlearn.runs import locked, read_state, write_state

warnings.simplefilter("error")
with fedunlearn.simulate(network("perceptron"), holdings("perceptron"), workers=1) as federation:
    outcome = forget("fedosd", "perceptron", federation)
with locked(Path("run/lock")):
    write_state(Path("run/model.safetensors"), outcome.state)
assert torch.equal(read_state(Path("run/model.safetensors"))[0].params, outcome.params)
print(outcome.status)
"""


def test_a_system_without_the_tools_of_linux_is_enough(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(Path(__file__).parent)!r}]\n{ELSEWHERE}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.stdout, done.stderr) == ("done\n", "")
