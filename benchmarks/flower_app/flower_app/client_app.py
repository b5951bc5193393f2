"""Clients of the workloads of the benchmarks."""

import sys

from flwr.app import Context
from flwr.clientapp import ClientApp

from fedunlearn.engines import flower


def load(context: Context) -> flower.Site:
    config = context.run_config
    sys.path.append(str(config["benchmarks"]))
    from workloads import holdings, network

    data = holdings(str(config["model"]), int(config["samples"]), int(config["nodes"]))
    client = f"client-{int(context.node_config['partition-id']):04}"
    return flower.Site(network(str(config["model"])), data[client], name=client)


app = ClientApp()
flower.serve(app, load)
