"""The attacks of ``scripts/inversion`` find what they should, and its page shows the stored figures."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedunlearn.core import vectors
from fedunlearn.core.seeds import generator
from fedunlearn.data import load
from fedunlearn.maths import orthogonal_direction, unlearning_cross_entropy
from fedunlearn.models import build
from fedunlearn.runs import read_json

pytest.importorskip("scipy")
pytest.importorskip("matplotlib")
sys.path.insert(0, str(Path(__file__).parents[1] / "scripts/inversion"))

import gradient_attacks as attacks
import inversion_page as page
import quality

SHAPE = (1, 28, 28)


@pytest.fixture(scope="module")
def images():
    return load("fashion-demo").train


def gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    slopes = torch.autograd.grad(unlearning_cross_entropy(model(x), y), vectors.trainable(model))
    return torch.cat([slope.reshape(-1) for slope in slopes])


@pytest.mark.parametrize("scale", [1e-6, 1.0])
def test_the_label_of_one_example_is_always_recovered(images, scale):
    model = build("lenet5", 10, SHAPE, "labels")
    for number in range(40):
        x, y = images.x[number : number + 1], images.y[number : number + 1]
        assert attacks.recover_labels(scale * gradient(model, x, y), model, 1) == y.tolist()


def test_labels_of_a_batch_come_with_their_counts(images):
    model = build("lenet5", 10, SHAPE, "labels")
    x = images.x[:6]
    assert attacks.recover_labels(gradient(model, x, torch.tensor([7] * 4 + [2] * 2)), model, 6) == [
        *[2] * 2,
        *[7] * 4,
    ]


def test_one_example_is_reconstructed_better_than_its_class_mean(images):
    model = build("lenet5", 10, SHAPE, "one example")
    x, y = images.x[:1], images.y[:1]
    known, known_labels = images.x[100:500], images.y[100:500]
    everything, grey = images.x, known.mean(0)
    seen = gradient(model, x, y)
    features = attacks.recover_features(seen, model, 1, known[:5])
    guess, _ = quality.compare(x, quality.class_means(y, known, known_labels), everything, grey)
    found, _ = quality.compare(x, attacks.invert_features(features, model, SHAPE), everything, grey)
    assert (guess.identified, found.identified) == (0, 1)
    assert found.psnr > guess.psnr + 1
    assert found.ssim > guess.ssim + 0.05
    matched = attacks.match_gradient(seen, model, y, SHAPE, iterations=100)
    assert quality.compare(x, matched, everything, grey)[0].identified == 1


def test_features_of_several_examples_are_exact(images):
    model = build("mlp-small", 10, SHAPE, "features")
    x, y = images.x[:3], images.y[:3]
    found = attacks.recover_features(gradient(model, x, y), model, 3, images.x[100:200])
    assert len(found) >= 2
    assert torch.cdist(found, x.flatten(1)).min(1).values.max() < 0.01


def test_noise_holds_no_features(images):
    model = build("mlp-small", 10, SHAPE, "features")
    noise = torch.randn(len(vectors.flatten(model)), generator=generator("noise"))
    assert len(attacks.recover_features(noise, model, 3, images.x[100:110])) == 0


def test_a_coalition_undoes_the_projection(images):
    model = build("lenet5", 10, SHAPE, "coalition")
    target = gradient(model, images.x[:2], images.y[:2])
    others = torch.stack(
        [gradient(model, images.x[n : n + 50], images.y[n : n + 50]) for n in range(50, 300, 50)]
    )
    step = -orthogonal_direction(target, others).vector
    assert torch.cosine_similarity(step, target, dim=0) < 0.95
    undone = attacks.undo_projection(step, others, model)
    assert torch.cosine_similarity(undone.double(), target.double(), dim=0) > 0.9999


def test_quality_tells_the_original_from_its_like(images):
    originals, others = images.x[:4], images.x[10:14]
    same, ordered = quality.compare(originals, originals.flip(0), images.x, images.x.mean(0))
    assert (same.ssim, same.identified) == (pytest.approx(1), 1)
    assert torch.equal(ordered, originals)
    assert quality.compare(originals, others, images.x, images.x.mean(0))[0].identified == 0
    none, _ = quality.compare(originals, originals[:1], images.x, images.x.mean(0))
    assert none.identified == 0.25


@pytest.mark.parametrize(("lengths", "number"), [([1.0, 1, 1, 1], 4), ([1.0, 0, 0, 0], 1)])
def test_how_many_examples_contribute(lengths, number):
    assert attacks.contributing(torch.tensor(lengths)) == pytest.approx(number)


def test_who_has_the_longer_gradient():
    lengths = torch.tensor([3.0, 1.0, 2.0, 0.0])
    assert quality.longer(lengths, torch.tensor([True, False, True, False])) == 1
    assert quality.longer(lengths, torch.tensor([True, True, False, False])) == 0.75
    assert quality.longer(lengths, torch.ones(4, dtype=torch.bool)) is None


def test_the_page_shows_the_stored_figures():
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.renewed(text, read_json(page.STORED)["requests"]) == text, (
        f"{page.PAGE.name} is out of date: run python scripts/inversion"
    )
