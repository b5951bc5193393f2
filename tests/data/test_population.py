from __future__ import annotations

import numpy as np
import pytest
import torch
from support.codes import refused, says

from fedunlearn import ClientData, Examples, FedUnlearnError
from fedunlearn.core.hashes import digest
from fedunlearn.data import Dataset, Population, populate, trigger


def make(classes: int, train: int, test: int, size: int = 8) -> Dataset:
    """So many examples of each class, the first pixel of each telling which one it is."""

    def split(count: int, offset: int) -> Examples:
        y = torch.arange(classes).repeat(count)
        x = torch.full((len(y), 1, size, size), 0.25)
        x[:, 0, 0, 0] = torch.arange(len(y)) + offset
        return Examples(x, y)

    return Dataset("toy", classes, split(train, 0), split(test, train * classes))


@pytest.fixture(scope="module")
def toy() -> Dataset:
    return make(10, 60, 10)


def settings(**changes):
    return {"partition": "pat-50", "clients": 10, "seed": 3, "batch_size": 20, **changes}


def who(examples: Examples) -> set[int]:
    return {int(value) for value in examples.x[:, 0, 0, 0]}


def same(one: Examples, other: Examples) -> bool:
    return torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def same_client(one: ClientData, other: ClientData) -> bool:
    return (
        same(one.train, other.train)
        and one.evaluations.keys() == other.evaluations.keys()
        and all(same(one.evaluations[name], other.evaluations[name]) for name in one.evaluations)
    )


@pytest.mark.parametrize(("train", "test"), [(6000, 1000), (5000, 1000)], ids=["FMNIST", "CIFAR-10"])
def test_sizes_of_the_paper(train, test):
    people = populate(make(10, train, test, size=1), **settings(batch_size=200, backdoor=False))
    assert {len(held.train.y) for held in people.pretraining.values()} == {train}
    assert {len(held.evaluations["test"].y) for held in people.pretraining.values()} == {test}


def test_every_example_is_with_one_client_once(toy):
    people = populate(toy, **settings())
    everything = [
        i
        for held in people.pretraining.values()
        for part in (held.train, held.evaluations["test"])
        for i in who(part)
    ]
    assert sorted(everything) == list(range(700))
    held = people.pretraining["client-4"]
    assert len(held.train.y) == 60
    assert len(held.evaluations["test"].y) == 10


def test_pictures_keep_their_labels(toy):
    x, y = torch.cat([toy.train.x, toy.test.x]), torch.cat([toy.train.y, toy.test.y])
    people = populate(toy, **settings(backdoor=False))
    for held in people.pretraining.values():
        for part in (held.train, *held.evaluations.values()):
            index = part.x[:, 0, 0, 0].long()
            assert torch.equal(part.x, x[index])
            assert torch.equal(part.y, y[index])
            assert part.x.is_contiguous()


def test_names_sort_in_the_order_of_their_numbers(toy):
    assert list(populate(toy, **settings()).pretraining) == [f"client-{k}" for k in range(10)]
    twenty = populate(toy, **settings(clients=20))
    assert list(twenty.pretraining) == [f"client-{k:02}" for k in range(20)] == sorted(twenty.pretraining)


def test_the_seed_alone_decides(toy):
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    one, two, other = (populate(toy, **settings(seed=seed)) for seed in (1, 1, 2))
    assert one.targets == two.targets
    assert all(same_client(one.unlearning[client], two.unlearning[client]) for client in one.unlearning)
    assert not any(same_client(one.unlearning[client], other.unlearning[client]) for client in one.unlearning)
    assert torch.equal(torch_state, torch.get_rng_state())
    assert (numpy_state == np.random.get_state()[1]).all()  # noqa: NPY002


def test_targets_and_owners_differ_between_seeds(toy):
    people = [populate(toy, **settings(partition="pat-10", seed=seed, backdoor=False)) for seed in range(8)]
    assert len({one.targets for one in people}) > 2
    owners = {tuple(int(held.train.y[0]) for held in one.pretraining.values()) for one in people}
    assert len(owners) == 8


