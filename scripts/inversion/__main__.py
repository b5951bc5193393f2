"""Tries to reconstruct the pictures that a client asked to forget from what others see of the request.

``python scripts/inversion FOLDER`` (about 20 minutes of one core) measures every case that FOLDER does not
hold yet, then writes ``docs/results/inversion.json``, ``docs/figures/inversion.png`` and the tables of
``docs/evidence/inversion.md``. Without a folder it only writes the tables.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from federation import Scene, carry_out, original, public, setting
from gradient_attacks import (
    contributing,
    invert_features,
    match_gradient,
    recover_features,
    recover_labels,
    undo_projection,
)
from inversion_page import FIGURE, PAGE, STORED, draw, renewed, store
from quality import class_means, compare, identifies, longer, others_of_class
from torch import Tensor
from torch.nn import functional as F

from fedunlearn.core import vectors
from fedunlearn.core.seeds import generator
from fedunlearn.data import load
from fedunlearn.maths import unlearning_cross_entropy
from fedunlearn.runs import environment, read_json, read_tensors, write, write_json, write_tensors

TARGETS = (1, 3, 5)
SHAPE = (1, 28, 28)
CLASSES = range(10)


@dataclass(frozen=True)
class Case:
    """Requests of one size, and which attack is tried on which view."""

    network: str
    trained: bool
    examples: int
    attacks: Sequence[tuple[str, str]]

    @property
    def targets(self) -> Sequence[int]:
        """Large requests take minutes, and tell much about many examples each."""
        return TARGETS if self.examples < 128 else TARGETS[:2]

    def name(self, target: int) -> str:
        return f"{self.network}-{'trained' if self.trained else 'untrained'}-{self.examples}-{target}"


SERVER, STEP, POOLED = ("server", "features"), ("step", "features"), ("pooled", "features")
MATCHED = [("server", "matching"), ("step", "matching"), ("request", "matching")]
CASES = [
    *(Case("lenet5", True, n, [SERVER, POOLED, STEP, *MATCHED]) for n in (1, 2, 8, 32, 128)),
    Case("lenet5", True, 256, [SERVER]),
    *(Case("lenet5", False, n, [SERVER, *MATCHED[:2]]) for n in (1, 2, 8, 32, 128)),
    *(Case("mlp", True, n, [SERVER]) for n in (32, 128)),
]


def attack(case: Case, target: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What can be said of one request without pictures; the reconstructions by view and attack, and the
    lengths of the gradients of the examples."""
    begin = time.process_time()
    chosen = setting(case.network, target, case.examples)
    whole = any(view == "request" for view, _ in case.attacks)
    scene = carry_out(chosen, original(chosen, case.trained), whole=whole)
    known, y = public(chosen), scene.forgotten.y
    views = dict(scene.views)
    if POOLED in case.attacks:
        views["pooled"] = undo_projection(views["step"], scene.others, scene.model)
    pictures = {"lengths": _lengths(scene)}
    for view, kind in case.attacks:
        if kind == "matching":
            made = match_gradient(views[view], scene.model, y, SHAPE, seed=target)
        else:
            features = recover_features(views[view], scene.model, len(y), known.x)
            made = invert_features(features, scene.model, SHAPE) if len(features) else known.x[:0]
        pictures[f"{view} {kind}"] = made
    result = {
        "network": case.network,
        "trained": case.trained,
        "examples": case.examples,
        "target": target,
        "status": scene.status,
        "contributing": round(contributing(pictures["lengths"]), 2),
        "cosines": {view: _cosine(seen, views["server"]) for view, seen in views.items()},
        "labels": {view: _label_share(seen, scene) for view, seen in views.items()},
        "labels_guessed": _overlap([n % len(CLASSES) for n in range(len(y))], y.tolist()),
        "seconds": round(time.process_time() - begin, 1),
    }
    return result, pictures


def judge(case: Case, target: int, pictures: Mapping[str, Tensor]) -> dict[str, Any]:
    """The quality of reconstructions and of two guesses that need nothing but the labels.

    ``longer`` is how often an example that the server identifies has a longer gradient than one that it does
    not.
    ``control`` is how many pictures would be identified if the target had asked to forget others of the same
    classes: reconstructions that show nothing resemble some picture, too.
    """
    chosen = setting(case.network, target, case.examples)
    (name,) = chosen.population.targets
    x, y = chosen.population.unlearning[name].train
    known, whole = public(chosen), load("fashion-demo")
    everything = torch.cat([whole.train.x, whole.test.x])
    others = torch.cdist(everything.flatten(1), x.flatten(1)).min(1).values > 0
    labels = torch.cat([whole.train.y, whole.test.y])[others]
    control = others_of_class(y, everything[others], labels, generator("control", target))
    guesses = {
        "class mean": class_means(y, known.x, known.y),
        "other picture": others_of_class(y, known.x, known.y, generator("other pictures", target)),
    }
    tried = {kind: pictures[kind] for kind in map(" ".join, case.attacks)}
    found = {}
    for kind, made in {**guesses, **tried}.items():
        quality = compare(x, made, everything, known.x.mean(0))[0]
        chance = compare(control, made, everything, known.x.mean(0))[0].identified
        found[kind] = {key: round(value, 4) for key, value in {**asdict(quality), "control": chance}.items()}
    _, server = compare(x, pictures["server features"], everything, known.x.mean(0))
    more = longer(pictures["lengths"], identifies(x, server, everything))
    return {"found": found, "longer": None if more is None else round(more, 4)}


def _cosine(one: Tensor, other: Tensor) -> float:
    return round(float(F.cosine_similarity(one.double(), other.double(), dim=0)), 5)


def _label_share(seen: Tensor, scene: Scene) -> float:
    y = scene.forgotten.y
    return _overlap(recover_labels(seen, scene.model, len(y)), y.tolist())


def _overlap(found: Sequence[int], true: Sequence[int]) -> float:
    """Share of the labels that are right, whatever their order."""
    return round(sum(min(found.count(label), true.count(label)) for label in set(true)) / len(true), 4)


def _lengths(scene: Scene) -> Tensor:
    """Of the gradient of each forgotten example."""
    lengths = []
    for x, y in zip(scene.forgotten.x, scene.forgotten.y, strict=True):
        loss = unlearning_cross_entropy(scene.model(x[None]), y[None])
        slopes = torch.autograd.grad(loss, vectors.trainable(scene.model))
        lengths.append(torch.cat([slope.reshape(-1) for slope in slopes]).norm())
    return torch.stack(lengths)


def measure_all(folder: Path) -> list[dict[str, Any]]:
    """The figures of every case; attacks whose pictures are in the folder are not repeated."""
    results = []
    for case in CASES:
        for target in case.targets:
            path = folder / f"{case.name(target)}.json"
            if not path.exists():
                result, pictures = attack(case, target)
                write_tensors(path.with_suffix(".safetensors"), pictures)
                write_json(path, result)
                print(f"{case.name(target)}: {result['seconds']:.0f} s of CPU time", flush=True)
            pictures, _ = read_tensors(path.with_suffix(".safetensors"))
            results.append({**read_json(path), **judge(case, target, pictures)})
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    folder: Path | None = parser.parse_args().folder
    torch.set_num_threads(1)
    if folder is not None:
        store(measure_all(folder), environment(), STORED)
        draw(folder, FIGURE)
    write(PAGE, renewed(PAGE.read_text(encoding="utf-8"), read_json(STORED)["requests"]).encode())


if __name__ == "__main__":
    main()
