from __future__ import annotations

import copy

import pytest
import torch
from support.codes import refused
from torch import nn

from fedunlearn import (
    Classification,
    ClientData,
    Examples,
    Job,
    Reply,
    Terms,
    flatten,
    loss,
    step,
    train,
)
from fedunlearn.client import Learner
from fedunlearn.core.seeds import generator
from fedunlearn.methods.ewcsga import fisher  # noqa: F401


def network(dropout: float = 0.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def examples(count: int = 25) -> Examples:
    random = generator("local examples")
    return Examples(torch.randn(count, 6, generator=random), torch.randint(0, 3, (count,), generator=random))


def trained(
    model: nn.Module, data: Examples, job: Job | None = None, learner: Learner | None = None, **terms: object
) -> Reply:
    """What one client makes of a job, by default of ordinary training."""
    learner = learner or Learner(model, Classification())
    asked = job or train(flatten(model))
    return learner.perform("site", ClientData(data), asked, Terms(**{"lr": 0.1, "batch_size": 10, **terms}))


def test_local_training_is_plain_sgd_over_consecutive_batches():
    model, data = network(), examples()
    reply = trained(model, data, epochs=2)
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
    trained(model, examples(), seed=(3,))
    assert torch.equal(flatten(model), before)
    assert torch.equal(torch.get_rng_state(), random)


def test_dropout_follows_the_seed_of_the_job_alone():
    model = network(dropout=0.5)
    learner = Learner(model, Classification())
    first = trained(model, examples(), learner=learner, seed=(3,)).displacement
    torch.manual_seed(99)
    again = trained(model, examples(), learner=learner, seed=(3,)).displacement
    assert torch.equal(first, again)
    for other in ({"seed": (4,)}, {"seed": (3,), "exchange": 1}):
        assert not torch.equal(first, trained(model, examples(), learner=learner, **other).displacement)


def test_a_tiny_learning_rate_keeps_its_digits():
    model, data = network(), examples(10)
    coarse = trained(model, data, lr=1e-3).displacement / 1e-3
    fine = trained(model, data, lr=1e-9).displacement / 1e-9
    assert float((coarse - fine).norm() / coarse.norm()) < 1e-6


def test_replies_do_not_share_memory():
    model = network()
    learner = Learner(model, Classification())
    first = trained(model, examples(), learner=learner).displacement
    kept = first.clone()
    trained(model, examples(), learner=learner, lr=1.0)
    assert torch.equal(first, kept)


def test_the_reported_loss_is_the_mean_over_examples():
    model, data = network(), examples(25)
    reply = trained(model, data, lr=0.0)
    expected = nn.functional.cross_entropy(model(data.x), data.y).item()
    assert reply.statistics["train"]["loss"].value == pytest.approx(expected, rel=1e-5)


def measured(model: nn.Module, learner: Learner, **sets: Examples) -> Reply:
    job = Job("measure", flatten(model), buffers={})
    return learner.perform("site", ClientData(examples(), sets), job, Terms())


def test_measuring_counts_over_all_batches_of_every_set():
    model, data, few = network(), examples(2500), examples(3)
    reply = measured(model, Learner(model, Classification()), test=data, seen=few)
    for name, held in (("test", data), ("seen", few)):
        found, output = reply.statistics[name], model(held.x)
        assert found["accuracy"].total == int((output.argmax(1) == held.y).sum())
        assert found["loss"].value == pytest.approx(
            nn.functional.cross_entropy(output, held.y).item(), rel=1e-5
        )
        assert {mean.count for mean in found.values()} == {len(held.y)}
    assert reply.displacement is None
    assert reply.examples == 25


def test_measuring_uses_the_model_as_in_use_not_as_in_training():
    model, data = nn.Sequential(network(dropout=0.9), nn.BatchNorm1d(3)), examples(50)
    learner = Learner(model, Classification())
    trained(model, data, learner=learner)
    for _ in range(2):
        reply = measured(model, learner, test=data)
        expected = nn.functional.cross_entropy(model.eval()(data.x), data.y).item()
        assert reply.statistics["test"]["loss"].value == pytest.approx(expected, rel=1e-5)


def test_works_of_methods_see_the_model_as_in_use():
    model, data = network(dropout=0.9), ClientData(examples())
    learner = Learner(model, Classification())
    trained(model, examples(), learner=learner)
    job = Job("fisher", flatten(model), buffers={})
    first = learner.perform("site", data, job, Terms(seed=(1,)))
    assert torch.equal(
        learner.perform("site", data, job, Terms(seed=(2,))).arrays["fisher"], first.arrays["fisher"]
    )


def test_parameters_of_another_model_are_refused():
    with refused("other-model", says="brings 5 parameters and the model of site has 83"):
        trained(network(), examples(), train(torch.zeros(5)))


def test_an_unknown_work_loss_or_step_rule_is_refused_with_a_suggestion():
    model = network()
    for job, said in (
        (Job("trian", flatten(model)), "unknown work 'trian'"),
        (train(flatten(model), "ucee"), r"unknown loss 'ucee'; did you mean 'uce'\?"),
        (train(flatten(model), step="plane"), r"unknown step rule 'plane'; did you mean 'plain'\?"),
    ):
        with refused("unknown", says=said):
            trained(model, examples(), job)


def test_effort_is_a_share_of_the_epochs_rounded_up():
    model, params = network(), flatten(network())
    for effort, epochs, passes in ((0.5, 3, 2), (0.1, 1, 1), (0.25, 4, 1), (1, 2, 2)):
        assert Terms(epochs=epochs).passes(train(params, effort=effort)) == passes
        part = trained(model, examples(), train(params, effort=effort), epochs=epochs)
        assert torch.equal(part.displacement, trained(model, examples(), epochs=passes).displacement)


def test_batch_norm_statistics_ride_beside_the_parameters():
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    reply = trained(model, examples())
    assert len(reply.displacement) == sum(p.numel() for p in model.parameters())
    assert set(reply.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert int(reply.buffers["1.num_batches_tracked"]) == 3
    assert not torch.equal(reply.buffers["1.running_mean"], model[1].running_mean)


def test_frozen_parameters_are_no_part_of_the_vector():
    model = network()
    model[0].weight.requires_grad_(False)
    reply = trained(model, examples())
    assert len(reply.displacement) == 8 + 3 * 8 + 3


def test_a_step_of_a_perceptron_allocates_little():
    model = nn.Sequential(nn.Linear(50, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3))
    random = generator("allocations")
    data = Examples(torch.randn(100, 50, generator=random), torch.zeros(100, dtype=torch.int64))
    learner, out = Learner(model, Classification()), flatten(model)
    held, job, terms = ClientData(data), train(flatten(model)), Terms(lr=0.1, batch_size=10)
    learner.perform("site", held, job, terms, out)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profiler:
        learner.perform("site", held, job, terms, out)
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
        trained(model, data, batch_size=3)
        return layouts[-1]

    class View(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.view(len(x), -1)

    layouts: list[bool] = []
    assert last_layout(nn.Flatten())
    assert not last_layout(View())


def test_projections_after_each_step_keep_their_digits():
    @step("test: projected", summary="test")
    def _projected(job):
        return lambda params, gradient, lr: params - (params - lr * gradient).clamp(-0.2, 0.2)

    model, data = network(), examples(20)
    reply = trained(model, data, train(flatten(model), step="test: projected"))
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
def test_a_loss_may_use_gradients_of_its_own(name):
    @loss(f"test: {name}", summary="test")
    def _own(task, job):
        return lambda model, batch: LOSSES[name](model, *batch)

    random = generator("own gradients")
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=random) / 2)
    data = examples(20)
    reply = trained(model, data, train(flatten(model), f"test: {name}"))
    assert torch.allclose(
        flatten(model) - reply.displacement, plain_sgd(model, data, LOSSES[name]), atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_model_of_half_precision_is_refused_before_it_trains(dtype):
    with refused("model", says=r"parameters are .*float16, .*: convert it with model.float\(\)"):
        Learner(network().to(dtype), Classification())
