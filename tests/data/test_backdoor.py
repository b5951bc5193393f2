from __future__ import annotations

import pytest
import torch
from support.codes import refused

from fedunlearn import Examples
from fedunlearn.data import Trigger, poison, trigger, triggered


@pytest.fixture
def examples() -> Examples:
    random = torch.Generator().manual_seed(0)
    return Examples(torch.rand(450, 3, 12, 10, generator=random), torch.arange(450) % 10)


def test_the_pattern_is_near_the_corner_and_never_empty():
    for seed in range(1500):  # an empty pattern would come up about three times
        mask = trigger(seed, (1, 12, 10)).mask
        assert mask.any()
        mask[-4:-1, -4:-1] = False
        assert not mask.any()
    assert torch.equal(trigger(3, (3, 32, 32)).mask, trigger(3, (32, 32)).mask)
    assert len({tuple(trigger(seed, (28, 28)).mask.flatten().tolist()) for seed in range(20)}) > 10


def test_pixels_change_under_the_mask_only_and_labels_shift(examples):
    mark = trigger(1, examples.x.shape)
    result = poison(examples, mark, 10, share=1.0, batch_size=100)
    assert torch.equal(result.x[..., ~mark.mask], examples.x[..., ~mark.mask])
    assert (result.x[..., mark.mask] == torch.tensor(0.8333)).all()
    assert torch.equal(result.y, (examples.y + 5) % 10)
    twice = poison(result, mark, 10, share=1.0, batch_size=100)
    assert torch.equal(twice.y, examples.y)
    assert result.x.dtype == torch.float32
    assert result.x.is_contiguous()


def test_the_first_part_of_each_batch_is_poisoned(examples):
    mark = trigger(1, examples.x.shape, value=2.0)
    before = examples.x.clone(), examples.y.clone()
    result = poison(examples, mark, 10, share=0.8, batch_size=200)
    changed = result.y != examples.y
    assert [int(part.sum()) for part in changed.split(200)] == [160, 160, 40]
    assert changed[:160].all()
    assert changed[200:360].all()
    assert changed[400:440].all()
    assert torch.equal(result.x[~changed], examples.x[~changed])
    assert (result.x[changed][..., mark.mask] == 2.0).all()
    assert torch.equal(examples.x, before[0])
    assert torch.equal(examples.y, before[1])


@pytest.mark.parametrize(
    ("share", "batch", "count"), [(0.29, 100, 29), (0.57, 100, 57), (0.8, 5, 4), (0.8, 1, 0)]
)
def test_the_count_is_rounded_down_and_not_twice(share, batch, count):
    assert int(triggered(batch, share, batch).sum()) == count


def test_an_odd_number_of_classes_shifts_by_the_half_rounded_down():
    mark = Trigger(torch.ones(4, 4, dtype=torch.bool))
    result = poison(Examples(torch.zeros(5, 1, 4, 4), torch.arange(5)), mark, 5, 1.0, 5)
    assert result.y.tolist() == [2, 3, 4, 0, 1]


def test_pictures_that_are_too_small_and_shares_out_of_range_are_refused(examples):
    with refused("invalid", says="at least 4×4 pixels"):
        trigger(0, (1, 3, 28))
    with refused("invalid", says=r"share must be in \(0, 1\], not 1.5"):
        poison(examples, trigger(0, (12, 10)), 10, 1.5, 10)