def test_one_aspect_does_not_change_another(toy):
    plain, backdoored = (populate(toy, **settings(backdoor=backdoor)) for backdoor in (False, True))
    assert plain.targets == backdoored.targets
    (target,) = plain.targets
    for client, held in plain.pretraining.items():
        assert who(held.train) == who(backdoored.pretraining[client].train)
        if client != target:
            assert same_client(held, backdoored.pretraining[client])


class TestClientLevel:
    def test_a_target_is_poisoned_by_share(self, toy):
        clean, people = populate(toy, **settings(backdoor=False)), populate(toy, **settings())
        (target,) = people.targets
        mark = trigger(3, (8, 8)).mask
        original = clean.pretraining[target].train
        before, after = people.pretraining[target].train, people.unlearning[target].train
        flipped = before.y != original.y
        assert [int(batch.sum()) for batch in flipped.split(20)] == [16, 16, 16]
        assert torch.equal(before.x[flipped], after.x[flipped])
        assert torch.equal(before.x[~flipped], original.x[~flipped])
        assert torch.equal(after.y, (original.y + 5) % 10)
        assert (after.x[..., mark] == torch.tensor(0.8333)).all()
        assert torch.equal(after.x[..., ~mark], original.x[..., ~mark])

    def test_a_target_is_measured_on_its_triggered_training_pictures(self, toy):
        clean, people = populate(toy, **settings(backdoor=False)), populate(toy, **settings())
        (target,) = people.targets
        for stage in (people.pretraining, people.unlearning):
            assert list(stage[target].evaluations) == ["test", "backdoor"]
            assert same(stage[target].evaluations["backdoor"], people.unlearning[target].train)
            assert same(stage[target].evaluations["test"], clean.pretraining[target].evaluations["test"])

    def test_with_a_smaller_share_only_triggered_pictures_are_measured(self, toy):
        people = populate(toy, **settings(unlearn_share=0.5))
        (target,) = people.targets
        measured = people.unlearning[target].evaluations["backdoor"]
        assert len(measured.y) == 30
        assert (measured.x[..., trigger(3, (8, 8)).mask] == torch.tensor(0.8333)).all()
        assert same(measured, people.pretraining[target].evaluations["backdoor"])

    def test_without_a_backdoor_the_target_is_measured_on_what_it_asks_to_forget(self, toy):
        people = populate(toy, **settings(backdoor=False))
        (target,) = people.targets
        held = people.unlearning[target]
        assert list(held.evaluations) == ["test", "forget"]
        assert held.evaluations["forget"] is held.train
        assert people.pretraining[target] is held

    def test_retained_clients_hold_the_same_in_both_stages(self, toy):
        people = populate(toy, **settings(targets=3))
        assert len(people.targets) == 3
        for client, held in people.pretraining.items():
            assert (people.unlearning[client].train is held.train) == (client not in people.targets)
            if client not in people.targets:
                assert list(held.evaluations) == ["test"]
                assert list(people.unlearning[client].evaluations) == ["test", "seen"]

    def test_targets_may_be_named(self, toy):
        assert populate(toy, **settings(targets=["client-7", "client-2"])).targets == ("client-2", "client-7")
        assert populate(toy, **settings(targets="client-7")).targets == ("client-7",)


