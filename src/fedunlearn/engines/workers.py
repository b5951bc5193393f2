"""Worker processes, forked from this one, that share the tasks of a round.

Linux only. Other systems can import this module but not start a worker.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import socket
import struct
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor

from ..core import FedUnlearnError
from ..core.errors import warn

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

ATTEMPTS = 3
"""How often a round is tried when its workers die or do not answer."""

MINIMUM_DEADLINE = 600.0
"""Seconds that every round may take."""

DEADLINE_FACTOR = 10.0
"""A round may take this many times as long as the slowest one so far."""

Message = Mapping[str, Any]
Result = Mapping[str, Any]
"""Messages and results travel as JSON; larger values lie in shared memory.

Tensors whose size only the worker knows go under ``arrays`` of a result; they follow as safetensors.
"""

Work = Callable[[Message], Result]


class Worker(NamedTuple):
    """A child process, and this process's end of the connection to it."""

    process: ForkProcess
    connection: Connection


class WorkerPool:
    """Single-threaded workers; they start when first needed and know what this process knew then."""

    def __init__(self, size: int, work: Work) -> None:
        self._size = size
        self._work = work
        self._queue = Queue()
        self._workers: list[Worker] = []
        self._owner = os.getpid()
        self._starter = threading.current_thread()
        self._slowest = 0.0
        weakref.finalize(self, _end, self._workers, self._owner)

    def run(self, tasks: Sequence[Message], sizes: Sequence[int]) -> list[Result]:
        """Returns the result of each task. Workers take the largest tasks first, each the next when free.

        Tasks must be repeatable: those of a worker that dies or misses the deadline run again.
        """
        if os.getpid() != self._owner:
            raise FedUnlearnError(
                "the workers belong to the process that made this engine: make one here", code="environment"
            )
        deadline = max(MINIMUM_DEADLINE, DEADLINE_FACTOR * self._slowest)
        results: dict[int, Result] = {}
        try:
            for attempt in range(1, ATTEMPTS + 1):
                missing = (number for number in range(len(tasks)) if number not in results)
                order = sorted(missing, key=lambda number: -sizes[number])
                self._start(min(self._size, len(order)))
                began = time.monotonic()
                problem = self._round(tasks, order, deadline, results)
                if problem is None:
                    self._slowest = max(self._slowest, time.monotonic() - began)
                    return [results[number] for number in range(len(tasks))]
                if time.monotonic() - began >= deadline:
                    deadline *= DEADLINE_FACTOR  # The round may be slow rather than stuck.
                if attempt < ATTEMPTS:
                    warn(f"{problem}; its tasks run again in another process", "workers")
        except BaseException:
            self.close()
            raise
        self.close()
        raise FedUnlearnError(
            f"worker processes failed {ATTEMPTS} times in one round ({problem}): "
            "use fewer workers if memory is short, or a single one to see the cause",
            code="environment",
        )

    def close(self) -> None:
        """Ends the workers; they hold nothing that could be lost, and new ones start when needed."""
        _end(self._workers, self._owner)

    def _start(self, count: int) -> None:
        if not self._starter.is_alive():
            self.close()  # The kernel has ended them with the thread that started them.
        if not self._workers:
            self._starter = threading.current_thread()
        while len(self._workers) < count:
            try:
                self._workers.append(_start(self._work, self._queue, self._workers))
            except OSError as error:
                raise FedUnlearnError(
                    f"worker process {len(self._workers) + 1} of {count} could not be started "
                    f"({error.strerror or error}): use fewer workers",
                    code="environment",
                ) from error

    def _round(
        self, tasks: Sequence[Message], order: Sequence[int], deadline: float, results: dict[int, Result]
    ) -> str | None:
        """Adds the results of one attempt; removes workers that fail and returns what happened to one."""
        self._queue.fill(order)
        plan = json.dumps(tasks).encode()
        end = time.monotonic() + deadline
        problem = None
        failures: dict[int, Result] = {}
        waiting: dict[Connection, Worker] = {}
        for worker in tuple(self._workers):
            try:
                worker.connection.send_bytes(plan)
                waiting[worker.connection] = worker
            except OSError as error:
                problem = self._remove(worker, error)
        while waiting:
            ready = wait(list(waiting), max(0.0, end - time.monotonic()))
            for connection in [connection for connection in waiting if connection in ready or not ready]:
                worker = waiting.pop(connection)
                try:
                    if not ready:
                        raise TimeoutError
                    for number, result in _receive(connection):
                        (failures if "failure" in result else results)[number] = result
                except (EOFError, OSError) as error:
                    problem = self._remove(worker, error)
        if failures:
            first = failures[min(failures)]
            if "code" not in first:
                raise RuntimeError(first["failure"])
            raise FedUnlearnError(first["failure"], code=first["code"])
        return problem

    def _remove(self, worker: Worker, error: EOFError | OSError) -> str:
        """Ends a worker that failed, and says how it failed."""
        self._workers.remove(worker)
        process = worker.process
        late = isinstance(error, TimeoutError | BlockingIOError)
        if not late:
            process.join(0.2)
        code = process.exitcode
        _end([worker], self._owner)
        fate = "did not answer in time" if late else "hung up" if code is None else ending(code)
        return f"worker process {process.pid} {fate}"


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
        import fcntl  # Windows has none.

        # Reading moves the position only after the copy; the kernel releases the lock of a process that dies.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        number = os.read(self._file, 4)
        fcntl.lockf(self._file, fcntl.LOCK_UN)
        return int.from_bytes(number) if number else None


