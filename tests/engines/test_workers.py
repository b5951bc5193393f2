"""Worker processes: how they die, and what is left of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from federations import forget, holdings, network, same

from fedunlearn import FedUnlearnError, Job, Parallel, Sequential, flatten, objective
from fedunlearn.objectives import Minimise

HERE = Path(__file__).parent


def jobs(**fields: object) -> dict[str, Job]:
    params = flatten(network("mlp"))
    return {client: Job(params, lr=0.1, batch_size=4, **fields) for client in holdings("mlp")}


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_a_dead_worker_is_reported_and_its_round_is_done_again(tmp_path):
    model = network("mlp")

    def die_once(_module, _input):
        if os.getpid() != parent and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    parent = os.getpid()
    model.register_forward_pre_hook(die_once)
    with (
        Parallel(model, holdings("mlp"), workers=2) as federation,
        pytest.warns(UserWarning, match=r"worker process \d+ was killed \(SIGKILL\); its round is done"),
    ):
        outcome = forget("fedosd", "mlp", federation)
    assert same(outcome, forget("fedosd", "mlp", Sequential(model, holdings("mlp"))))


def test_a_worker_killed_between_rounds_is_replaced():
    before = set(children(os.getpid()))
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        first = federation.train(jobs())
        for worker in set(children(os.getpid())) - before:
            os.kill(worker, signal.SIGKILL)
        with pytest.warns(UserWarning, match="done again"):
            second = federation.train(jobs())
    assert all(torch.equal(first[c].displacement, second[c].displacement) for c in first)


@pytest.mark.filterwarnings("ignore:worker process")
def test_workers_that_always_die_end_the_run_with_a_reason():
    model, parent = network("mlp"), os.getpid()
    model.register_forward_pre_hook(lambda *_: os._exit(7) if os.getpid() != parent else None)
    with (
        Parallel(model, holdings("mlp"), workers=2) as federation,
        pytest.raises(
            FedUnlearnError, match=r"3 times in one round \(.* ended with code 7\): use fewer workers"
        ),
    ):
        federation.train(jobs())


def test_what_a_client_raises_reaches_the_user():
    @objective("broken", summary="test")
    def _broken(arrays):
        def loss(output, y):
            raise ZeroDivisionError("in the user's loss")

        return Minimise(loss)

    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        with pytest.raises(RuntimeError, match="in the user's loss"):
            federation.train(jobs(objective="broken"))
        with pytest.raises(FedUnlearnError, match="did you mean 'uce'"):
            federation.train(jobs(objective="ucee"))
        assert len(federation.train(jobs())) == 5


def test_a_model_that_cannot_be_pickled_is_no_obstacle():
    model = network("mlp")
    model.secret = lambda: None
    with Parallel(model, holdings("mlp"), workers=2) as federation:
        assert same(
            forget("fedosd", "mlp", federation),
            forget("fedosd", "mlp", Sequential(model, holdings("mlp"))),
        )


def test_closing_leaves_no_process_and_no_file():
    def left() -> tuple[set[int], int]:
        return set(children(os.getpid())), len(os.listdir("/proc/self/fd"))

    before = left()
    for _ in range(3):
        with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
            federation.train(jobs())
        del federation
    forgotten = Parallel(network("mlp"), holdings("mlp"), workers=2)
    forgotten.train(jobs())
    del forgotten
    assert left() == before


@pytest.mark.parametrize("moment", [0.0, 0.05, 0.3])
def test_workers_die_with_a_killed_parent_and_leave_no_shared_memory(moment, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}\n"
        "from test_workers import *\n"
        "with Parallel(network('mlp'), holdings('mlp'), workers=3) as federation:\n"
        "    while federation.train(jobs(epochs=20)): print('round', flush=True)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            workers = children(process.pid)
            assert len(workers) == 3
            # What has no name in a file system cannot outlive its processes.
            maps = [Path(f"/proc/{worker}/maps").read_text() for worker in workers]
            assert all("/memfd:fedunlearn (deleted)" in mapped for mapped in maps)
            assert not any("/dev/shm/" in mapped for mapped in maps)
            time.sleep(moment)
        finally:
            process.kill()
    deadline = time.monotonic() + 5
    while any(map(alive, workers)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(alive, workers))


def test_a_parent_that_used_several_threads_can_still_fork(tmp_path):
    script = tmp_path / "threads.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}\n"
        "from test_workers import *\n"
        "import threading\n"
        "torch.set_num_threads(2)\n"
        "threading.Thread(target=lambda: [time.sleep(0.001) for _ in range(1000)], daemon=True).start()\n"
        "layer = torch.nn.Conv2d(3, 16, 5)\n"
        "for _ in range(3): layer(torch.randn(32, 3, 64, 64)).sum().backward()\n"
        "torch.randn(800, 800) @ torch.randn(800, 800)\n"
        "with Parallel(network('cnn'), holdings('cnn'), workers=2) as federation:\n"
        "    print(forget('fedosd', 'cnn', federation, rounds=1).status)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "done\n"


def test_workers_die_with_their_parent_though_another_child_lives_on(tmp_path):
    script = tmp_path / "helper.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}\n"
        "from test_workers import *\n"
        "with Parallel(network('mlp'), holdings('mlp'), workers=2) as federation:\n"
        "    federation.start()\n"
        "    workers = children(os.getpid())\n"
        "    if helper := os.fork():\n"
        "        print(helper, *workers, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        helper, *workers = map(int, process.stdout.readline().split())
        process.kill()
        deadline = time.monotonic() + 5
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert alive(helper)
        assert not any(map(alive, workers))
        os.kill(helper, signal.SIGKILL)


def test_an_engine_serves_the_process_that_made_it():
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        expected = federation.train(jobs())
        child = os.fork()
        if child == 0:
            try:
                federation.train(jobs())
            except FedUnlearnError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        again = federation.train(jobs())
    assert all(torch.equal(expected[c].displacement, again[c].displacement) for c in expected)


def test_an_objective_registered_later_is_known_to_the_workers():
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        federation.train(jobs())

        @objective("test: later", summary="test")
        def _later(arrays):
            return objective["uce"](arrays)

        later = federation.train(jobs(objective="test: later"))
        expected = federation.train(jobs(objective="uce"))
    assert all(torch.equal(later[c].displacement, expected[c].displacement) for c in expected)
