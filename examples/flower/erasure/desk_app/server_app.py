"""The server: trains the model, tells what answering a request takes, or answers it."""

from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import load_file, save_file
from torch import nn

import fedunlearn as fu
from desk_app.model import ROUNDS, build
from fedunlearn import erasure
from fedunlearn.engines import flower
from fedunlearn.signing import stated_client

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config, model = context.run_config, build()
    desk = erasure.open_desk(str(config["desk"]))
    production = desk.folder / str(desk.policy.model)
    federation = flower.connect(grid, model, clients=int(config["clients"]))
    if config["mode"] == "train":
        save_file(trained(desk, federation, model).state_dict(), production)
        return
    model.load_state_dict(load_file(production))
    document = Path(str(config["request"])).read_text().strip()
    if config["mode"] == "plan":
        about = {"document": document, "engine": "flower", "retrainings": 2, "trained": ROUNDS}
        plan = erasure.plan_erasure(desk, stated_client(document), federation, model, **about)
        print(*plan.sentences, sep="\n")
    else:
        answer(desk, document, federation, model)


def trained(desk: erasure.Desk, federation: fu.Federation, model: nn.Module) -> nn.Module:
    with TemporaryDirectory() as folder:  # no checkpoint of this model may outlive a request
        server = fu.Server(model, federation, folder=folder, training=desk.policy.training.local_training())
        server.train(ROUNDS, desk.policy.schedule.pretrain_lr)
    print(f"model {fu.module_hash(server.model)}")
    return server.model


def answer(desk: erasure.Desk, document: str, federation: fu.Federation, model: nn.Module) -> None:
    """Called again after a crash, it continues."""
    case = erasure.receive(desk, document, fu.module_hash(model))
    if not case.purging:
        auditor = erasure.against_retraining(desk, case.id, federation, model, rounds=ROUNDS)
        case = erasure.erase(desk, case.id, federation, model, auditor=auditor, engine="flower")
    if case.purging or erasure.due(desk, case):
        case = erasure.purge(desk, case.id)
    print(f"request {case.id} is {case.state}")
    if case.state.failed:
        raise fu.FedUnlearnError(f"request {case.id} is {case.state}: {case.next_step}")
