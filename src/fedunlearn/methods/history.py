"""What pre-training writes down for methods that need it later: running sums, never the updates themselves.

Everything is kept for every client, because nobody knows yet who will leave.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from ..core import ClientId, FedUnlearnError, Replies, Request, State, Vector
from ..core.registry import did_you_mean


def _share(request: Request, state: State, replies: Replies) -> Mapping[str, Tensor]:
    """p_i, each client's share of the examples in the last round it took part in."""
    return {f"share {c}": torch.tensor(p) for c, p in zip(replies, replies.weights(), strict=True)}


def _norms(request: Request, state: State, replies: Replies) -> Mapping[str, Tensor]:
    """‖U_i‖ by round and parameter tensor, and the model of the first round."""
    rows = {client: torch.zeros(1, max(1, len(request.shapes))) for client in request.clients}
    for client, reply in replies.items():
        pieces = request.pieces(reply.displacement).values() if request.shapes else [reply.displacement]
        rows[client] = torch.stack([torch.linalg.vector_norm(piece) for piece in pieces]).unsqueeze(0)
    return {
        "norms": state.memory.get("norms", state.params),
        **{
            f"norms {client}": torch.cat([state.memory.get(f"norms {client}", row[:0]), row])
            for client, row in rows.items()
        },
    }


def _residuals(request: Request, state: State, replies: Replies) -> Mapping[str, Tensor]:
    """Σ a_t (U_i − Ū) with a_t = ‖Ū‖²/η²; beside them the number of rounds and Σ a_t."""
    mean = replies.average()
    weight = float(torch.linalg.vector_norm(mean, dtype=torch.float64)) ** 2 / state.lr**2
    so_far = state.memory.get("residuals", torch.zeros(2, dtype=torch.float64))
    terms = {client: weight * (mean - reply.displacement) for client, reply in replies.items()}
    return {
        "residuals": so_far + torch.tensor([1, weight], dtype=torch.float64),
        **_sums("residuals", state, terms),
    }


def _updates(request: Request, state: State, replies: Replies) -> Mapping[str, Tensor]:
    """Σ p_i U_i: all that a client ever added to the model."""
    shares = zip(replies.items(), replies.weights(), strict=True)
    return _sums("updates", state, {client: -share * reply.displacement for (client, reply), share in shares})


def _locals(request: Request, state: State, replies: Replies) -> Mapping[str, Tensor]:
    """ω_i of the last round; nothing of a client that missed it."""
    return {
        f"locals {client}": state.params - replies[client].displacement
        if client in replies
        else torch.empty(0)
        for client in request.clients
    }


def _sums(kind: str, state: State, terms: Mapping[ClientId, Vector]) -> Mapping[str, Tensor]:
    return {
        f"{kind} {client}": state.memory.get(f"{kind} {client}", torch.zeros_like(term)) + term
        for client, term in terms.items()
    }


BESIDE = frozenset({"share", "member"})
"""What is kept with any kind."""

KINDS = {"norms": _norms, "residuals": _residuals, "updates": _updates, "locals": _locals}


def record(kinds: Collection[str], request: Request, state: State, replies: Replies) -> Mapping[str, Tensor]:
    """The history with one round more, given the state and the replies of that round."""
    for kind in kinds:
        if kind not in KINDS:
            raise FedUnlearnError(f"unknown history {kind!r}{did_you_mean(kind, KINDS)}")
    chosen = [_share, *(KINDS[kind] for kind in sorted(kinds))] if kinds else []
    return {name: value for part in chosen for name, value in part(request, state, replies).items()}


def size(kinds: Collection[str], request: Request, rounds: int) -> int:
    """The bytes that a history grows to."""
    clients, parameters, tensors = len(request.clients), len(request.params), max(1, len(request.shapes))
    floats = {"norms": rounds * clients * tensors + parameters}
    return 4 * sum(floats.get(kind, clients * parameters) for kind in kinds)
