from __future__ import annotations

import json
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.children import in_child
from support.closed_form import Quadratics, request
from support.codes import refused
from support.folders import forget_manifest

from fedunlearn import FedUnlearnError, Schedule, State, method, unlearn
from fedunlearn.core import Event, Progress
from fedunlearn.experiment import check, perform
from fedunlearn.runs import Recorder, claim, locked, read_manifest, read_metrics, read_outcome, verify
from fedunlearn.runs import folders as module
from fedunlearn.runs import manifest as manifests
from fedunlearn.runs.running import RunFolder

PHASES = method["fedosd"](Schedule(5, 0.05, 4, 0.05))


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_manifest_lists_files_and_the_one_before(tmp_path):
    folder = claim(tmp_path, "mine")
    first = read_manifest(tmp_path)
    assert (first.identity, first.epoch, first.number, first.files) == ("mine", 1, 1, {})
    folder.write({"experiment.json": b"{}", "model.safetensors": folder.tensors({"w": torch.ones(2)})})
    announced, done = 2, read_manifest(tmp_path)
    assert (done.epoch, done.number, done.pending) == (1, 1 + announced, {})
    assert done.files["experiment.json"].size == 2
    assert done.previous != first.previous
    assert "experiment.json" in folder
    folder.write(remove=["experiment.json"])
    assert {*verify(tmp_path).files} == {"model.safetensors"}
    assert claim(tmp_path).path == tmp_path
    assert (read_manifest(tmp_path).identity, read_manifest(tmp_path).epoch) == ("mine", 2)


def test_what_is_as_it_was_is_not_written_again(tmp_path):
    folder = claim(tmp_path)
    folder.write({"experiment.json": b"{}"})
    before = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    folder.write({"experiment.json": b"{}"})
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            lambda run, other: (run / "outcome.json").unlink(),
            r"outcome\.json is missing: restore the file, or",
        ),
        (lambda run, other: (run / "outcome.json").write_text("{}"), r"has 2 bytes, and 11 were written"),
        (
            lambda run, other: (run / "outcome.json").write_bytes(b'{"seed": 3}'),
            r"outcome\.json is not as it was written",
        ),
        (
            lambda run, other: shutil.copy(other / "omega0.safetensors", run),
            r"omega0\.safetensors belongs to another run",
        ),
        (
            lambda run, other: shutil.copytree(other / "checkpoints", run / "checkpoints"),
            r"checkpoints/00000001\.safetensors is not in the manifest: the manifest is older",
        ),
        (lambda run, other: shutil.copy(other / "manifest.json", run), "manifest.json does not describe the"),
        (lambda run, other: (run / "manifest.json").unlink(), "manifest.json is missing, so the files"),
        (lambda run, other: (run / "manifest.json").write_text("{}"), "manifest.json is damaged, edited or"),
    ],
)
def test_each_damage_has_its_sentence(damage, sentence, tmp_path):
    for seed in (1, 2):
        folder = claim(tmp_path / f"{seed}", f"run {seed}")
        tensors = folder.tensors({"w": torch.full((3,), float(seed))})
        texts = dict.fromkeys(("experiment.json", "outcome.json"), b'{"seed": %d}' % seed)
        more = {"checkpoints/00000001.safetensors": tensors} if seed == 2 else {}
        folder.write({**texts, "omega0.safetensors": tensors, **more})
        verify(folder.path)
    damage(tmp_path / "1", tmp_path / "2")
    left = contents(tmp_path)
    for look in (verify, claim):
        with refused("damaged", says=sentence):
            look(tmp_path / "1")
    assert contents(tmp_path) == left


def test_a_process_that_another_has_replaced_writes_no_more(tmp_path):
    with locked(tmp_path / "lock"), Recorder(tmp_path, "me", seconds=0) as first:
        first.record(Event(Progress(0, 1, State(torch.zeros(1))), PHASES, {"round": 1}))
        (tmp_path / "lock").unlink()
        with locked(tmp_path / "lock"), Recorder(tmp_path, "me", seconds=0) as second:
            second.record(Event(Progress(0, 2, State(torch.ones(1))), PHASES, {"round": 2}))
            left = contents(tmp_path)
            with refused("in-use", says=r"claimed it since \(epoch 2 after 1\); it stops before"):
                first.record(Event(Progress(0, 2, State(torch.zeros(1))), PHASES, {"round": 3}))
            assert contents(tmp_path) == left
            second.record(Event(Progress(0, 3, State(torch.ones(1))), PHASES, {"round": 3}))
    verify(tmp_path)
    assert [row["round"] for row in read_metrics(tmp_path)] == [1, 2, 3]


