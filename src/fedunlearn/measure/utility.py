"""What the model is still worth to the clients that stay."""

from __future__ import annotations

from statistics import fmean, pstdev

from ..core import Evaluation, Metrics, Request


def utility(evaluation: Evaluation, request: Request) -> Metrics:
    """R-Acc over the retained clients: mean, population deviation, worst, best; and their mean loss.

    ``r_acc CLIENT`` is one client's share in it; ``r_seen`` the mean on examples that they trained on.
    """
    rows = {
        client: evaluation[client]
        for client in request.retained
        if "test_accuracy" in evaluation.get(client, {})
    }
    if not rows:
        return {}
    accuracies = [row["test_accuracy"] for row in rows.values()]
    seen = [row["seen_accuracy"] for row in rows.values() if "seen_accuracy" in row]
    return {
        "r_acc": fmean(accuracies),
        "r_acc_std": pstdev(accuracies),
        "r_acc_worst": min(accuracies),
        "r_acc_best": max(accuracies),
        "loss_retained": fmean(row["test_loss"] for row in rows.values()),
        **({"r_seen": fmean(seen)} if seen else {}),
        **{f"r_acc {client}": row["test_accuracy"] for client, row in rows.items()},
    }
