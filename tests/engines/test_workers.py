"""Worker processes: how they die, and what is left of them."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import replace
from itertools import count, islice
from pathlib import Path

import pytest
import torch
from support.codes import refused, warned
from support.federations import forget, holdings, network, same

from fedunlearn import FedUnlearnError, Job, Parallel, Sequential, Terms, flatten, loss, train
from fedunlearn.core import Reason
from fedunlearn.engines import workers
from fedunlearn.engines.workers import WorkerPool
from fedunlearn.runs import locked

HERE = Path(__file__).parent


TERMS = Terms(lr=0.1, batch_size=4)


def jobs(loss: str = "task") -> dict[str, Job]:
    params = flatten(network("mlp"))
    return {client: train(params, loss) for client in holdings("mlp")}


def children(parent: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def soon(condition) -> bool:
    """Whether something comes true before long."""
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def ended(*processes: int) -> bool:
    return soon(lambda: not any(map(alive, processes)))


def wait_for(path: Path) -> None:
    assert soon(path.exists)


def forked(work) -> int:
    """The id of a child of this process that does the work."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def once_in_a_worker(folder, fault):
    """A model whose first use in a worker process ends in a fault."""
    model, parent = network("mlp"), os.getpid()

    def hook(_module, _input):
        if os.getpid() != parent and not (folder / "done").exists():
            (folder / "done").touch()
            fault()

    model.register_forward_pre_hook(hook)
    return model


def test_a_dead_worker_is_reported_and_its_tasks_run_again(tmp_path):
    model = once_in_a_worker(tmp_path, lambda: os.kill(os.getpid(), signal.SIGKILL))
    with (
        Parallel(model, holdings("mlp"), workers=2) as federation,
        warned("workers", says=r"worker process \d+ was killed \(SIGKILL\); its tasks run again"),
    ):
        outcome = forget("fedosd", "mlp", federation)
    assert same(outcome, forget("fedosd", "mlp", Sequential(model, holdings("mlp"))))


def spin():
    while True:
        pass


@pytest.mark.parametrize("fault", [lambda: os.kill(os.getpid(), signal.SIGSTOP), spin], ids=["stop", "spin"])
def test_a_worker_that_does_not_answer_is_replaced(fault, tmp_path, monkeypatch):
    monkeypatch.setattr(workers, "MINIMUM_DEADLINE", 1.0)
    model = once_in_a_worker(tmp_path, fault)
    with (
        Parallel(model, holdings("mlp"), workers=2) as federation,
        warned("workers", says=r"worker process \d+ did not answer in time; its tasks run again"),
    ):
        outcome = forget("fedosd", "mlp", federation)
    assert same(outcome, forget("fedosd", "mlp", Sequential(model, holdings("mlp"))))


def test_a_worker_that_stops_reading_is_replaced(monkeypatch):
    monkeypatch.setattr(workers, "MINIMUM_DEADLINE", 0.5)
    pool = WorkerPool(1, lambda task: {"process": os.getpid(), "length": len(task["text"])})
    first = pool.run([{"text": ""}], [1])[0]["process"]
    os.kill(first, signal.SIGSTOP)
    with warned("workers", says=f"worker process {first} did not answer in time"):
        (result,) = pool.run([{"text": "x" * 10_000_000}], [1])
    assert result["length"] == 10_000_000
    assert result["process"] != first
    assert not alive(first)


@pytest.mark.filterwarnings("ignore:worker process")
def test_a_slow_round_gets_a_longer_deadline(monkeypatch):
    monkeypatch.setattr(workers, "MINIMUM_DEADLINE", 0.2)
    pool = WorkerPool(1, lambda task: time.sleep(task["seconds"]) or {"process": os.getpid()})
    (result,) = pool.run([{"seconds": 0.5}], [1])
    assert pool.run([{"seconds": 0.5}], [1]) == [result]  # by now, half a second is no surprise


