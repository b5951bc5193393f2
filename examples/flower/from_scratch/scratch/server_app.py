"""The server: trains, and forgets a site if one is named."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

import fedunlearn
from fedunlearn.engines import flower
from scratch.model import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    model, config = build(), context.run_config
    server = fedunlearn.Server(
        model,
        flower.connect(grid, model, clients=4),
        folder=config["folder"],
        training=fedunlearn.LocalTraining(batch_size=50),
    )
    server.train(rounds=30, lr=0.2)
    if config["forget"]:
        schedule = fedunlearn.Schedule(unlearn_rounds=8, unlearn_lr=0.05, recover_rounds=4, recover_lr=0.05)
        server.forget(config["forget"], "fedosd", schedule, evaluate_every=4)
