"""Clients that run the library's own code on the data of ``federations.py``."""

import sys

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedunlearn.engines import flower


def load(context: Context) -> flower.Site:
    sys.path.append(str(context.run_config["tests"]))
    from support.federations import holdings, network

    model = str(context.run_config["model"])
    client = f"site-{context.node_config['partition-id']}"
    return flower.Site(network(model), holdings(model)[client], name=client)


app = ClientApp()
flower.serve(app, load)
