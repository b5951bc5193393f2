from __future__ import annotations

import errno
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from support.codes import refused, warned

from fedunlearn.runs import digest, locked, read_tensors, write_tensors
from fedunlearn.runs.files import write

TENSORS = {"params": torch.arange(100.0), "counter": torch.tensor(3), "flags": torch.tensor([True, False])}


def test_tensors_come_back_as_they_were(tmp_path):
    write_tensors(tmp_path / "x.safetensors", TENSORS, note="hello")
    tensors, metadata = read_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert metadata["note"] == "hello"


def test_a_file_that_is_replaced_while_it_is_read_is_read_whole(tmp_path):
    path = tmp_path / "x.safetensors"
    versions = [{"params": torch.full((size,), float(size))} for size in (1000, 1001)]
    write_tensors(path, versions[0])
    child = os.fork()
    if child == 0:
        while True:
            for version in versions:
                write_tensors(path, version)
    try:
        found = {len(read_tensors(path)[0]["params"]) for _ in range(1500)}
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert found == {1000, 1001}


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with refused("damaged", says=r"x\.safetensors"):
            read_tensors(path)


def test_a_flipped_bit_anywhere_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for position in range(8, len(whole), 5):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with refused("damaged", "invalid", says=r"x\.safetensors"):
            read_tensors(path)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3)}, tmp_path / "x.safetensors")
    with refused("invalid", says="not written by fedunlearn"):
        read_tensors(tmp_path / "x.safetensors")


def test_the_digest_tells_names_shapes_types_and_values_apart():
    variants = [
        {"a": torch.zeros(4)},
        {"b": torch.zeros(4)},
        {"a": torch.zeros(2, 2)},
        {"a": torch.zeros(4, dtype=torch.int32)},
        {"a": torch.tensor([0.0, 0.0, 0.0, -0.0])},
    ]
    assert len({digest(variant) for variant in variants}) == len(variants)


@pytest.mark.wording
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_leaves_the_old_file_and_no_debris(number, tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write(path, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with refused("file", says=os.strerror(number)) as caught:
        write(path, b"new")
    assert ("free some space" in str(caught.value)) is (number == errno.ENOSPC)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("folder", [Path(), Path("/"), Path("..")])
def test_a_folder_is_not_replaced(folder):
    with refused("invalid", says=f"^{re.escape(str(folder))} is a folder: name a file$"):
        write(folder, b"")


def test_temporary_files_have_names_that_nobody_can_predict(tmp_path, monkeypatch):
    seen = []

    def look(descriptor: int) -> None:
        seen.extend(path.name for path in tmp_path.iterdir())

    monkeypatch.setattr(os, "fsync", look)
    for _ in range(2):
        write(tmp_path / "x.txt", b"content")
    names = [name for name in seen if name.endswith(".partial")]
    assert len(set(names)) == 2
    assert all(re.fullmatch(r"\.x\.txt\.[0-9a-f]{16}\.partial", name) for name in names)


def test_a_temporary_file_is_never_written_through_a_link(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".x.txt.{'0' * 16}.partial").symlink_to(tmp_path / "victim")
    with refused("file", says="File exists"):
        write(tmp_path / "x.txt", b"content")
    assert (tmp_path / "victim").read_text() == "precious"


def test_a_report_is_written_though_a_run_cleans_the_folder_meanwhile(tmp_path, monkeypatch):
    synchronise, cleanings = os.fsync, []

    def clean_once(descriptor: int) -> None:
        if not cleanings:
            cleanings.append(descriptor)
            with locked(tmp_path / "lock"):
                pass
        synchronise(descriptor)

    monkeypatch.setattr(os, "fsync", clean_once)
    write(tmp_path / "report.html", b"report")
    assert (tmp_path / "report.html").read_bytes() == b"report"
    assert {path.name for path in tmp_path.iterdir()} == {"lock", "report.html"}


def test_a_child_does_not_inherit_a_lock(tmp_path):
    heard, said = os.pipe()
    parent = os.fork()
    if parent == 0:
        with locked(tmp_path / "lock"):
            if os.fork() == 0:
                os.write(said, str(os.getpid()).encode())
                time.sleep(60)
                os._exit(0)
            time.sleep(60)
    child = int(os.read(heard, 100))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        with locked(tmp_path / "lock"):
            os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(heard)
        os.close(said)


def test_a_lock_keeps_others_out_and_goes_with_its_process(tmp_path):
    hold = "import sys, time; from pathlib import Path; from fedunlearn.runs import locked\n"
    hold += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with refused("in-use", says="another process"), locked(tmp_path / "lock"):
            pass
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    with locked(tmp_path / "lock"):
        pass


def test_who_waits_for_a_lock_is_told_and_gets_it(tmp_path):
    def release() -> None:
        time.sleep(0.3)
        holder.close()

    holder = (tmp_path / "lock").open("w")
    fcntl.flock(holder, fcntl.LOCK_EX)
    thread = threading.Thread(target=release)
    thread.start()
    with warned("waiting", says="waiting for another process"), locked(tmp_path / "lock", wait=True):
        assert holder.closed
    thread.join()
