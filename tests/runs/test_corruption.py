"""Every file of run folders and of the cache, damaged in every way at several stages of a run.

A damage counts as noticed if what reads the folder refuses it in one sentence, or tells about it and goes on
with what is good. It is harmless if everything that is read is as before. Nothing else may happen.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.codes import says
from support.damages import ANYWHERE, ONCE, TEXT

from fedunlearn import FedUnlearnError
from fedunlearn.experiment import check, perform, prepare, recorded
from fedunlearn.experiment.pretraining import pretraining
from fedunlearn.report import collect
from fedunlearn.runs import (
    Recorder,
    claim,
    digest,
    json_bytes,
    model_hash,
    read_manifest,
    read_state,
    read_tensors,
    verify,
)

SETTINGS = {
    "name": "damage",
    "model": "lenet5",
    "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 4, "fraction": 0.02},
    "training": {"batch_size": 20},
    "pretraining": {"rounds": 3, "lr": 0.05},
    "unlearning": {"rounds": 2, "lr": 0.01},
    "recovery": {"rounds": 2, "lr": 0.01},
}

Reader = Callable[[Path], Any]


@dataclass(frozen=True)
class Stage:
    """A folder at some time, the same folder earlier, and that of another run at the same time."""

    folder: Path
    earlier: Path
    other: Path
    read: Reader

    def files(self) -> list[str]:
        return sorted(
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and path.name != "lock"
        )


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    """Copies of two runs and of their caches, as kills would have left them."""
    root = tmp_path_factory.mktemp("stages")
    with pytest.MonkeyPatch.context() as patch:
        for seed in (1, 2):
            patch.setenv("FEDUNLEARN_CACHE", str(root / f"{seed}/cache"))
            _course(root / str(seed), seed)
        training = pretraining(prepare(check(SETTINGS | {"seed": 1}, "test")))

    def cached(folder: Path) -> Any:
        """What a run takes from the cache, or what it would continue."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("FEDUNLEARN_CACHE", str(folder.parents[1]))
            if training.kept:
                return model_hash(training.model())
        verify(folder, resuming=True)
        return _progress(folder, training.identity)

    home = Path("pretraining") / training.identity[:20]
    # What is copied keeps the place that its name says, so the other training is put there, too.
    for moment in ("cache-1", "cache-2", "cache-end"):
        (there,) = (root / "2" / moment / "pretraining").iterdir()
        there.rename(there.with_name(home.name))
    one, two = root / "1", root / "2"
    order = ["begun", "pre-trained", "unlearning", "post-training", "ended", "audited"]
    found = {
        name: Stage(one / name, one / earlier, two / name, whole_run)
        for earlier, name in zip(["begun", *order], order, strict=False)
    }
    caches = {"cache-2": "cache-1", "cache-end": "cache-2"}
    return found | {
        name: Stage(one / name / home, one / earlier / home, two / name / home, cached)
        for name, earlier in caches.items()
    }


def _course(root: Path, seed: int) -> None:
    """A whole run in ``root``/run; copies are made on the way."""
    run, cache = root / "run", root / "cache"

    def keep(event: Any) -> None:
        stage, number = event.metrics["stage"], event.metrics["round"]
        if stage == "pre-training" and number == 1:
            shutil.copytree(run, root / "begun")
            shutil.copytree(cache, root / "cache-1")
        elif stage == "pre-training" and number == 2:
            shutil.copytree(cache, root / "cache-2")
        elif number == 2:
            shutil.copytree(run, root / stage)

    def keep_early(event: Any) -> None:
        """Without a checkpoint, and with a row that no manifest lists."""
        if event.metrics["stage"] == "start":
            shutil.copytree(root / "slow", root / "pre-trained")

    experiment = check(SETTINGS | {"seed": seed}, "test")
    perform(experiment, run, [keep], checkpoint_seconds=0, workers=1)
    perform(experiment, root / "slow", [keep_early], checkpoint_seconds=1000, workers=1)
    shutil.copytree(cache, root / "cache-end")
    shutil.copytree(run, root / "ended")
    claim(run).write({"evidence.json": json_bytes({"verdict": "under", "seed": seed})})
    shutil.copytree(run, root / "audited")


def whole_run(folder: Path) -> Any:
    """What the commands read in a run folder."""
    experiment = recorded(folder)
    (run,) = collect([folder]).runs
    tensors = {}
    for name in ("omega0.safetensors", "model.safetensors"):
        if (folder / name).exists():
            tensors[name] = digest(read_tensors(folder / name)[0])
    identity = _identity(folder)
    return (
        experiment.model_dump(mode="json"),
        run.config,
        run.environment,
        run.outcome,
        run.rows,
        tensors,
        _progress(folder, identity) if identity else None,
        (folder / "evidence.json").exists() and (folder / "evidence.json").read_bytes(),
    )


