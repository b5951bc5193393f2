"""The client: says what a site holds; fedunlearn trains, forgets and measures."""

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedunlearn import ClientData
from fedunlearn.data import load as load_images
from fedunlearn.engines import flower
from scratch.model import build

app = ClientApp()


def load(context: Context) -> flower.Site:
    """Every fourth embedded image; site-3 has inverted images with wrong labels."""
    number = int(context.node_config["partition-id"])
    images = load_images("fashion-demo")
    x, y = images.train.x[number::4], images.train.y[number::4]
    sets = {"test": (images.test.x[number::4], images.test.y[number::4])}
    if number == 3:
        x, y = -x, (y + 5) % 10
        sets["forget"] = x, y
    return flower.Site(build(), ClientData((x, y), sets), name=f"site-{number}")


flower.serve(app, load)
