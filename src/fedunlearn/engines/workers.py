"""Processes, forked from this one, that share out the tasks of a round among them."""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing
import os
import select
import signal
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..core import FedUnlearnError

ATTEMPTS = 3
"""How often tasks are tried whose workers die."""

Task = Mapping[str, Any]
Answer = Mapping[str, Any]
"""Both travel as JSON; what is larger lies in shared memory.

Tensors whose size only the worker knows may stand under ``arrays`` of an answer; they follow as safetensors.
"""

Work = Callable[[Task], Answer]


class Worker(NamedTuple):
    """A child, and this end of the line to it."""

    process: ForkProcess
    line: Connection


class Crew:
    """Single-threaded workers; they start when first needed, and know what this process knew then."""

    def __init__(self, size: int, work: Work) -> None:
        self._size = size
        self._work = work
        self._queue = Queue()
        self._workers: list[Worker] = []
        self._owner = os.getpid()
        weakref.finalize(self, _end, self._workers, self._owner)

    def do(self, tasks: Sequence[Task], sizes: Sequence[int]) -> list[Answer]:
        """The answer to each task. The largest go first, and whoever is free takes the next.

        A task must be repeatable: when a worker dies, all are done again.
        """
        if os.getpid() != self._owner:
            raise FedUnlearnError("the workers belong to the process that made this engine: make one here")
        order = sorted(range(len(tasks)), key=lambda number: -sizes[number])
        for attempt in range(1, ATTEMPTS + 1):
            while len(self._workers) < min(self._size, len(tasks)):
                self._workers.append(_start(self._work, self._queue))
            try:
                return self._try(tasks, order)
            except (EOFError, OSError):
                fate = self._fate()
                self.close()
            except BaseException:
                self.close()
                raise
            if attempt < ATTEMPTS:
                warnings.warn(f"{fate}; its round is done again", stacklevel=2)
        raise FedUnlearnError(
            f"worker processes ended {ATTEMPTS} times in one round ({fate}): "
            "use fewer workers if memory is short, or a single one to see the cause"
        )

    def close(self) -> None:
        """Ends the workers; they hold nothing that could be lost, and others start when needed."""
        _end(self._workers, self._owner)

    def _try(self, tasks: Sequence[Task], order: Sequence[int]) -> list[Answer]:
        self._queue.fill(order)
        plan = json.dumps(tasks).encode()
        waiting = [worker.line for worker in self._workers]
        for line in waiting:
            line.send_bytes(plan)
        answers: dict[int, Answer] = {}
        failures: dict[int, Answer] = {}
        while waiting:
            wait(waiting)
            for line in [line for line in waiting if line.poll()]:
                waiting.remove(line)
                said, arrays = json.loads(line.recv_bytes()), load(line.recv_bytes())
                for place, (number, names, answer) in enumerate(said):
                    sent = {name: arrays[f"{place} {name}"] for name in names}
                    (failures if "failure" in answer else answers)[number] = {**answer, "arrays": sent}
        if failures:
            first = failures[min(failures)]
            raise (FedUnlearnError if first["ours"] else RuntimeError)(first["failure"])
        return [answers[number] for number in range(len(tasks))]

    def _fate(self) -> str:
        for process, _ in self._workers:
            process.join(0.2)
            if process.exitcode is not None:
                return f"worker process {process.pid} {ending(process.exitcode)}"
        return "a worker process hung up"


def ending(code: int) -> str:
    """What an exit code says about the end of a process."""
    if code >= 0:
        return f"ended with code {code}"
    known = {number.value: number.name for number in signal.Signals}
    return f"was killed ({known.get(-code, f'signal {-code}')})"


class Queue:
    """Numbers, each of which goes to one process: forked processes share a file's position."""

    def __init__(self) -> None:
        self._file = os.memfd_create("fedunlearn-queue")
        self.close = weakref.finalize(self, os.close, self._file)

    def fill(self, numbers: Sequence[int]) -> None:
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, b"".join(number.to_bytes(4) for number in numbers), 0)
        os.lseek(self._file, 0, os.SEEK_SET)

    def take(self) -> int | None:
        """The next number, or None when all are taken."""
        # Reading moves the position only after the copy; the lock of a process that dies is given back.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        number = os.read(self._file, 4)
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return int.from_bytes(number) if number else None


def _start(work: Work, queue: Queue) -> Worker:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(
        target=_serve, args=(work, queue, theirs, os.getpid()), daemon=True
    )
    process.start()
    theirs.close()
    return Worker(process, ours)


def _end(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return
    for process, _ in workers:
        process.kill()
    while workers:
        workers[-1].process.join()
        workers.pop().line.close()


def _serve(work: Work, queue: Queue, line: Connection, parent: int) -> None:
    """The life of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    warnings.showwarning = lambda message, *_: _note(message)
    threading.Thread(target=_die_with, args=(parent,), daemon=True).start()
    torch.set_num_threads(1)
    _keep_freed_memory()
    while True:
        tasks = json.loads(line.recv_bytes())
        said: list[tuple[int, list[str], Answer]] = []
        sent: dict[str, Tensor] = {}
        while (number := queue.take()) is not None:
            answer = dict(_attempt(work, tasks[number]))
            arrays: Mapping[str, Tensor] = answer.pop("arrays", {})
            # The format has no views: each array gets memory of its own.
            own = {name: array.clone(memory_format=torch.contiguous_format) for name, array in arrays.items()}
            sent |= {f"{len(said)} {name}": array for name, array in own.items()}
            said.append((number, list(arrays), answer))
        line.send_bytes(json.dumps(said).encode())
        line.send_bytes(save(sent))


def _note(message: Warning | str) -> None:
    # The parent's way to show it may need a lock that one of its threads held at the fork.
    os.write(2, f"note: {message}\n".encode())


def _attempt(work: Work, task: Task) -> Answer:
    try:
        return work(task)
    except FedUnlearnError as error:
        return {"failure": str(error), "ours": True}
    except Exception:
        return {"failure": f"in a worker process:\n{traceback.format_exc()}", "ours": False}


def _die_with(parent: int) -> None:
    # Not through a pipe: whatever else the parent forks would hold it open.
    end = os.pidfd_open(parent)
    if os.getppid() == parent:
        select.select([end], [], [])
    os._exit(1)


def _keep_freed_memory() -> None:
    """Batches want the same sizes again and again, and fresh pages from the system cost a fault each."""
    trim_threshold, most_mappings = -1, -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(most_mappings, 0)
        mallopt(trim_threshold, 2**31 - 1)
