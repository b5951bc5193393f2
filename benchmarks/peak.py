"""The peak memory of a round with many clients: ``python benchmarks/peak.py [CLIENTS]``, 1000 by default.

Every client has a dozen examples and the model 2.6 million parameters, so the displacements of 1000 clients
take 10.6 GB. One round of FedAvg, then one direction of FedOSD from the displacements of all clients.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from timing import Figures, family, family_cpu
from workloads import TERMS, holdings, jobs, network

from fedunlearn import Parallel
from fedunlearn.driver.gate import admit
from fedunlearn.maths import orthogonal_direction

SAMPLES = 12


def measure(clients: int) -> dict[str, Figures]:
    """Seconds and peak megabytes of both steps."""
    torch.set_num_threads(1)
    model, data = network("wide"), holdings("wide", clients * SAMPLES, clients)
    asked = jobs(model, data)
    found: dict[str, Figures] = {}
    with Parallel(model, data, workers=len(os.sched_getaffinity(0))) as engine:
        engine.start()
        with _watched(found, "before"):
            time.sleep(1)
        with _watched(found, "FedAvg round"):
            replies = admit(asked, engine.exchange(asked, TERMS), {})
            average = replies.average()
        with _watched(found, "FedOSD direction"):
            step = orthogonal_direction(average, replies.of(sorted(asked)[1:]).matrix(), min_sine=1e-6)
    found["FedOSD direction"]["max_cosine"] = step.max_cosine
    return found


@contextmanager
def _watched(found: dict[str, Figures], name: str) -> Iterator[None]:
    """Looks ten times a second at all processes: RSS, and what of it no file could take back."""
    peak, done = {"rss": 0.0, "unbacked": 0.0}, threading.Event()

    def look() -> None:
        while not done.wait(0.1):
            kinds = [_kinds(process) for process in family()]
            peak["rss"] = max(peak["rss"], sum(sum(kind.values()) for kind in kinds))
            # Shared memory counts once: all processes see the same.
            shared = max(kind["RssShmem"] for kind in kinds)
            peak["unbacked"] = max(peak["unbacked"], sum(kind["RssAnon"] for kind in kinds) + shared)

    thread = threading.Thread(target=look)
    wall, cpu = time.perf_counter(), family_cpu()
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        found[name] = {"wall": time.perf_counter() - wall, "cpu": family_cpu() - cpu, **peak}


def _kinds(process: int) -> Figures:
    kinds = dict.fromkeys(("RssAnon", "RssFile", "RssShmem"), 0.0)
    with suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in kinds:
                kinds[name] = int(rest.split()[0]) / 1000
    return kinds


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if sys.argv[1:] else 1000)))