def test_tasks_that_other_workers_have_finished_do_not_run_again(tmp_path):
    def work(task):
        with (tmp_path / str(task["number"])).open("a") as file:
            file.write("x")
        if task["number"] == 0:
            while len(list(tmp_path.iterdir())) < 5:
                time.sleep(0.01)
            if not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return {"number": task["number"]}

    with warned("workers", says="its tasks run again"):
        results = WorkerPool(2, work).run([{"number": number} for number in range(5)], [5, 4, 3, 2, 1])
    assert [result["number"] for result in results] == [0, 1, 2, 3, 4]
    assert [(tmp_path / str(number)).read_text() for number in range(5)] == ["xx", "x", "x", "x", "x"]


def test_a_worker_killed_between_rounds_is_replaced():
    before = set(children(os.getpid()))
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        first = federation.exchange(jobs(), TERMS)
        for worker in set(children(os.getpid())) - before:
            os.kill(worker, signal.SIGKILL)
        with warned("workers", says="run again"):
            second = federation.exchange(jobs(), TERMS)
    assert all(torch.equal(first[c].displacement, second[c].displacement) for c in first)


def test_workers_of_a_thread_that_has_ended_are_replaced_without_a_word():
    pool, results = WorkerPool(2, lambda task: dict(task)), []
    thread = threading.Thread(target=lambda: results.extend(pool.run([{"n": 1}, {"n": 2}], [1, 1])))
    thread.start()
    thread.join()
    assert pool.run([{"n": 1}, {"n": 2}], [1, 1]) == results


@pytest.mark.filterwarnings("ignore:worker process")
def test_workers_that_always_die_end_the_run_with_a_reason():
    model, parent = network("mlp"), os.getpid()
    model.register_forward_pre_hook(lambda *_: os._exit(7) if os.getpid() != parent else None)
    with (
        Parallel(model, holdings("mlp"), workers=2) as federation,
        refused("environment", says=r"failed 3 times in one round \(.* ended with code 7\): use fewer"),
    ):
        federation.exchange(jobs(), TERMS)


def test_what_a_client_raises_reaches_the_user():
    @loss("broken", summary="test")
    def _broken(task, job):
        def minimised(model, batch):
            raise ZeroDivisionError("in the user's loss")

        return minimised

    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        with warned("no-reply", says=r"site-0 failed .* in the user's loss .*, like 4 others"):
            replies = federation.exchange(jobs("broken"), TERMS)
        assert not replies
        assert {failure.reason for failure in replies.missing.values()} == {Reason.FAILED}
        with refused("unknown", says="did you mean 'uce'"):
            federation.exchange(jobs("ucee"), TERMS)
        assert len(federation.exchange(jobs(), TERMS)) == 5


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
            federation.exchange(jobs(), TERMS)
        del federation
    forgotten = Parallel(network("mlp"), holdings("mlp"), workers=2)
    forgotten.exchange(jobs(), TERMS)
    del forgotten
    assert left() == before


@pytest.mark.parametrize("exhaust", [lambda: torch.empty(2**60), lambda: bytearray(2**60)])
def test_a_worker_without_memory_is_one_sentence(exhaust):
    def work(task):
        exhaust()
        return {}

    with refused("environment", says="ran out of memory: use fewer workers, smaller batches"):
        WorkerPool(2, work).run([{}, {}], [1, 1])


def test_workers_that_cannot_be_started_are_one_sentence():
    pool = WorkerPool(3, lambda task: {})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = {*map(int, os.listdir("/proc/self/fd"))}  # with gaps, which the next files fill
    third = next(islice((number for number in count() if number not in taken), 2, None))
    resource.setrlimit(resource.RLIMIT_NOFILE, (third, hard))
    try:
        with refused(
            "environment",
            says=r"process \d of 3 could not be started \(Too many open files\): use few",
        ):
            pool.run([{}] * 3, [1] * 3)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(pool.run([{}] * 3, [1] * 3)) == 3