def test_a_deleted_lock_lets_nobody_interleave(tmp_path):
    experiment = check(
        {
            "name": "two",
            "model": "lenet5",
            "data": {"dataset": "fashion-demo", "partition": "pat-50", "clients": 4, "fraction": 0.02},
            "training": {"batch_size": 20},
            "pretraining": {"rounds": 1, "lr": 0.05},
            "unlearning": {"rounds": 2, "lr": 0.01},
            "recovery": {"rounds": 1, "lr": 0.01},
        },
        "test",
    )
    run, undisturbed = tmp_path / "run", tmp_path / "undisturbed"

    def intrude(event: Event) -> None:
        if (event.metrics["stage"], event.metrics["round"]) == ("unlearning", 1):
            (run / "lock").unlink()
            in_child(lambda: perform(experiment, run, workers=1).status)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDUNLEARN_CACHE", str(tmp_path / "cache"))
        perform(experiment, undisturbed, workers=1)
        with refused("in-use", says=r"no longer owns .*run: another process has claimed it"):
            perform(experiment, run, [intrude], workers=1)
    assert verify(run).verified
    assert read_outcome(run) == read_outcome(undisturbed)
    assert len(read_metrics(run)) == len(read_metrics(undisturbed))


def test_a_manifest_that_vanishes_under_a_run_ends_it(tmp_path):
    folder = claim(tmp_path)
    folder.write({"experiment.json": b"{}"})
    (tmp_path / "manifest.json").unlink()
    with refused("in-use", says=r"its manifest\.json was changed or deleted"):
        folder.write({"experiment.json": b"[]"})
    assert (tmp_path / "experiment.json").read_bytes() == b"{}"


def test_a_folder_without_a_manifest_is_read_and_not_continued(tmp_path):
    with Recorder(tmp_path, "me", seconds=0) as recorder:
        unlearn(PHASES[:1], request(), Quadratics(), listeners=[recorder])
    forget_manifest(tmp_path)
    assert verify(tmp_path) is None
    with refused("damaged", says=r"has no manifest\.json, .* not continued"):
        claim(tmp_path)
    assert not (tmp_path / "manifest.json").exists()


def test_a_manifest_that_took_over_files_is_read_and_never_calls_them_verified(tmp_path):
    """As 0.2 took over folders of 0.1."""
    claim(tmp_path).write({"outcome.json": b"{}"})
    manifest = replace(read_manifest(tmp_path), adopted=("outcome.json",))
    (tmp_path / "manifest.json").write_bytes(manifest.as_bytes())
    assert not verify(tmp_path).verified
    claim(tmp_path).write({"environment.json": b"{}"})
    assert not verify(tmp_path).verified
    claim(tmp_path).write({"outcome.json": b"[]"})
    assert verify(tmp_path).verified


def test_who_reads_while_another_writes_sees_no_damage(tmp_path):
    folder, going = claim(tmp_path), True
    folder.write({"outcome.json": b"0"})

    def read_on() -> None:
        while going:
            verify(tmp_path)

    problems: list[BaseException] = []

    def watch() -> None:
        try:
            read_on()
        except FedUnlearnError as error:
            problems.append(error)

    readers = [threading.Thread(target=watch) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(60):
        name = f"checkpoints/{number:08d}.safetensors"
        content = folder.tensors({"w": torch.full((50,), float(number))})
        old = f"checkpoints/{number - 2:08d}.safetensors"
        folder.write({name: content, "outcome.json": json.dumps(number).encode()}, remove=[old])
    going = False
    for reader in readers:
        reader.join()
    assert not problems


def test_an_announced_change_may_have_happened_or_not(tmp_path, monkeypatch):
    """Every kill point of a write: the folder is verified, and the next process goes on."""
    plain, points = module.write, 0
    while True:
        place = tmp_path / str(points)
        folder = claim(place)
        folder.write({"experiment.json": b"old", "environment.json": b"gone"})
        left = points

        def strike(path: Path, content: bytes, *, private: bool = False) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            plain(path, content, private=private)

        with monkeypatch.context() as patch:
            patch.setattr(module, "write", strike)
            try:
                folder.write({"experiment.json": b"new", "outcome.json": b"{}"}, remove=["environment.json"])
                break
            except KeyboardInterrupt:
                points += 1
        verify(place)
        now = (place / "experiment.json").read_bytes()
        claim(place).write({"experiment.json": b"new", "outcome.json": b"{}"}, remove=["environment.json"])
        assert now == (b"new" if points > 2 else b"old")
        assert {*verify(place).files} == {"experiment.json", "outcome.json"}
    assert points == 4


def test_a_run_folder_is_verified_once_and_locked_while_it_is_open(tmp_path, monkeypatch):
    compared: list[Path] = []
    compare = manifests._compare
    monkeypatch.setattr(
        manifests, "_compare", lambda folder, *more: compared.append(folder) or compare(folder, *more)
    )
    with RunFolder(tmp_path / "new", create=False) as run:
        assert run.state == "new"
        assert not run.path.exists()
        run.claim("me").write({"experiment.json": b"{}"})
    compared.clear()
    with RunFolder(tmp_path / "new") as run:
        assert (run.state, run.begun) == ("new", {})
        with (
            refused("in-use"),
            RunFolder(tmp_path / "new"),
        ):
            pass
        run.claim("me").write({"outcome.json": b"{}"})
    assert compared == [tmp_path / "new"]