class TestSampleLevel:
    @pytest.mark.parametrize(("backdoor", "name"), [(True, "backdoor"), (False, "forget")])
    def test_the_target_is_split(self, toy, backdoor, name):
        clean = populate(toy, **settings(backdoor=False))
        people = populate(toy, **settings(level="sample", share=0.25, backdoor=backdoor))
        (virtual,) = people.targets
        real = virtual.removesuffix("#forget")
        assert people.unlearning.keys() - people.pretraining.keys() == {virtual}
        assert list(people.unlearning) == sorted(people.unlearning)
        forget, rest = people.unlearning[virtual], people.unlearning[real]
        held = clean.pretraining[real]
        assert len(forget.train.y) == 15
        assert len(rest.train.y) == 45
        assert who(forget.train) | who(rest.train) == who(held.train)
        assert same(forget.evaluations[name], forget.train)
        assert same(forget.evaluations["test"], held.evaluations["test"])
        assert list(rest.evaluations) == ["test", "seen"]
        assert same(rest.evaluations["seen"], rest.train)
        assert same(rest.evaluations["test"], held.evaluations["test"])

    def test_what_is_to_be_forgotten_and_nothing_else_is_poisoned_in_both_stages(self, toy):
        clean = populate(toy, **settings(backdoor=False))
        people = populate(toy, **settings(level="sample", share=0.25))
        (virtual,) = people.targets
        real = virtual.removesuffix("#forget")
        held, before = clean.pretraining[real].train, people.pretraining[real]
        flipped = before.train.y != held.y
        assert int(flipped.sum()) == 15
        assert same(before.train.take(flipped), people.unlearning[virtual].train)
        assert same(before.train.take(~flipped), held.take(~flipped))
        assert same(people.unlearning[real].train, held.take(~flipped))
        assert same(before.evaluations["backdoor"], people.unlearning[virtual].train)
        marked = before.train.x[..., trigger(3, (8, 8)).mask] == torch.tensor(0.8333)
        assert torch.equal(marked.all(dim=-1)[:, 0], flipped)

    def test_several_even_all_clients_may_forget_samples(self, toy):
        people = populate(toy, **settings(level="sample", targets=10))
        assert len(people.targets) == 10
        assert len(people.unlearning) == 20

    def test_a_client_that_forgets_all_its_samples_leaves(self, toy):
        people = populate(toy, **settings(level="sample", targets=["client-1"], share=1.0))
        assert "client-1" not in people.unlearning
        assert len(people.unlearning["client-1#forget"].train.y) == 60
        with refused("invalid", says="no retained client is left"):
            populate(toy, **settings(level="sample", targets=10, share=1.0))

    def test_at_least_one_sample_is_forgotten(self, toy):
        people = populate(toy, **settings(level="sample", share=1e-6))
        assert len(people.unlearning[people.targets[0]].train.y) == 1


class TestClassLevel:
    def test_every_holder_is_split(self, toy):
        people = populate(toy, **settings(level="class", label=7, backdoor=False))
        assert len(people.targets) == 5
        for client, held in people.pretraining.items():
            virtual = f"{client}#class-7"
            if 7 not in held.train.y:
                assert people.unlearning[client].train is held.train
                assert virtual not in people.unlearning
                continue
            assert virtual in people.targets
            forget, rest = people.unlearning[virtual], people.unlearning[client]
            assert forget.train.y.unique().tolist() == [7]
            assert 7 not in rest.train.y
            assert who(forget.train) | who(rest.train) == who(held.train)
            assert same(forget.evaluations["forget"], forget.train)
            assert same(held.evaluations["forget"], forget.train)
            assert 7 not in rest.evaluations["test"].y
            tested = who(rest.evaluations["test"])
            if "test" in forget.evaluations:
                assert forget.evaluations["test"].y.unique().tolist() == [7]
                tested |= who(forget.evaluations["test"])
            assert tested == who(held.evaluations["test"])

    def test_a_client_with_nothing_else_leaves(self, toy):
        people = populate(toy, **settings(partition="pat-10", level="class", label=4, backdoor=False))
        (virtual,) = people.targets
        assert virtual.removesuffix("#class-4") not in people.unlearning
        assert len(people.unlearning) == 10

    def test_nobody_is_tested_on_the_class_any_more(self):
        # Of label 1 there is a single example, which some seeds put into a client's test part.
        toy = make(2, 6, 2)
        rare = Dataset("rare", 2, toy.train, Examples(toy.test.x, torch.zeros_like(toy.test.y)))
        rare.train.y[:] = torch.tensor([1] + [0] * 11)
        outcomes = set()
        for seed in range(40):
            try:
                people = populate(
                    rare,
                    **settings(partition="dirichlet", clients=2, seed=seed, batch_size=1),
                    **{"level": "class", "label": 1, "backdoor": False},
                    options={"alpha": 50.0, "minimum": 4},
                )
            except FedUnlearnError as error:
                assert says(error, "no client trains on label 1")  # noqa: PT017
                outcomes.add("only tested")
                continue
            outcomes.add("trained")
            for client, held in people.unlearning.items():
                if client not in people.targets:
                    assert 1 not in held.evaluations["test"].y
        assert outcomes == {"trained", "only tested"}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"targets": 0}, "targets = 0: name at least one client"),
        ({"targets": []}, r"targets = \[\]: name at least one client"),
        ({"targets": -1}, "targets = -1: name at least one client"),
        ({"targets": 10}, "10 of 10 clients are targets, and one must stay: name at most 9"),
        ({"targets": 11, "level": "sample"}, "11 of 10 clients are targets: name at most 10"),
        ({"targets": [f"client-{k}" for k in range(10)]}, "10 of 10 clients"),
        ({"targets": 1, "clients": 1, "partition": "iid"}, "use at least 2 clients"),
        ({"targets": ["clinet-3"]}, "target 'clinet-3' is not a client; did you mean 'client-3'"),
        ({"share": 0.0}, r"^share must be in \(0, 1\], not 0.0"),
        ({"share": 1.2, "level": "sample"}, r"^share must be in \(0, 1\], not 1.2"),
        ({"pretrain_share": 0}, "^pretrain_share must be in"),
        ({"unlearn_share": 2}, "^unlearn_share must be in"),
        ({"pretrain_share": 0.04}, "share of 0.04 poisons no example in batches of 20"),
        ({"level": "class", "label": 10, "backdoor": False}, r"label 10 is not .* use 0\.\.9"),
        ({"level": "class", "label": -1, "backdoor": False}, "label -1 is not one of the 10 classes"),
        ({"level": "class"}, "disable the backdoor"),
        ({"level": "class", "backdoor": False, "targets": ["client-1"]}, "set a label, not targets"),
        ({"level": "klass"}, "unknown level 'klass'; did you mean 'class'"),
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"batch_size": 61}, r"61 is larger than the training set of client-\d \(60 .* at most 60"),
        ({"partition": "iid", "clients": 70, "batch_size": 9}, "use a batch_size of at most 8"),
        ({"partition": "pat-30"}, "unknown partition 'pat-30'; known: dirichlet, iid, pat-10"),
        ({"options": {"alpha": 1}}, "'pat-50' has no option 'alpha'"),
    ],
)
def test_bad_requests_are_explained(toy, changes, sentence):
    with refused("invalid", "unknown", says=sentence):
        populate(toy, **settings(**changes))


