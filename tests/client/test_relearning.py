"""A client that is taught some of its forgotten examples, and what leaves it."""

from __future__ import annotations

import pytest
import torch
from support.codes import refused
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from fedunlearn import ClientData, Examples, Sequential, State, Terms
from fedunlearn.client.data import part, size
from fedunlearn.client.relearning import FEWEST, forgotten, lesson, measuring_job, rest, teaching_job
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import flatten

SIZE = 60


def drawn(size: int = SIZE, *name: object) -> Examples:
    random = generator("relearning test", *name)
    return Examples(torch.randn(size, 5, generator=random), torch.randint(0, 3, (size,), generator=random))


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Linear(5, 3)


def state() -> State:
    return State(flatten(model()))


def chosen(client: str, count: int, draw: int, held: int = SIZE) -> tuple[torch.Tensor, torch.Tensor]:
    order = torch.randperm(held, generator=generator("lesson", draw, client))
    return order[:count].sort().values, order[count:].sort().values


def test_a_target_trains_on_its_lesson_alone():
    data, job = ClientData(drawn()), teaching_job(state().params, 20, 7)
    reply = Sequential(model(), {"a": data}).exchange({"a": job}, Terms(lr=0.5, batch_size=100))["a"]
    taught = part(data.train, chosen("a", 20, 7)[0])
    module = model()
    cross_entropy(module(taught.x), taught.y).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
    assert torch.allclose(reply.displacement, 0.5 * gradient, atol=1e-6)
    assert reply.examples == 20


@pytest.mark.parametrize("count", [0, 20])
def test_the_loss_is_measured_on_the_rest(count):
    data, job = ClientData(drawn()), measuring_job(state(), count, 7)
    reply = Sequential(model(), {"a": data}).exchange({"a": job})["a"]
    left = part(data.train, chosen("a", count, 7)[1])
    expected = cross_entropy(model()(left.x), left.y).item()
    found = reply.statistics["forgotten"]["loss"]
    assert found.count == SIZE - count
    assert found.value == pytest.approx(expected, rel=1e-5)


def test_sums_over_one_set_are_all_that_leaves():
    reply = Sequential(model(), {"a": ClientData(drawn())}).exchange({"a": measuring_job(state(), 20, 7)})[
        "a"
    ]
    assert reply.statistics.keys() == {"forgotten"}
    assert reply.statistics["forgotten"].keys() == {"loss", "accuracy"}
    assert (reply.displacement, reply.arrays, reply.buffers) == (None, {}, {})


def test_lessons_are_drawn_by_seed_and_client():
    data = ClientData(drawn())
    lessons = {
        (client, draw): lesson(client, data, teaching_job(state().params, 20, draw)).x
        for client in "ab"
        for draw in (1, 2)
    }
    assert torch.equal(lessons["a", 1], lesson("a", data, teaching_job(state().params, 20, 1)).x)
    assert len({float(x.sum()) for x in lessons.values()}) == 4


def test_at_most_half_is_taught_and_few_examples_are_refused():
    data = ClientData(drawn())
    assert size(lesson("a", data, teaching_job(state().params, 100, 7))) == SIZE // 2
    assert size(rest("a", data, measuring_job(state(), 100, 7))) == SIZE // 2
    for held, count in ((2 * FEWEST - 1, 100), (SIZE, FEWEST - 1)):
        with refused("data", says=r"a holds .* so that none of them is revealed"):
            lesson("a", ClientData(drawn(held)), teaching_job(state().params, count, 7))
    with refused("data", says=f"needs {FEWEST} to teach and {FEWEST} others"):
        rest("a", ClientData(drawn(FEWEST - 1)), measuring_job(state(), 0, 7))


def test_what_was_forgotten():
    train, backdoor, forget, canaries = drawn(60), drawn(40), drawn(30), drawn(9)
    both = Examples(torch.cat([train.x, canaries.x]), torch.cat([train.y, canaries.y]))
    assert forgotten(ClientData(train)).x is train.x
    assert torch.equal(forgotten(ClientData(both, {"canary-in": canaries})).x, train.x)
    assert forgotten(ClientData(train, {"forget": forget, "test": train})).x is forget.x
    assert forgotten(ClientData(train, {"forget": forget, "backdoor": backdoor})).x is backdoor.x


@pytest.mark.parametrize("kind", ["pair", "tensor", "dict", "dataset", "loader"])
def test_every_kind_of_data_can_be_divided(kind):
    x, y = drawn()
    data = {
        "pair": Examples(x, y),
        "tensor": x,
        "dict": {"x": x, "y": y},
        "dataset": TensorDataset(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True),
    }[kind]
    index = torch.tensor([3, 5, 11])
    divided = part(data, index)
    assert size(divided) == 3
    if kind in ("pair", "tensor", "dict"):
        inputs = {"pair": lambda: divided.x, "tensor": lambda: divided, "dict": lambda: divided["x"]}[kind]()
    elif kind == "dataset":
        inputs = torch.stack([divided[number][0] for number in range(3)])
    else:
        ((inputs, _),) = divided
    assert torch.equal(inputs, x[index])


def test_a_loader_without_batches_is_refused():
    loader = DataLoader(TensorDataset(*drawn()), batch_size=None)
    with refused("invalid", says="without a batch_size cannot be divided"):
        part(loader, torch.tensor([1]))