def test_workers_die_with_a_killed_parent_and_leave_no_shared_memory(tmp_path):
    def train():
        with Parallel(network("mlp"), holdings("mlp"), workers=3) as federation:
            while federation.exchange(jobs(), replace(TERMS, epochs=20)):
                (tmp_path / "round").touch()

    def named(process: str | int) -> set[str]:
        """The files in shared memory that a process sees."""
        return set(re.findall(r"/dev/shm/\S+", Path(f"/proc/{process}/maps").read_text()))

    before = named("self")
    parent = forked(train)
    wait_for(tmp_path / "round")
    processes = children(parent)
    # What has no name in a file system cannot outlive its processes.
    maps = [Path(f"/proc/{worker}/maps").read_text() for worker in processes]
    shared = set().union(*map(named, processes))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert ended(*processes)
    assert len(processes) == 3
    assert all("/memfd:fedunlearn (deleted)" in mapped for mapped in maps)
    assert shared <= before


def test_a_worker_whose_parent_dies_during_the_fork_ends_and_holds_no_lock(tmp_path):
    def wait_for_the_end_of(parent):
        (tmp_path / "partial").write_text(str(os.getpid()))
        (tmp_path / "partial").rename(tmp_path / "worker")
        while os.getppid() == parent:
            time.sleep(0.01)

    def start():
        parent = os.getpid()
        os.register_at_fork(
            after_in_parent=lambda: os.kill(parent, signal.SIGKILL),
            after_in_child=lambda: wait_for_the_end_of(parent),
        )
        with locked(tmp_path / "lock"):
            Parallel(network("mlp"), holdings("mlp"), workers=2).start()

    assert os.waitpid(forked(start), 0)[1] == signal.SIGKILL
    wait_for(tmp_path / "worker")
    worker = int((tmp_path / "worker").read_text())
    try:
        assert ended(worker)
        with locked(tmp_path / "lock"):
            pass
    finally:
        if alive(worker):
            os.kill(worker, signal.SIGKILL)


def test_ctrl_c_during_the_fork_does_not_reach_a_worker(capfd):
    def train():
        sys.unraisablehook = sys.__unraisablehook__
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
        with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
            federation.exchange(jobs(), TERMS)

    assert os.waitpid(forked(train), 0)[1] == 0
    assert capfd.readouterr().err == ""


def test_workers_die_with_their_parent_though_another_child_lives_on(tmp_path):
    def start():
        with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
            federation.start()
            forked(lambda: time.sleep(60))
            (tmp_path / "started").touch()
            time.sleep(60)

    parent = forked(start)
    wait_for(tmp_path / "started")
    *processes, other = children(parent)
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    assert ended(*processes)
    assert alive(other)
    os.kill(other, signal.SIGKILL)


def test_a_parent_that_used_several_threads_can_still_fork(tmp_path):
    script = tmp_path / "threads.py"
    script.write_text(
        f"import sys; sys.path[:0] = {[str(HERE), str(HERE.parent)]!r}\n"
        "from test_workers import *\n"
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


def test_an_engine_serves_the_process_that_made_it():
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        expected = federation.exchange(jobs(), TERMS)
        child = os.fork()
        if child == 0:
            try:
                federation.exchange(jobs(), TERMS)
            except FedUnlearnError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        again = federation.exchange(jobs(), TERMS)
    assert all(torch.equal(expected[c].displacement, again[c].displacement) for c in expected)


def test_a_loss_registered_later_is_known_to_the_workers():
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        federation.exchange(jobs(), TERMS)

        @loss("test: later", summary="test")
        def _later(task, job):
            return lambda model, batch: -task.loss(model, batch)

        later = federation.exchange(jobs("test: later"), TERMS)
        expected = federation.exchange(jobs("ascent"), TERMS)
    assert all(torch.equal(later[c].displacement, expected[c].displacement) for c in expected)
