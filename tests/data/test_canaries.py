"""Canaries that clients get at enrolment."""

from __future__ import annotations

import pytest
import torch
from support.codes import refused

from fedunlearn import ClientData, Examples
from fedunlearn.client.data import own_examples
from fedunlearn.core.seeds import generator
from fedunlearn.data import Dataset, Population, draw_canaries, plant, populate

CLASSES = 4


def dataset() -> Dataset:
    random = generator("canary test")

    def drawn(size: int) -> Examples:
        x = torch.rand(size, 1, 6, 6, generator=random) * 3 - 1
        return Examples(x, torch.randint(0, CLASSES, (size,), generator=random))

    return Dataset("noise", CLASSES, drawn(160), drawn(40))


def people(level: str = "client", *, backdoor: bool = False, audit: float = 0.25, **options) -> Population:
    return populate(
        dataset(),
        partition="iid",
        clients=4,
        seed=1,
        batch_size=5,
        level=level,
        backdoor=backdoor,
        audit=audit,
        **options,
    )


def same(one: Examples, other: Examples) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def test_a_fair_coin_decides_what_is_trained_on():
    shares, labels = [], []
    for seed in range(40):
        trained, held_out = draw_canaries("a", 50, shape=(1, 6, 6), classes=CLASSES, seed=seed)
        assert len(trained.y) + len(held_out.y) == 50
        shares.append(len(trained.y) / 50)
        labels.append(trained.y.double().mean() - held_out.y.double().mean())
    assert sum(shares) / 40 == pytest.approx(0.5, abs=0.04)
    assert max(shares) > 0.5 > min(shares)  # a coin, not a division into halves
    assert float(torch.stack(labels).mean()) == pytest.approx(0, abs=0.15)


def test_pictures_are_noise_between_the_values_of_the_data():
    trained, held_out = draw_canaries("a", 500, shape=(3, 8, 8), classes=CLASSES, seed=1, low=-2, high=3)
    x = torch.cat([trained.x, held_out.x])
    assert x.dtype == torch.float32
    assert set(x.unique().tolist()) == {-2.0, 3.0}
    assert float((x == 3).double().mean()) == pytest.approx(0.2, abs=0.01)
    assert set(trained.y.tolist()) == set(range(CLASSES))


def test_clients_and_seeds_have_their_own():
    drawn = {
        (client, seed): draw_canaries(client, 20, shape=(4,), classes=2, seed=seed)
        for client in "ab"
        for seed in (1, 2)
    }
    assert same(drawn["a", 1][0], draw_canaries("a", 20, shape=(4,), classes=2, seed=1)[0])
    pictures = [torch.cat([part.x for part in parts]) for parts in drawn.values()]
    assert all(not torch.equal(one, pictures[0]) for one in pictures[1:])


@pytest.mark.parametrize("backdoor", [False, True], ids=["clean", "backdoor"])
def test_every_client_trains_on_some_after_its_own_examples(backdoor):
    without = people(backdoor=backdoor)
    planted = plant(without, dataset(), 16, 1)
    assert planted.targets == without.targets
    for stage in ("pretraining", "unlearning", "auditing"):
        before, after = getattr(without, stage), getattr(planted, stage)
        assert before.keys() == after.keys()
        for client, held in after.items():
            trained, held_out = held.evaluations["canary-in"], held.evaluations["canary-out"]
            assert len(trained.y) + len(held_out.y) == 16
            assert same(held.train.take(torch.arange(len(held.train.y))[-len(trained.y) :]), trained)
            assert same(own_examples(held), before[client].train)
            kept = {name: set_ for name, set_ in held.evaluations.items() if "canary" not in name}
            assert kept.keys() == before[client].evaluations.keys()
            assert all(same(kept[name], before[client].evaluations[name]) for name in kept)


def test_samples_to_forget_take_the_canaries_along():
    without = people("sample", share=0.5)
    planted = plant(without, dataset(), 16, 1)
    (target,) = planted.targets
    client = target.partition("#")[0]
    assert "canary-in" in planted.pretraining[client].evaluations
    assert "canary-in" in planted.unlearning[target].evaluations
    assert same(planted.unlearning[client].train, without.unlearning[client].train)
    assert "canary-in" not in planted.unlearning[client].evaluations


def test_what_makes_no_sense_is_refused():
    with refused("invalid", says=r"one class does not cover them: set data\.canaries"):
        plant(people("class", label=1), dataset(), 16, 1)
    with refused("invalid", says="canaries = 0"):
        draw_canaries("a", 0, shape=(4,), classes=2, seed=1)
    x, y = torch.randn(5, 2), torch.zeros(5, dtype=torch.long)
    with refused("invalid", says="'canary-in' has 5 examples and 'train' has 5"):
        ClientData((x, y), {"canary-in": (x, y)})


def test_clients_without_canaries_are_what_they_were():
    held = people().pretraining["client-0"]
    assert own_examples(held) is held.train
