from __future__ import annotations

import pytest
import torch
from support.codes import refused
from support.federations import forget, holdings, network

from fedunlearn import Parallel, Sequential, Terms, flatten, train
from fedunlearn.engines.memory import SharedMemory


def held(memory: SharedMemory) -> int:
    return memory.size()


def test_room_is_used_again_once_nobody_refers_to_it():
    memory = SharedMemory()
    for _ in range(5):
        memory.take((torch.float32, (1000, 10)))
    assert held(memory) == 40960


def test_room_that_somebody_still_reads_is_left_alone():
    memory = SharedMemory()
    kept = memory.take((torch.float32, (100,)))[0][1].fill_(1.0)[40:60]
    for _ in range(5):
        memory.take((torch.float32, (100,)))[0][1].fill_(2.0)
    assert kept.eq(1.0).all()
    assert held(memory) == 2 * 4096


def test_who_keeps_a_little_does_not_keep_a_lot():
    memory = SharedMemory()
    kept = []
    for _ in range(20):
        memory.take((torch.float32, (1_000_000,)))
        kept.append(memory.take((torch.float32, (1000,)))[0][1])
    assert held(memory) <= 4_001_792 + 20 * 4096


@pytest.mark.parametrize("elements", [2**46, 2**61])
def test_more_than_the_machine_has_is_one_sentence(elements):
    memory = SharedMemory()
    with refused("environment", says=r"\d MB of displacements do not fit into memory, nor .*: set"):
        memory.take((torch.float32, (elements,)))
    memory.take((torch.float32, (100,)))
    assert held(memory) == 4096


def test_tensors_of_all_types_and_shapes_lie_side_by_side():
    memory = SharedMemory()
    wanted = [
        torch.arange(6, dtype=torch.float64).view(2, 3),
        torch.tensor(7),
        torch.tensor([True, False, True]),
        torch.empty(0, 4),
        torch.randn(5).bfloat16(),
    ]
    taken = memory.take(*((tensor.dtype, tensor.shape) for tensor in wanted))
    for (_, room), tensor in zip(taken, wanted, strict=True):
        room.copy_(tensor)
    for (place, _), tensor in zip(taken, wanted, strict=True):
        seen = memory.see(place)
        assert seen.dtype == tensor.dtype
        assert torch.equal(seen, tensor)
    assert torch.equal(memory.see(taken[0][0].row(1)), wanted[0][1])


def test_replies_that_a_method_keeps_stay_as_they_were():
    data, model = holdings("mlp"), network("mlp")
    with Parallel(model, data, workers=2) as federation:
        kept = [
            federation.exchange(dict.fromkeys(data, train(flatten(model))), Terms(rate, batch_size=4))
            for rate in (0.1, 0.2, 0.3)
        ]
    for rate, replies in zip((0.1, 0.2, 0.3), kept, strict=True):
        expected = Sequential(model, data).exchange(
            dict.fromkeys(data, train(flatten(model))), Terms(rate, batch_size=4)
        )
        assert all(torch.equal(replies[c].displacement, expected[c].displacement) for c in data)


def test_many_rounds_need_no_more_shared_memory_than_a_few():
    with Parallel(network("mlp"), holdings("mlp"), workers=2) as federation:
        forget("fedosd", "mlp", federation, rounds=3)
        few = held(federation._memory)
        forget("fedosd", "mlp", federation, rounds=30)
        assert held(federation._memory) == few


def test_the_displacements_of_retained_clients_are_a_matrix_without_a_copy():
    data, model = holdings("mlp"), network("mlp")
    jobs = {c: train(flatten(model), "uce" if c == "site-2" else "task") for c in data}
    with Parallel(model, data, workers=2) as federation:
        for engine in (federation, Sequential(model, data)):
            retained = engine.exchange(jobs, Terms(batch_size=4)).of(
                client for client in data if client != "site-2"
            )
            matrix = retained.matrix()
            assert matrix.data_ptr() == retained["site-0"].displacement.data_ptr()
            assert torch.equal(matrix, torch.stack([reply.displacement for reply in retained.values()]))


def test_a_round_copies_the_model_once_and_needs_one_row_for_each_client():
    data, model = holdings("mlp"), network("mlp")
    size = flatten(model).nbytes
    with Parallel(model, data, workers=2) as federation:
        federation.exchange({client: train(flatten(model) * 1) for client in data}, Terms(batch_size=4))
        each_its_own = held(federation._memory)
    params = flatten(model)
    with Parallel(model, data, workers=2) as federation:
        federation.exchange({client: train(params) for client in data}, Terms(batch_size=4))
        shared = held(federation._memory)
    page = 4096 + 64 * len(data)
    assert shared <= (1 + len(data)) * size + page
    assert 2 * len(data) * size <= each_its_own <= 2 * len(data) * size + page
