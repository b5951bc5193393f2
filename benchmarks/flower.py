"""What a round costs on Flower: a parallel engine, a grid in this process, Ray, and a deployment with TLS."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from workloads import TERMS, holdings, jobs, network

from fedunlearn import Parallel
from fedunlearn.engines import flower

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "tests"))

from support.deployment import Deployment, Processes, Simulation  # noqa: E402

SAMPLES = {"mlp": 64, "wide": 64}
"""Per client: so few that the exchange itself dominates."""
Figures = dict[str, Any]


def measure(name: str, clients: int = 10, deployed: int = 3) -> Figures:
    """Seconds of an exchange with all clients on each engine; ``deployed`` rounds of the slowest."""
    samples = SAMPLES[name] * clients
    found = {
        "model": name,
        "clients": clients,
        "parameters": sum(p.numel() for p in network(name).parameters()),
    }
    found["parallel"] = here(name, samples, clients, "parallel")
    found["in process"] = here(name, samples, clients, "in process")
    with Simulation(clients) as simulation:
        found["ray"] = on_flower(simulation, name, samples, clients, 10)
    if deployed:
        nodes = {f"client-{number:04}": {"partition-id": number} for number in range(clients)}
        with Deployment(nodes) as deployment:
            found["deployment"] = on_flower(deployment, name, samples, clients, deployed)
    return found


def here(name: str, samples: int, clients: int, engine: str) -> Figures:
    """In this process and its workers."""
    torch.set_num_threads(1)
    model, data = network(name), holdings(name, samples, clients)
    asked = jobs(model, data)
    if engine == "parallel":
        with Parallel(model, data, workers=2) as federation:
            return summary([timed(lambda: federation.exchange(asked, TERMS)) for _ in range(11)])
    app = ClientApp()
    flower.serve(app, lambda context: _site(name, data, context))
    grid = flower.LocalGrid(app, [{"partition-id": number} for number in range(clients)])
    connected = flower.connect(grid, model, clients=clients)
    return summary([timed(lambda: connected.exchange(asked, TERMS)) for _ in range(11)])


def _site(name: str, data: Mapping[str, Any], context: Context) -> flower.Site:
    client = f"client-{int(context.node_config['partition-id']):04}"
    return flower.Site(network(name), data[client], name=client)


def on_flower(processes: Processes, name: str, samples: int, clients: int, rounds: int) -> Figures:
    """In Flower's own processes, with the peak of their memory."""
    with tempfile.TemporaryDirectory() as folder, watched(processes) as memory:
        report = Path(folder) / "report.json"
        config = {
            "benchmarks": str(HERE),
            "report": str(report),
            "model": name,
            "samples": samples,
            "nodes": clients,
            "rounds": rounds,
        }
        started = time.perf_counter()
        run = processes.run(HERE / "flower_app", config)
        status, details = processes.wait(run, 3600)
        if status != "finished:completed":
            raise SystemExit(f"{status}: {details}\n{processes.log(run)}")
        hello, *seconds = json.loads(report.read_text())
        whole = time.perf_counter() - started
        return {**summary(seconds), "hello": hello, "whole": whole, "memory": max(memory)}


def summary(seconds: list[float]) -> Figures:
    """Minimum and median without the first round."""
    return {"wall": min(seconds[1:]), "wall_median": statistics.median(seconds[1:]), "first": seconds[0]}


def timed(call: Any) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


@contextmanager
def watched(processes: Processes) -> Iterator[list[float]]:
    """Megabytes of all processes together, twice a second."""
    ended, seen = threading.Event(), [0.0]

    def watch() -> None:
        while not ended.wait(0.5):
            seen.append(sum(_resident(process.pid) for process in processes.tree()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _resident(pid: int) -> float:
    """Proportional, so that shared pages count once."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) / 1000 for line in lines if line.startswith("Pss:"))


def imports() -> Figures:
    """CPU seconds of what a node does before it can begin with a message; minimum of five."""
    what = {
        "python": "pass",
        "flwr": "import flwr.clientapp",
        "torch": "import torch",
        "flwr and torch": "import flwr.clientapp, torch",
        "fedunlearn with both": "import fedunlearn.engines.flower",
    }
    return {name: min(_cpu(code) for _ in range(5)) for name, code in what.items()}


def _cpu(code: str) -> float:
    told = f"{code}\nimport time; print(time.process_time())"
    return float(
        subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True).stdout
    )


def main() -> None:
    """Prints everything as JSON."""
    print(json.dumps({"imports": imports()}), flush=True)
    for name in SAMPLES:
        print(json.dumps(measure(name)), flush=True)
    print(json.dumps(measure("mlp", clients=100, deployed=0)), flush=True)


if __name__ == "__main__":
    main()
