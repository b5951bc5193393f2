"""Flower: its simulation runtime on Ray, with the Message API and the strategy ``FedAvg``.

There is one single-threaded actor for every core that this process may use. To compare it with the others,
limit it to one core (``taskset``), or compare CPU seconds, which include all of Ray's processes. An actor
reads the workload once and keeps it. Flower polls for messages every 0.1 s, which affects the wall time of
short rounds. ``run_simulation``, which Flower has deprecated, starts the same runtime as ``flwr run`` but
keeps the server in this process, where it can wait for the driver.

Nothing leaves the machine: telemetry and update checks are off, and Ray listens only on the loopback.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable

os.environ.update(
    FLWR_HOME=tempfile.mkdtemp(prefix="peer-"),
    FLWR_TELEMETRY_ENABLED="0",
    FLWR_DISABLE_UPDATE_CHECK="1",
    FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION="1",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    OMP_NUM_THREADS="1",
)

import psutil
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from protocol import epoch, learner, load, parameters, serve
from torch import Tensor


class Cpu:
    """CPU seconds of this process and all its descendants, including those that have ended."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}

    def __call__(self) -> float:
        for process in psutil.Process().children(recursive=True):
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._seen[process.pid] = times.user + times.system
        return time.process_time() + sum(self._seen.values())


class Strict(FedAvg):
    """Raises an error if a client fails; ``FedAvg`` would average the other replies."""

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        for reply in replies:
            if reply.has_error():
                raise RuntimeError(f"a client failed: {reply.error.reason}")
        return super().aggregate_train(server_round, replies)


def client_app(path: str) -> ClientApp:
    app = ClientApp()

    @app.query()
    def prepare(message: Message, context: Context) -> Message:
        learner(path)
        return Message(RecordDict(), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        workload = load(path)
        client = int(context.node_config["partition-id"])
        model, optimizer = learner(path)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        epoch(model, optimizer, workload.batches(client))
        reply = {
            "arrays": ArrayRecord(model.state_dict()),
            "metrics": MetricRecord({"num-examples": len(workload.y[client])}),
        }
        return Message(RecordDict(reply), reply_to=message)

    return app


def server_app(path: str, actors: int) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        workload = load(path)
        model = workload.model()
        total = len(workload.clients)
        strategy = Strict(fraction_evaluate=0.0, min_train_nodes=total, min_available_nodes=total)
        arrays = ArrayRecord(model.state_dict())
        grid.send_and_receive([Message(RecordDict(), node, "query") for node in grid.get_node_ids()])

        def play() -> None:
            nonlocal arrays
            arrays = strategy.start(grid, arrays, num_rounds=1).arrays

        def result() -> dict[str, Tensor]:
            model.load_state_dict(arrays.to_torch_state_dict())
            return parameters(model)

        note = f"run_simulation on Ray, 1-CPU actors: {actors}; cpu includes Ray's processes"
        serve("flower", "flwr", note, play, result, cpu=Cpu())

    return app


def main() -> None:
    path = os.path.abspath(sys.argv[1])
    home = os.environ["FLWR_HOME"]
    cores = len(os.sched_getaffinity(0))
    try:
        run_simulation(
            server_app=server_app(path, cores),
            client_app=client_app(path),
            num_supernodes=len(load(path).clients),
            backend_config={
                "init_args": {"num_cpus": cores, "_temp_dir": home},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
