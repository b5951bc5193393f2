"""The worth of the model to the clients that stay."""

from __future__ import annotations

from statistics import fmean, pstdev

from ..core import ClientId, Metrics, Replies, Request
from .forgetting import SHORT


def utility(replies: Replies, request: Request) -> Metrics:
    """R-Acc over the retained clients: mean, population deviation, worst, best; and their mean loss.

    ``r_acc CLIENT`` is one client's part in it; ``r_seen`` the mean on examples that they trained on. Other
    scores than accuracy have their mean and deviation.
    """
    rows = {
        client: replies[client].statistics["test"]
        for client in request.retained
        if "test" in getattr(replies.get(client), "statistics", {})
    }
    measures: Metrics = {}
    for score in dict.fromkeys(score for row in rows.values() for score in row if score != "loss"):
        key = f"r_{SHORT.get(score, score)}"
        values = {client: row[score].value for client, row in rows.items() if score in row}
        measures |= {key: fmean(values.values()), f"{key}_std": pstdev(values.values())}
        if score == "accuracy":
            measures |= {f"{key}_worst": min(values.values()), f"{key}_best": max(values.values())}
        measures |= {f"{key} {client}": value for client, value in values.items()}
    losses = [row["loss"].value for row in rows.values() if "loss" in row]
    seen = [
        reply.statistics["seen"]["accuracy"].value
        for reply in replies.of(rows).values()
        if "accuracy" in reply.statistics.get("seen", {})
    ]
    return {
        **measures,
        **({"loss_retained": fmean(losses)} if losses else {}),
        **({"r_seen": fmean(seen)} if seen else {}),
    }


def tested(replies: Replies, request: Request) -> dict[ClientId, int]:
    """The number of test examples on which each retained client measured its accuracy."""
    means = {
        client: reply.statistics.get("test", {}).get("accuracy")
        for client, reply in replies.of(request.retained).items()
    }
    return {client: mean.count for client, mean in means.items() if mean is not None}
