"""A9, A11: after the purge nothing on the desk tells who left, what it held, or what the model was before."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load
from support.children import command
from support.codes import refused
from support.desks import (
    CLIENTS,
    TARGET,
    answer,
    contents,
    document,
    federation,
    first_model,
    holdings,
    make,
    network,
    opened,
    production,
    repeatable,
    trained,
)
from support.leaks import Secrets, scan

import fedunlearn.cli.commands  # noqa: F401 - a child need not import it
from fedunlearn.core.vectors import flatten
from fedunlearn.erasure import erase, purge, receive
from fedunlearn.erasure.keys import Key, read_key
from fedunlearn.runs import read_state
from fedunlearn.server import steps

WINDOW = 64


@dataclass(frozen=True)
class Watched:
    """A desk after the purge, and what it must not hold."""

    folder: Path
    request: str
    models: dict[str, np.ndarray]
    """The model before the request, and after each of its rounds but the last."""
    sealed: dict[str, bytes]
    """Copies of the encrypted files, as a backup would keep them."""
    key: bytes


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    folder = make(tmp_path_factory.mktemp("desk") / "desk")
    models = {"before": flatten(production(opened(folder))).numpy()}
    sealed: dict[str, bytes] = {}

    def watching(whole, *words, witnesses, **options):
        def see(event) -> None:
            if event.metrics.get("round"):
                name = f"{event.metrics['stage']} {event.metrics['round']}"
                models[name] = event.progress.state.params.numpy().copy()

        return whole(*words, witnesses=[*witnesses, see], **options)

    with repeatable(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps, "run_in", partial(watching, steps.run_in))
        patch.setattr(secrets, "token_bytes", os.urandom)
        desk = opened(folder)
        case = answer(desk, document(), to_purge=False)
        last = list(models)[-1]
        assert len(models) == 7
        assert np.array_equal(flatten(production(desk)).numpy(), models.pop(last))
        for path in sorted(desk.place(case.id).rglob("*")):
            if path.suffix in (".sealed", ".safetensors") and path.name != "model.safetensors":
                sealed[path.relative_to(folder).as_posix()] = path.read_bytes()
        key = (desk.place(case.id) / "key").read_bytes()
        purge(desk, case.id)
    return Watched(folder, case.id, models, sealed, key)


def windows(content: bytes) -> set[bytes]:
    """All stretches of so many bytes, wherever they begin."""
    return {content[start : start + WINDOW] for start in range(len(content) - WINDOW + 1)}


def test_no_file_holds_64_bytes_of_a_model_before_the_last(watched):
    wanted = set().union(*(windows(model.tobytes()) for model in watched.models.values()))
    searched = contents(watched.folder)
    found = [name for name, content in searched.items() if wanted & windows(content)]
    assert found == []
    after = flatten(production(opened(watched.folder))).numpy()
    assert windows(after.tobytes()) & windows(searched["model.safetensors"]), "the search finds nothing"
    print(
        f"A11: {len(wanted):,} windows of {len(watched.models)} models in {len(searched)} files "
        f"({sum(map(len, searched.values())):,} bytes): 0 found"
    )


def test_copies_of_encrypted_files_cannot_be_read_without_the_key(watched, tmp_path):
    assert len(watched.sealed) == 3
    assert not any(watched.key in content for content in contents(watched.folder).values())
    for name, content in watched.sealed.items():
        path = tmp_path / Path(name).name
        path.write_bytes(content)
        assert read_state(path, Key(watched.key))
        wrong = [bytes(31) + b"\1", (watched.folder / "suppression.key").read_bytes()[::-1]]
        wrong += [content[start : start + 32] for start in range(0, 320, 32)]
        for secret in wrong:
            with refused("damaged", says="another key"):
                read_state(path, Key(secret))
    place = watched.folder / "requests" / watched.request
    with refused("purged", says="is gone"):
        read_key(place / "key")


def test_what_was_purged_is_not_continued_from_copies(watched, tmp_path):
    """Whoever restores the files from a backup gets nowhere: the ledger knows that they are purged."""
    folder = shutil.copytree(watched.folder, tmp_path / "desk")
    for name, content in watched.sealed.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    desk = opened(folder)
    assert receive(desk, document(), first_model()).state == "purged"
    with refused("finished", says="is purged"):
        erase(desk, watched.request, federation(), production(desk))


def losses() -> np.ndarray:
    """Of each of the target's examples under the model before."""
    model, held = network(), holdings()[TARGET].train
    model.load_state_dict(load(trained()))
    return torch.nn.functional.cross_entropy(model(held.x), held.y, reduction="none").detach().numpy()


def secrets_of(watched: Watched) -> Secrets:
    return Secrets(
        names=tuple(client for client in CLIENTS if client != "site-10"),
        arrays={
            **watched.models,
            **{f"data of {client}": held.train.x.numpy() for client, held in holdings().items()},
        },
        losses={"losses before": losses()},
        counts={"examples": len(holdings()[TARGET].train.y)},
    )


def test_no_artefact_tells_a_secret(watched, tmp_path):
    """What a desk gives away, what it keeps, and what its commands print."""
    there = tmp_path / "artefacts"
    shutil.copytree(watched.folder / "requests", there / "requests")
    for name in ("ledger.jsonl", "ledger.head.json", "suppressed.json", "model.safetensors"):
        shutil.copy(watched.folder / name, there / name)
    shutil.copytree(watched.folder / "nonces", there / "nonces")
    place = watched.folder / "requests" / watched.request
    for name, words in {
        "requests": ["requests", watched.folder],
        "purge": ["purge", watched.folder, watched.request],
        "verify": [
            *("verify", place / "certificate.json", "--key", watched.folder / "controller.pub"),
            *("--model", watched.folder / "model.safetensors", "--ledger", watched.folder / "ledger.jsonl"),
        ],
    }.items():
        printed = command(*map(str, words), folder=tmp_path)
        assert watched.request in printed
        (there / f"{name}.txt").write_text(printed)
    assert (there / "requests" / watched.request / "certificate.html").exists()
    leaks = scan(there, secrets_of(watched))
    count = len([path for path in there.rglob("*") if path.is_file()])
    print(f"A9: {count} artefacts of a whole way, {len(leaks)} leaks")
    assert leaks == []


def test_the_scan_of_artefacts_finds_what_is_planted(watched, tmp_path):
    (tmp_path / "note.json").write_text(json.dumps({"client": TARGET}))
    (tmp_path / "copy.bin").write_bytes(watched.models["before"].tobytes()[100:900])
    (tmp_path / "loss.txt").write_text(f"{losses()[5]:.8f}")
    found = {leak.file for leak in scan(tmp_path, secrets_of(watched))}
    assert found == {"note.json", "copy.bin", "loss.txt"}
