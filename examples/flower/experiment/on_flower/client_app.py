"""The client of an experiment: node N holds what ``client-N`` holds."""

from functools import cache
from pathlib import Path

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedunlearn.engines import flower
from fedunlearn.experiment import Setting, prepare, read

app = ClientApp()


@cache
def setting(path: Path) -> Setting:
    return prepare(read(path))


def load(context: Context) -> flower.Site:
    """Training data as it was, and as the request has it: a client that forgets only some is two."""
    experiment = setting(Path(context.run_config["experiment"]))
    name = f"client-{context.node_config['partition-id']}"
    before, after = experiment.population.pretraining[name], experiment.population.unlearning
    parts = {
        client.removeprefix(name): data for client, data in after.items() if client.startswith(f"{name}#")
    }
    return flower.Site(
        experiment.build(0), after.get(name, before), parts={"pretraining": before, **parts}, name=name
    )


flower.serve(app, load)