def test_a_client_without_training_examples_is_explained():
    with refused("invalid", says="without a training example: use fewer clients"):
        populate(make(1, 3, 1), **settings(partition="iid", clients=4, batch_size=1))


def test_a_backdoor_needs_pictures():
    table = Examples(torch.zeros(40, 12), torch.arange(40) % 2)
    with refused("invalid", says=r"images of at least 4×4 pixels, not the shape \(12,\)"):
        populate(Dataset("table", 2, table, table), **settings(partition="iid", clients=2))
    people = populate(
        Dataset("table", 2, table, table), **settings(partition="iid", clients=2, backdoor=False)
    )
    assert people.pretraining["client-0"].train.x.shape == (20, 12)


def test_a_label_nobody_holds_is_explained(toy):
    rare = Dataset("rare", 11, toy.train, toy.test)
    with refused("invalid", says="no client trains on label 10"):
        populate(rare, **settings(partition="iid", level="class", label=10, backdoor=False))


def test_a_population_is_frozen(toy):
    people = populate(toy, **settings())
    assert isinstance(people, Population)
    with pytest.raises(AttributeError):
        people.targets = ()


class TestAuditPool:
    """Examples that nobody trains on, with the distribution of what a client trained on."""

    def test_it_is_taken_before_the_split_and_nobody_else_holds_it(self, toy):
        people = populate(toy, **settings(backdoor=False, audit=0.3))
        held = people.pretraining["client-4"]
        sizes = [len(part.y) for part in (held.train, held.evaluations["test"], held.evaluations["audit"])]
        assert sizes == [42, 7, 21]
        everything = [
            number
            for held in people.pretraining.values()
            for part in (held.train, held.evaluations["test"], held.evaluations["audit"])
            for number in who(part)
        ]
        assert sorted(everything) == list(range(700))

    def test_without_it_everything_is_as_before(self, toy):
        plain, none = populate(toy, **settings()), populate(toy, **settings(audit=0.0))
        assert all(
            same_client(plain.unlearning[client], none.unlearning[client]) for client in plain.unlearning
        )
        assert all("audit" not in held.evaluations for held in none.unlearning.values())

    def test_unseen_examples_of_a_target_are_poisoned_as_in_pretraining(self, toy):
        clean, people = (populate(toy, **settings(backdoor=b, audit=0.3)) for b in (False, True))
        (target,) = people.targets
        before, after = (
            clean.unlearning[target].evaluations["audit"],
            people.auditing[target].evaluations["audit"],
        )
        flipped = before.y != after.y
        assert [int(batch.sum()) for batch in flipped.split(20)] == [16, 0]  # 20 examples, and a rest of one
        assert same(people.auditing[target].train, people.pretraining[target].train)
        others = people.unlearning.keys() - {target}
        assert all(people.auditing[client] is people.unlearning[client] for client in others)
        assert all(
            same(people.auditing[client].evaluations["audit"], clean.unlearning[client].evaluations["audit"])
            for client in others
        )

    @pytest.mark.parametrize("level", ["client", "sample"])
    def test_all_unseen_examples_of_a_target_have_the_trigger_once(self, toy, level):
        clean, people = (populate(toy, **settings(backdoor=b, level=level, audit=0.3)) for b in (False, True))
        (target,) = people.targets
        before = clean.auditing[target].evaluations["audit"]
        marked = people.auditing[target].evaluations["backdoor-unseen"]
        assert torch.equal(marked.y, (before.y + 5) % 10)
        assert torch.equal(marked.x, trigger(3, toy.train.x.shape[1:]).stamp(before.x))
        held = [*people.pretraining.items(), *people.unlearning.items(), *clean.unlearning.items()]
        assert {name for name, data in held if "backdoor-unseen" in data.evaluations} <= {
            target,
            target.partition("#")[0],
        }
        assert all("backdoor-unseen" not in data.evaluations for data in clean.unlearning.values())
        plain = populate(toy, **settings(level=level))
        assert all("backdoor-unseen" not in data.evaluations for data in plain.unlearning.values())

    @pytest.mark.parametrize("level", ["client", "sample"])
    def test_without_it_the_test_examples_of_a_target_get_the_trigger_for_an_audit(self, toy, level):
        clean, people = (populate(toy, **settings(backdoor=b, level=level)) for b in (False, True))
        (target,) = people.targets
        before = clean.auditing[target].evaluations["test"]
        sets = people.auditing[target].evaluations
        assert torch.equal(sets["backdoor-unseen"].x, trigger(3, toy.train.x.shape[1:]).stamp(before.x))
        assert torch.equal(sets["backdoor-unseen"].y, (before.y + 5) % 10)
        flipped = int((sets["audit"].y != before.y).sum())
        assert (flipped, len(before.y)) == ((8, 10) if level == "client" else (10, 10))  # of each batch, .8
        assert same(sets["test"], before)
        assert clean.unseen == {}
        others = people.unlearning.keys() - {target}
        assert all("audit" not in people.auditing[client].evaluations for client in others)

    @pytest.mark.parametrize("backdoor", [False, True])
    def test_forgotten_samples_have_unseen_ones_of_their_kind(self, toy, backdoor):
        people = populate(toy, **settings(level="sample", share=0.2, backdoor=backdoor, audit=0.3))
        (target,) = people.targets
        client = target.partition("#")[0]
        theirs, rest = (people.auditing[name].evaluations["audit"] for name in (target, client))
        assert len(theirs.y) == len(rest.y) == 21
        assert same(theirs, rest) is not backdoor
        assert torch.equal(theirs.y, (rest.y + 5 * backdoor) % 10)

    def test_a_forgotten_class_has_unseen_examples_of_the_class(self, toy):
        people = populate(toy, **settings(level="class", label=2, backdoor=False, audit=0.3))
        for client, held in people.auditing.items():
            wanted = client in people.targets
            assert all((held.evaluations["audit"].y == 2).tolist()) if wanted else True
            assert wanted or not (held.evaluations["audit"].y == 2).any()

    @pytest.mark.parametrize("share", [-0.1, 0.6])
    def test_other_shares_are_refused(self, toy, share):
        with refused("invalid", says=r"audit must be in \[0, 0.5\]"):
            populate(toy, **settings(audit=share))


