"""The direction from Gram matrices of shards: what a server that cannot hold all rows would compute."""

from __future__ import annotations

import pytest
import torch

from fedunlearn.maths import orthogonal_direction


@pytest.mark.parametrize("shards", [1, 2, 7, 50])
@pytest.mark.parametrize("dependent", [False, True], ids=["independent rows", "a row twice"])
def test_gram_matrices_of_shards_add_up_to_the_same_step(shards, dependent):
    random = torch.Generator().manual_seed(shards)
    retain = torch.randn(6, 1000, generator=random, dtype=torch.float64)
    if dependent:
        retain[3] = retain[1]
    forget = torch.randn(1000, generator=random, dtype=torch.float64)
    width = -(-1000 // shards)
    parts = list(zip(retain.split(width, dim=1), forget.split(width), strict=True))
    gram = sum(rows @ rows.T for rows, _ in parts)
    products = sum(rows @ part for rows, part in parts)
    weights = torch.linalg.pinv(gram, rtol=1e-12, hermitian=True) @ products
    step = torch.cat([rows.T @ weights - part for rows, part in parts])
    step *= forget.norm() / step.norm()
    found = orthogonal_direction(forget, retain)
    assert torch.allclose(step, found.vector, rtol=0, atol=1e-11)
    assert (retain @ step).abs().max() < 1e-9