def _identity(folder: Path) -> str:
    for path in sorted((folder / "checkpoints").glob("*.safetensors")):
        try:
            return read_state(path)[1]["identity"]
        except FedUnlearnError:
            continue
    return ""


def _progress(folder: Path, identity: str) -> Any:
    """Where a run would continue."""
    progress = Recorder(folder, identity).progress
    return progress and (progress.phase, progress.elapsed_rounds, model_hash(progress.state))


@dataclass(frozen=True)
class Case:
    stage: str
    kind: str
    file: str
    content: bytes | None


def cases(stages: dict[str, Stage], each: int) -> Iterator[Case]:
    """All damages; those that may strike anywhere are tried so often in each file."""
    for name, stage in stages.items():
        for file in stage.files():
            whole = (stage.folder / file).read_bytes()
            if not whole:
                continue
            text = not file.endswith(".safetensors")
            kinds = ANYWHERE | (TEXT if text else {})
            draw = random.Random(f"{name} {file}")
            struck = [(kind, damage) for kind, damage in kinds.items() for _ in range(each)]
            for kind, damage in [*struck, *ONCE.items()]:
                if (kind, file) != ("delete", "evidence.json"):  # which everybody may
                    yield Case(name, kind, file, damage(draw, whole))
            yield Case(name, "append", file, whole + whole[-40:])
            for kind, source in {"earlier": stage.earlier, "other run": stage.other}.items():
                if (source / file).exists():
                    yield Case(name, kind, file, (source / file).read_bytes())
        for file in sorted({path.relative_to(stage.other).as_posix() for path in _added(stages, stage)}):
            yield Case(name, "added", file, (stages["audited"].other / file).read_bytes())


def _added(stages: dict[str, Stage], stage: Stage) -> list[Path]:
    """Files of the other run that this one does not have yet."""
    if "cache" in str(stage.folder):
        return []
    names = ["outcome.json", "omega0.safetensors", "evidence.json", "checkpoints/00000009.safetensors"]
    there = stages["audited"].other
    return [
        stage.other / name for name in names if (there / name).exists() and not (stage.folder / name).exists()
    ]


def noticed(stage: Stage, case: Case, before: Any) -> str:
    """What comes of a damage; the folder is as before afterwards."""
    path = stage.folder / case.file
    whole = path.read_bytes() if path.exists() else None
    if case.content == whole:
        return "none"
    try:
        if case.content is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(case.content)
        left = contents(stage.folder)
        refusal, now = "", None
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                now = stage.read(stage.folder)
            except FedUnlearnError as error:
                refusal = str(error)
        assert contents(stage.folder) == left, "reading a damaged folder changed it"
        if refusal:
            assert says(refusal, str(stage.folder))
            assert "\n" not in refusal
            return "refused"
        if told:
            return "told"
        return "harmless" if now == before and _is_harmless(stage, case, whole) else "missed"
    finally:
        if whole is None:
            path.unlink()
        else:
            path.write_bytes(whole)


def _is_harmless(stage: Stage, case: Case, whole: bytes | None) -> bool:
    """Rows after the last checkpoint, which a resumed run repeats, or an older manifest of the same files."""
    if case.file == "metrics.jsonl" and whole is not None and case.content is not None:
        listed = read_manifest(stage.folder).files["metrics.jsonl"].size
        return case.content[:listed] == whole[:listed]
    return (case.file, case.kind) == ("manifest.json", "earlier")


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"
    }


def assert_noticed(stages: dict[str, Stage], each: int, share: float = 1.0) -> Counter[str]:
    """Tries the damages, or a share of them, and counts what came of them."""
    before = {name: stage.read(stage.folder) for name, stage in stages.items()}
    counts: Counter[str] = Counter()
    draw = random.Random("which")
    for case in cases(stages, each):
        if draw.random() < share:
            result = noticed(stages[case.stage], case, before[case.stage])
            assert result != "missed", (case.stage, case.kind, case.file)
            counts[result] += 1
    return counts


def test_damage_is_noticed(stages):
    counts = assert_noticed(stages, each=2, share=0.5)
    print(dict(counts))
    assert counts["refused"] > 200


@pytest.mark.chaos
def test_damage_anywhere_is_noticed(stages):
    counts = assert_noticed(stages, each=20)
    print(dict(counts))
    assert counts["refused"] + counts["told"] >= 3000
