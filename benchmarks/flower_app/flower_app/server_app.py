"""Times a number of exchanges with all clients."""

import json
import sys
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedunlearn.engines import flower

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    sys.path.append(str(config["benchmarks"]))
    from workloads import TERMS, holdings, jobs, network

    model = network(str(config["model"]))
    asked = jobs(model, holdings(str(config["model"]), int(config["samples"]), int(config["nodes"])))
    started = time.perf_counter()
    patience = flower.Patience(reply=1800.0, absence=300.0)
    federation = flower.connect(grid, model, clients=int(config["nodes"]), patience=patience)
    seconds = [time.perf_counter() - started]
    for _ in range(int(config["rounds"]) + 1):
        started = time.perf_counter()
        replies = federation.exchange(asked, TERMS)
        assert not replies.missing, replies.missing
        seconds.append(time.perf_counter() - started)
    Path(str(config["report"])).write_text(json.dumps(seconds))
