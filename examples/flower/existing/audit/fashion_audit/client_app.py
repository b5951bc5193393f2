"""The client: says what its site holds; fedunlearn compares models on it."""

from flwr.app import Context
from flwr.clientapp import ClientApp

from fashion_audit import task
from fedunlearn import ClientData
from fedunlearn.engines import flower

app = ClientApp()


def load(context: Context) -> flower.Site:
    """What the site trained on, and images that nobody trained on."""
    number = context.node_config["partition-id"]
    seen, unseen = (each.dataset.tensors for each in task.load_data(context.run_config["data"], number, 16))
    return flower.Site(task.Net(), ClientData(seen, {"audit": unseen, "test": unseen}), name=f"site-{number}")


flower.serve(app, load)
