from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from fedunlearn import ClientData, Examples, Job, flatten, objective
from fedunlearn.core.seeds import generator
from fedunlearn.local import Learner
from fedunlearn.objectives import Minimise

torch.set_num_threads(1)


def network(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def examples(count: int = 25) -> Examples:
    random = generator("local examples")
    return Examples(torch.randn(count, 6, generator=random), torch.randint(0, 3, (count,), generator=random))


def job(model: nn.Module, **fields: object) -> Job:
    return Job(flatten(model), **{"lr": 0.1, "batch_size": 10, **fields})


def test_local_training_is_plain_sgd_over_consecutive_batches():
    model, data = network(), examples()
    reply = Learner(model).train(data, job(model, epochs=2))
    reference = copy.deepcopy(model)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in zip(data.x.split(10), data.y.split(10), strict=True):
            optimiser.zero_grad()
            nn.functional.cross_entropy(reference(x), y).backward()
            optimiser.step()
    assert torch.allclose(flatten(model) - reply.displacement, flatten(reference), atol=1e-6)
    assert reply.examples == 25


def test_the_users_module_and_torchs_generator_stay_untouched():
    model = network(dropout=0.5)
    before, random = flatten(model), torch.get_rng_state()
    Learner(model).train(examples(), job(model, seed=3))
    assert torch.equal(flatten(model), before)
    assert torch.equal(torch.get_rng_state(), random)


def test_dropout_follows_the_seed_of_the_job_alone():
    model = network(dropout=0.5)
    learner = Learner(model)
    first = learner.train(examples(), job(model, seed=3)).displacement
    torch.manual_seed(99)
    again = learner.train(examples(), job(model, seed=3)).displacement
    other = learner.train(examples(), job(model, seed=4)).displacement
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_tiny_learning_rate_keeps_its_digits():
    model, data = network(), examples(10)
    coarse = Learner(model).train(data, job(model, lr=1e-3)).displacement / 1e-3
    fine = Learner(model).train(data, job(model, lr=1e-9)).displacement / 1e-9
    assert float((coarse - fine).norm() / coarse.norm()) < 1e-6


def test_replies_do_not_share_memory():
    model = network()
    learner = Learner(model)
    first = learner.train(examples(), job(model)).displacement
    kept = first.clone()
    learner.train(examples(), job(model, lr=1.0))
    assert torch.equal(first, kept)


def test_the_reported_loss_is_the_mean_over_examples():
    model, data = network(), examples(25)
    reply = Learner(model).train(data, job(model, lr=0.0))
    expected = nn.functional.cross_entropy(model(data.x), data.y).item()
    assert reply.metrics["loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_counts_over_all_batches():
    model, data = network(), examples(2500)
    scores = Learner(model).evaluate(ClientData(data, {"test": data}), flatten(model), {})
    assert scores["test_accuracy"] == int((model(data.x).argmax(1) == data.y).sum()) / 2500
    assert scores["test_loss"] == pytest.approx(
        nn.functional.cross_entropy(model(data.x), data.y).item(), rel=1e-5
    )
    assert scores["test_examples"] == 2500


def test_batch_norm_statistics_ride_beside_the_parameters():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    reply = Learner(model).train(examples(), job(model))
    assert len(reply.displacement) == sum(p.numel() for p in model.parameters())
    assert set(reply.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert int(reply.buffers["1.num_batches_tracked"]) == 3
    assert not torch.equal(reply.buffers["1.running_mean"], model[1].running_mean)


def test_frozen_parameters_are_no_part_of_the_vector():
    model = network()
    model[0].weight.requires_grad_(False)
    reply = Learner(model).train(examples(), job(model))
    assert len(reply.displacement) == 8 + 3 * 8 + 3


def test_a_step_of_a_perceptron_allocates_little():
    model = nn.Sequential(nn.Linear(50, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3))
    random = generator("allocations")
    data = Examples(torch.randn(100, 50, generator=random), torch.zeros(100, dtype=torch.int64))
    learner, task, out = Learner(model), job(model, batch_size=10), flatten(model)
    learner.train(data, task, out=out)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        learner.train(data, task, out=out)
    allocated = [event.cpu_memory_usage for event in profiler.events() if event.name == "[memory]"]
    steps, most = 10, max(allocated)
    assert sum(size > 0 for size in allocated) <= 25 * steps
    # Gradients are summed where they are: nothing is as large as a matrix of weights.
    assert most < 300 * 300 * 4


def test_convolutions_get_channels_last_unless_the_model_calls_view():
    class Watching(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            layouts.append(x.is_contiguous(memory_format=torch.channels_last))
            return super().forward(x)

    def last_layout(*tail: nn.Module) -> bool:
        layouts.clear()
        model = nn.Sequential(Watching(3, 4, 3), *tail, nn.Linear(4 * 36, 3))
        data = Examples(torch.randn(6, 3, 8, 8, generator=generator("layout")), torch.arange(6) % 3)
        Learner(model).train(data, job(model, batch_size=3))
        return layouts[-1]

    class View(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(len(x), -1)

    layouts: list[bool] = []
    assert last_layout(nn.Flatten())
    assert not last_layout(View())


def test_projections_after_each_step_keep_their_digits():
    @objective("test: projected", summary="test")
    def _projected(arrays):
        class Projected(Minimise):
            def step(self, params, gradient, lr):
                return params - (params - lr * gradient).clamp(-0.2, 0.2)

        return Projected(nn.functional.cross_entropy)

    model, data = network(), examples(20)
    reply = Learner(model).train(data, job(model, objective="test: projected"))
    reference = copy.deepcopy(model)
    optimiser = torch.optim.SGD(reference.parameters(), lr=0.1)
    for x, y in zip(data.x.split(10), data.y.split(10), strict=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(reference(x), y).backward()
        optimiser.step()
        with torch.no_grad():
            for parameter in reference.parameters():
                parameter.clamp_(-0.2, 0.2)
    assert torch.allclose(flatten(model) - reply.displacement, flatten(reference), atol=1e-6)
    assert (flatten(model) - reply.displacement).abs().max() <= 0.2 + 1e-6


def plain_sgd(model: nn.Module, data: Examples, loss) -> torch.Tensor:
    reference = copy.deepcopy(model)
    for x, y in zip(data.x.split(10), data.y.split(10), strict=True):
        gradients = torch.autograd.grad(loss(reference, x, y), list(reference.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(reference.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
    return flatten(reference)


def attack(model: nn.Module, x: torch.Tensor, y: torch.Tensor, inside) -> torch.Tensor:
    """Loss on inputs moved along their own gradient."""
    x = x.clone().requires_grad_()
    return nn.functional.cross_entropy(model((x + 0.5 * inside(model, x, y)).detach()), y)


def by_grad(model, x, y):
    return torch.autograd.grad(nn.functional.cross_entropy(model(x), y), x)[0]


def by_backward(model, x, y):
    nn.functional.cross_entropy(model(x), y).backward()
    moved = x.grad
    model.zero_grad()
    return moved


def penalised(model, x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    return loss + sum(slope.square().sum() for slope in slopes)


LOSSES = {
    "grad": lambda model, x, y: attack(model, x, y, by_grad),
    "backward": lambda model, x, y: attack(model, x, y, by_backward),
    "penalty": penalised,
}


@pytest.mark.parametrize("name", LOSSES)
def test_an_objective_may_use_gradients_of_its_own(name):
    @objective(f"test: {name}", summary="test")
    def _own(arrays):
        class Own(Minimise):
            def loss(self, model, x, y):
                return LOSSES[name](model, x, y)

        return Own(nn.functional.cross_entropy)

    random = generator("own gradients")
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) / 2)
    data = examples(20)
    reply = Learner(model).train(data, job(model, objective=f"test: {name}"))
    assert torch.allclose(
        flatten(model) - reply.displacement, plain_sgd(model, data, LOSSES[name]), atol=1e-5
    )
