from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from fedunlearn import FedUnlearnError
from fedunlearn.record import digest, locked, read_tensors, write_tensors
from fedunlearn.record.files import write

TENSORS = {"params": torch.arange(100.0), "counter": torch.tensor(3), "flags": torch.tensor([True, False])}


def test_tensors_come_back_as_they_were(tmp_path):
    write_tensors(tmp_path / "x.safetensors", TENSORS, note="hello")
    tensors, metadata = read_tensors(tmp_path / "x.safetensors")
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert metadata["note"] == "hello"


def test_a_file_cut_off_anywhere_is_refused(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        with pytest.raises(FedUnlearnError, match=r"x\.safetensors"):
            read_tensors(path)


def test_a_flipped_bit_anywhere_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    write_tensors(path, TENSORS)
    whole = path.read_bytes()
    for position in range(8, len(whole), 5):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with pytest.raises(FedUnlearnError, match=r"x\.safetensors"):
            read_tensors(path)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    from safetensors.torch import save_file

    save_file({"w": torch.ones(3)}, tmp_path / "x.safetensors")
    with pytest.raises(FedUnlearnError, match="not written by fedunlearn"):
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


def test_a_failed_write_leaves_the_old_file_and_no_debris(tmp_path, monkeypatch):
    path = tmp_path / "x.txt"
    write(path, b"old")

    def refuse(descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(FedUnlearnError, match="No space left"):
        write(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_keeps_others_out_and_goes_with_its_process(tmp_path):
    hold = "import sys, time; from pathlib import Path; from fedunlearn.record import locked\n"
    hold += "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(FedUnlearnError, match="another process"), locked(tmp_path / "lock"):
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
    with pytest.warns(UserWarning, match="waiting for another process"), locked(tmp_path / "lock", wait=True):
        assert holder.closed
    thread.join()
