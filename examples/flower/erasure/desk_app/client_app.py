"""The client: says what a site holds, and keeps half of it unseen for the audit."""

from flwr.app import Context
from flwr.clientapp import ClientApp

from desk_app.model import build
from fedunlearn import ClientData
from fedunlearn.data import load as load_images
from fedunlearn.engines import flower

app = ClientApp()


def held(number: int) -> ClientData:
    """Every third embedded image."""
    images = load_images("fashion-demo")
    x, y = images.train.x[number::3], images.train.y[number::3]
    half = len(y) // 2
    test = images.test.x[number::3], images.test.y[number::3]
    return ClientData((x[:half], y[:half]), {"test": test, "audit": (x[half:], y[half:])})


def load(context: Context) -> flower.Site:
    return flower.Site(build(), held(int(context.node_config["partition-id"])))


flower.serve(app, load)