def _start(work: Work, queue: Queue, siblings: Sequence[Worker]) -> Worker:
    ours, theirs = multiprocessing.Pipe()
    parents_ends = [ours, *(worker.connection for worker in siblings)]
    try:
        _limit_stalls(ours, MINIMUM_DEADLINE)
        process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(work, queue, theirs, parents_ends, os.getpid()), daemon=True
        )
        with _signals_held():
            process.start()
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    return Worker(process, ours)


def _limit_stalls(connection: Connection, seconds: float) -> None:
    """Makes sending and receiving fail when the other end stands still in the middle of a message."""
    interval = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, interval)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, interval)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Delays Ctrl-C and SIGTERM during a fork: a child must not run the handlers of its parent."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(workers: list[Worker], owner: int) -> None:
    if os.getpid() != owner:
        return
    for process, _ in workers:
        process.kill()
    while workers:
        workers[-1].process.join()
        workers.pop().connection.close()


def _receive(connection: Connection) -> list[tuple[int, Result]]:
    """The results of one worker by the number of their task."""
    return [
        (number, {**result, "arrays": load(connection.recv_bytes()) if has_arrays else {}})
        for number, has_arrays, result in json.loads(connection.recv_bytes())
    ]


def _serve(
    work: Work, queue: Queue, connection: Connection, parents_ends: Sequence[Connection], parent: int
) -> None:
    """The life of a worker."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    for end in parents_ends:
        end.close()
    warnings.showwarning = lambda message, *_: _note(message)
    torch.set_num_threads(1)
    _keep_freed_memory()
    with suppress(EOFError, OSError):  # The parent has closed its end.
        while True:
            tasks = json.loads(connection.recv_bytes())
            results: list[tuple[int, bool, Result]] = []
            arrays: list[bytes] = []
            while (number := queue.take()) is not None:
                result, tensors = _attempt(work, tasks[number])
                results.append((number, bool(tensors), result))
                arrays += [tensors] if tensors else []
            connection.send_bytes(json.dumps(results).encode())
            for tensors in arrays:
                connection.send_bytes(tensors)


def _attempt(work: Work, task: Message) -> tuple[Result, bytes]:
    """The result of a task and its arrays as safetensors, or what went wrong."""
    try:
        result = dict(work(task))
        arrays: Mapping[str, Tensor] = result.pop("arrays", {})
        # The format has no views: each array gets memory of its own.
        own = {name: array.clone(memory_format=torch.contiguous_format) for name, array in arrays.items()}
        return result, save(own) if own else b""
    except FedUnlearnError as error:
        return {"failure": str(error), "code": error.code}, b""
    except Exception as error:
        if out_of_memory(error):
            advice = "use fewer workers, smaller batches or a smaller model"
            sentence = f"a worker process ran out of memory: {advice}"
            return {"failure": sentence, "code": "environment"}, b""
        return {"failure": f"in a worker process:\n{traceback.format_exc()}"}, b""


def out_of_memory(error: Exception) -> bool:
    """Whether Python or torch found no memory."""
    return isinstance(error, MemoryError) or "you tried to allocate" in str(error)


def _note(message: Warning | str) -> None:
    # The parent's way to show it may need a lock that one of its threads held at the fork.
    os.write(2, f"note: {message}\n".encode())


def _die_with(parent: int) -> None:
    """Lets the kernel end this process with its parent, or ends it now if the parent is gone already."""
    set_parent_death_signal = 1
    refused = ctypes.CDLL(None).prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    if refused or os.getppid() != parent:
        os._exit(1)


def _keep_freed_memory() -> None:
    """Batches want the same sizes again and again, and fresh pages from the system cost a fault each."""
    trim_threshold, most_mappings = -1, -4
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(most_mappings, 0)
        mallopt(trim_threshold, 2**31 - 1)
