"""Other simulators on the same perceptron workload; all take turns round by round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from timing import figures
from workloads import BATCH, holdings, network

PEERS = Path(__file__).parent / "peers"
NAMES = ("w0", "b0", "w1", "b1", "w2", "b2")


class Contestant:
    """A process that runs a round on command."""

    def __init__(self, python: str, script: str, workload: Path, *options: str) -> None:
        self.result = workload.with_name(f"{script}{'-'.join(options)}.safetensors")
        self.process = subprocess.Popen(
            [python, str(PEERS / script), str(workload), str(self.result), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.about = self._hear()
        self.seconds: list[tuple[float, float]] = []
        self.difference = 0.0

    def play(self) -> None:
        self._say("round")
        answer = self._hear()
        self.seconds.append((float(answer["wall"]), float(answer["cpu"])))

    def stop(self) -> dict[str, torch.Tensor]:
        self._say("stop")
        if self.process.wait(120):
            raise RuntimeError(f"{self.about['name']} ended with code {self.process.returncode}")
        return load_file(self.result)

    def _say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def _hear(self) -> dict[str, str | float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended without a reply")
        heard: dict[str, str | float] = json.loads(line)
        return heard


def compare(
    python: str, scripts: Sequence[str], repeats: int, workers: int, launches: int = 1, samples: int = 60_000
) -> list[dict[str, object]]:
    """Seconds of each simulator, and the difference of its final model from that of a plain PyTorch loop.

    Ours comes last. With one worker all take turns on the same core; several launches average out the
    effect of memory layout.
    """
    allowed = os.sched_getaffinity(0)
    if workers == 1:
        os.sched_setaffinity(0, {min(allowed)})
    try:
        games = [_play(python, scripts, repeats, workers, samples) for _ in range(launches)]
    finally:
        os.sched_setaffinity(0, allowed)
    return [
        {
            **players[0].about,
            **figures([seconds for player in players for seconds in player.seconds]),
            "each": [player.seconds for player in players],
            "difference": max(player.difference for player in players),
        }
        for players in zip(*games, strict=True)
    ]


def _play(python: str, scripts: Sequence[str], repeats: int, workers: int, samples: int) -> list[Contestant]:
    with tempfile.TemporaryDirectory() as folder:
        workload = _write(Path(folder) / "workload.safetensors", samples)
        players = [Contestant(python, script, workload) for script in scripts]
        players.append(Contestant(sys.executable, "with_fedunlearn.py", workload, str(workers)))
        try:
            for player in players * (repeats + 1):
                player.play()
            models = [player.stop() for player in players]
        finally:
            for player in players:
                player.process.kill()
                player.process.wait()
    for player, model in zip(players, models, strict=True):
        del player.seconds[0]  # the first round loads libraries
        player.difference = max(float((model[name] - models[0][name]).abs().max()) for name in NAMES)
    return players


def _write(path: Path, samples: int) -> Path:
    data = holdings("mlp", samples, 10).values()
    params = dict(zip(NAMES, (p.detach().clone() for p in network("mlp").parameters()), strict=True))
    sizes = torch.tensor([0, *(len(held.train.y) for held in data)])
    save_file(
        {
            "x": torch.cat([held.train.x for held in data]).flatten(1),
            "y": torch.cat([held.train.y for held in data]),
            "bounds": sizes.cumsum(0),
            **params,
        },
        path,
        metadata={"lr": "0.05", "batch_size": str(BATCH)},
    )
    return path