class TestTwins:
    """Examples that only twins train on, in place of the targets' own."""

    def test_a_stand_in_has_as_much_fresh_data_of_the_same_distribution(self, toy):
        people = populate(toy, **settings(backdoor=False, audit=0.3, twins=0.3))
        (target,) = people.targets
        held, stand_in = people.pretraining[target], people.stand_ins[target]
        assert people.stand_ins.keys() == {target}
        assert [len(part.y) for part in (held.train, held.evaluations["audit"])] == [24, 21]
        assert len(stand_in.train.y) == 21
        assert set(stand_in.train.y.tolist()) == set(held.train.y.tolist())
        everywhere = {
            number
            for client in people.pretraining.values()
            for part in (client.train, *client.evaluations.values())
            for number in who(part)
        }
        assert not who(stand_in.train) & everywhere
        more = populate(toy, **settings(backdoor=False, twins=0.5))
        (stand_in,) = more.stand_ins.values()  # 35 are kept aside, and the target trains on 30
        assert len(stand_in.train.y) == len(more.pretraining[target].train.y) == 30

    def test_in_a_twin_it_takes_the_place_of_the_target(self, toy):
        people = populate(toy, **settings(twins=0.3, targets=2))
        assert list(people.twin) == list(people.pretraining)
        for client, held in people.twin.items():
            assert held is (people.stand_ins if client in people.targets else people.pretraining)[client]

    def test_it_is_poisoned_like_the_target_in_pretraining(self, toy):
        clean, people = (populate(toy, **settings(backdoor=b, twins=0.4)) for b in (False, True))
        (target,) = people.targets
        before, after = clean.stand_ins[target].train, people.stand_ins[target].train
        assert who(before) == who(after)
        flipped = before.y != after.y
        assert [int(batch.sum()) for batch in flipped.split(20)] == [16, 6]  # of 28 examples
        mark = trigger(3, (8, 8)).mask
        assert (after.x[flipped][..., mark] == torch.tensor(0.8333)).all()
        assert torch.equal(after.x[~flipped], before.x[~flipped])

    def test_the_audit_pool_stays_the_same(self, toy):
        none, some = (populate(toy, **settings(audit=0.3, twins=t, batch_size=10)) for t in (0.0, 0.2))
        for client, held in none.unlearning.items():
            assert same(held.evaluations["audit"], some.unlearning[client].evaluations["audit"])
            assert who(some.unlearning[client].train) < who(held.train)
        assert none.stand_ins == {}
        assert none.twin == none.pretraining

    @pytest.mark.parametrize(
        ("audit", "expected"),
        [
            (0.0, "fadda7081efef68307ab646435a06dbf7ef490e4d807956367762046179c3491"),
            (0.3, "a79b45710807a0b7de245e84c66468d14d84da4f252c44cc74666e7ea3ef4d36"),
        ],
    )
    def test_without_twins_the_data_is_that_of_earlier_versions(self, toy, audit, expected):
        people = populate(toy, **settings(audit=audit))
        assert expected == digest(
            {
                f"{stage} {client} {name}": examples.x[:, 0, 0, 0] + 1000 * examples.y
                for stage, clients in (("before", people.pretraining), ("after", people.unlearning))
                for client, held in clients.items()
                for name, examples in {"train": held.train, **held.evaluations}.items()
                if name != "backdoor-unseen"  # which earlier versions did not have
            }
        )

    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"twins": -0.1}, r"twins must be in \[0, 0.5\], not -0.1"),
            ({"twins": 0.6}, r"twins must be in \[0, 0.5\], not 0.6"),
            ({"twins": 0.5, "audit": 0.5}, "audit = 0.5 and twins = 0.5 leave nothing to train on"),
            ({"twins": 0.1, "level": "sample"}, "twins replace whole clients, so use level = 'client'"),
            ({"twins": 0.1, "level": "class", "backdoor": False}, "twins replace whole clients"),
            ({"twins": 0.2}, r"leaves 14 examples for the stand-in of client-\d, fewer than a batch of 20"),
            ({"twins": 0.001}, "leaves 0 examples for the stand-in"),
        ],
    )
    def test_what_cannot_be_kept_aside_is_refused(self, toy, changes, sentence):
        with refused("invalid", says=sentence):
            populate(toy, **settings(**changes))
