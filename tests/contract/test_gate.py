"""Bad replies: refused with a reason, and as good as none."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from support.closed_form import (
    CLIENTS,
    DIMENSION,
    Quadratics,
    Spoiled,
    equal,
    phases,
    request,
    tensors,
    times,
)
from support.codes import refused, says

from fedunlearn import Outcome, Replies, Reply, Request, Schedule, Status, unlearn
from fedunlearn.core import Mean, Reason

TARGET, RETAINED = "site-1", "site-0"
SHORT = Schedule(2, 0.05, 2, 0.05)
CALLS = {"every round": range(1, 9), "post-training": [3]}


def sends(**fields):
    return lambda reply: replace(reply, **fields)


def displaces(change):
    return lambda reply: replace(reply, displacement=change(reply.displacement))


def trained(mean):
    return sends(statistics={"train": {"loss": mean}})


BAD = {
    "too short": (displaces(lambda d: d[:-1]), Reason.SHAPE),
    "too long": (displaces(lambda d: torch.cat([d, d])), Reason.SHAPE),
    "a matrix": (displaces(lambda d: d.view(3, 4)), Reason.SHAPE),
    "one number that would broadcast": (displaces(lambda d: d[:1]), Reason.SHAPE),
    "a scalar": (displaces(lambda d: d[0]), Reason.SHAPE),
    "float64": (displaces(torch.Tensor.double), Reason.DTYPE),
    "whole numbers": (displaces(torch.Tensor.long), Reason.DTYPE),
    "complex": (displaces(lambda d: d.to(torch.complex64)), Reason.DTYPE),
    "sparse": (displaces(torch.Tensor.to_sparse), Reason.DTYPE),
    "nan": (times(math.nan), Reason.NOT_FINITE),
    "inf": (times(math.inf), Reason.NOT_FINITE),
    "numbers too large to square": (displaces(lambda d: torch.full_like(d, 1e30)), Reason.NOT_FINITE),
    "a list": (displaces(torch.Tensor.tolist), Reason.FIELD),
    "no displacement": (sends(displacement=None), Reason.FIELD),
    "an array": (sends(arrays={"x": torch.ones(2)}), Reason.FIELD),
    "no mapping of arrays": (sends(arrays=None), Reason.FIELD),
    "a stray buffer": (sends(buffers={"x": torch.ones(2)}), Reason.FIELD),
    "no mapping of buffers": (sends(buffers=None), Reason.FIELD),
    "no mapping of statistics": (sends(statistics=None), Reason.FIELD),
    "statistics of a set that are a number": (sends(statistics={"train": 0.5}), Reason.FIELD),
    "a statistic that is a number": (trained(0.5), Reason.FIELD),
    "a negative count": (trained(Mean(1.0, -1)), Reason.FIELD),
    "half a count": (trained(Mean(1.0, 0.5)), Reason.FIELD),
    "a count beyond all numbers": (trained(Mean(1.0, 10**400)), Reason.FIELD),
    **{
        f"examples = {str(value)[:5]}": (sends(examples=value), Reason.FIELD)
        for value in (0, -1, 1.5, True, None, "7", 10**400)
    },
    "a dict": (vars, Reason.FIELD),
    "nothing at all": (lambda reply: None, Reason.FIELD),
}

UPLOADS = {
    "none": (sends(arrays={}), Reason.FIELD),
    "another name": (lambda r: replace(r, arrays={"x": next(iter(r.arrays.values()))}), Reason.FIELD),
    "one number that would broadcast": (
        lambda r: replace(r, arrays={name: array.reshape(-1)[:1] for name, array in r.arrays.items()}),
        Reason.SHAPE,
    ),
    "too large": (
        lambda r: replace(r, arrays={name: torch.ones(99, 99) for name in r.arrays}),
        Reason.SHAPE,
    ),
    "whole numbers": (
        lambda r: replace(r, arrays={name: array.long() for name, array in r.arrays.items()}),
        Reason.DTYPE,
    ),
    "float8": (
        lambda r: replace(r, arrays={n: array.to(torch.float8_e4m3fn) for n, array in r.arrays.items()}),
        Reason.DTYPE,
    ),
    "float16": (
        lambda r: replace(r, arrays={name: array.half() for name, array in r.arrays.items()}),
        Reason.DTYPE,
    ),
    "sparse": (
        lambda r: replace(r, arrays={name: array.to_sparse() for name, array in r.arrays.items()}),
        Reason.DTYPE,
    ),
    "on another device": (
        lambda r: replace(r, arrays={name: array.to("meta") for name, array in r.arrays.items()}),
        Reason.DTYPE,
    ),
    "nan": (times(math.nan), Reason.NOT_FINITE),
    "float64, too large to square": (
        lambda r: replace(r, arrays={n: array.double() * 1e200 for n, array in r.arrays.items()}),
        Reason.NOT_FINITE,
    ),
    "a list": (
        lambda r: replace(r, arrays={name: array.tolist() for name, array in r.arrays.items()}),
        Reason.FIELD,
    ),
    "a displacement": (sends(displacement=torch.ones(DIMENSION)), Reason.FIELD),
}


class WithBuffers(Spoiled):
    """Clients of a model with BatchNorm: an average and a counter."""

    def perform(self, client, job, terms):
        buffers = {name: buffer + 1 for name, buffer in job.buffers.items()}
        return replace(super().perform(client, job, terms), buffers=buffers)


BUFFERS = {"mean": torch.zeros(3), "norm.running_var": torch.ones(3), "batches": torch.tensor(0)}


def buffer(change):
    return lambda reply: replace(reply, buffers={**reply.buffers, "mean": change(reply.buffers["mean"])})


BAD_BUFFERS = {
    "nan": (buffer(lambda b: b * math.nan), Reason.NOT_FINITE),
    "too short": (buffer(lambda b: b[:1]), Reason.SHAPE),
    "float64": (buffer(torch.Tensor.double), Reason.DTYPE),
    "a list": (buffer(torch.Tensor.tolist), Reason.FIELD),
    "a negative variance": (
        lambda r: replace(r, buffers={**r.buffers, "norm.running_var": torch.tensor([1.0, 2, -3])}),
        Reason.FIELD,
    ),
    "one is missing": (lambda r: replace(r, buffers={"mean": r.buffers["mean"]}), Reason.FIELD),
    "all are missing": (sends(buffers={}), Reason.FIELD),
    "one too many": (lambda r: replace(r, buffers={**r.buffers, "x": torch.ones(1)}), Reason.FIELD),
}


def run(name: str, asked: Request, federation: Quadratics, **options) -> tuple[Outcome, list[Replies]]:
    """A run, with the replies that its rounds were given."""
    seen: list[Replies] = []

    def watch(round):
        seen.extend(exchange.replies for exchange in round.exchanges)
        return {}

    return unlearn(phases(name, SHORT, **options), asked, federation, probes=[watch]), seen


def require_as_good_as_missing(spoiled: tuple[Outcome, list[Replies]], missing: Outcome, reason: Reason):
    outcome, seen = spoiled
    assert outcome.status is Status.DONE
    assert equal(tensors(outcome.state), tensors(missing.state))
    failures = [replies.missing[RETAINED] for replies in seen if RETAINED in replies.missing]
    assert failures
    assert {failure.reason for failure in failures} == {reason}
    assert [row.get("missing") for row in outcome.metrics] == [row.get("missing") for row in missing.metrics]


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("when", CALLS)
def test_a_bad_reply_of_a_retained_client_is_as_good_as_none(what, when):
    spoil, reason = BAD[what]
    missing = unlearn(phases("fedosd", SHORT), request(), Quadratics(absent={RETAINED: CALLS[when]}))
    spoiled = run("fedosd", request(), Spoiled(spoil, {RETAINED}, CALLS[when]))
    require_as_good_as_missing(spoiled, missing, reason)


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("call", [1, 2])
def test_a_bad_reply_of_a_target_ends_the_run_with_a_reason(what, call):
    spoil, reason = BAD[what]
    heard = []
    outcome = unlearn(
        phases("fedosd", SHORT), request(), Spoiled(spoil, {TARGET}, [call]), listeners=[heard.append]
    )
    assert outcome.status is (Status.DIVERGED if reason is Reason.NOT_FINITE else Status.MISSING_REPLY)
    assert says(outcome.reason, f"{TARGET} ")
    assert says(outcome.reason, "sent ")
    assert len(outcome.metrics) == 1 + call
    assert torch.equal(outcome.params, heard[-2].progress.state.params)
    back = unlearn(phases("fedosd", SHORT), request(), Quadratics(), resume=heard[-1].progress)
    assert torch.equal(back.params, unlearn(phases("fedosd", SHORT), request(), Quadratics()).params)


@pytest.mark.parametrize("what", UPLOADS)
@pytest.mark.parametrize(("name", "options"), [("ewcsga", {"fisher": "retained"}), ("sfu", {})])
def test_bad_arrays_are_as_good_as_none(what, name, options):
    spoil, reason = UPLOADS[what]
    missing = unlearn(phases(name, SHORT, **options), request(), Quadratics(absent={RETAINED: [1]}))
    spoiled = run(name, request(), Spoiled(spoil, {RETAINED}, [1]), **options)
    require_as_good_as_missing(spoiled, missing, reason)


@pytest.mark.parametrize("what", BAD_BUFFERS)
def test_bad_buffers_are_as_good_as_none(what):
    spoil, reason = BAD_BUFFERS[what]
    asked = replace(request(), buffers=BUFFERS)

    class Missing(WithBuffers):
        def exchange(self, jobs, terms):
            replies = super().exchange(jobs, terms)
            gone = {RETAINED} if any(job.work == "train" for job in jobs.values()) else set()
            return Replies({client: reply for client, reply in replies.items() if client not in gone})

    spoiled = run("fedosd", asked, WithBuffers(spoil, {RETAINED}, range(1, 9)))
    missing = unlearn(phases("fedosd", SHORT), asked, Missing(spoil, (), ()))
    require_as_good_as_missing(spoiled, missing, reason)
    assert spoiled[0].state.buffers["mean"].tolist() == [4.0] * 3
    assert int(spoiled[0].state.buffers["batches"]) == 4


@pytest.mark.parametrize("name", ["fedosd", "federaser", "mode", "puf"])
def test_replies_of_strangers_and_of_clients_that_were_not_asked_are_left_out(name):
    class Crowded(Quadratics):
        def exchange(self, jobs, terms):
            replies = super().exchange(jobs, terms)
            uninvited = {
                c: Reply(torch.ones(DIMENSION), 10**6) for c in ("mallory", *CLIENTS) if c not in jobs
            }
            return Replies({**replies, **uninvited}, replies.missing)

    crowded, seen = run(name, request(), Crowded())
    plain = unlearn(phases(name, SHORT), request(), Quadratics())
    assert equal(tensors(crowded.state), tensors(plain.state))
    assert all("mallory" not in replies for replies in seen)
    assert {replies.missing["mallory"].reason for replies in seen} == {Reason.UNASKED}
    assert not any("missing" in row for row in crowded.metrics)


def test_where_only_a_stranger_answers_the_reason_is_that_of_the_clients():
    class Deserted(Quadratics):
        def exchange(self, jobs, terms):
            if all(job.work == "measure" for job in jobs.values()):
                return super().exchange(jobs, terms)
            return Replies({"a stranger": Reply(torch.ones(DIMENSION), 1)})

    outcome = unlearn(phases("fedosd", SHORT), request(), Deserted())
    assert outcome.status is Status.MISSING_REPLY
    assert says(
        outcome.reason,
        "0 of 4 clients sent what can be used in round 1 of unlearning: site-1, site-0, site-2, site-3, "
        "site-4 (absent: did not answer): resume later, when they are back",
    )


@pytest.mark.parametrize(
    "total", [math.nan, -math.inf, "much", None, 10**400, 1e308, -1e31], ids=lambda v: str(v)[:5]
)
def test_a_statistic_that_is_no_number_is_dropped_and_its_client_kept(total):
    plain = unlearn(phases("fedosd", SHORT), request(), Quadratics())
    odd = unlearn(phases("fedosd", SHORT), request(), Spoiled(trained(Mean(total, 1)), set(CLIENTS), [1]))
    assert equal(tensors(odd.state), tensors(plain.state))
    assert "train_loss_retained" not in odd.metrics[1]
    assert "train_loss_retained" in odd.metrics[2]


@pytest.mark.parametrize(
    "spoil",
    [
        sends(displacement=torch.ones(DIMENSION)),
        sends(statistics={"test": {"accuracy": Mean(math.nan, 1)}}),
        sends(statistics={"test": {"accuracy": Mean(1.0, -1)}}),
        sends(statistics={"test": {"accuracy": Mean(1e308, 1)}}),
        sends(statistics={"test": {"accuracy": Mean(-5.0, 1)}}),
        sends(statistics={"test": {"accuracy": Mean(3.0, 2)}}),
        sends(statistics={"test": [1.0]}),
        sends(examples=0),
        vars,
    ],
)
def test_a_client_that_cannot_be_measured_is_left_out_of_the_measures(spoil):
    class Odd(Quadratics):
        def exchange(self, jobs, terms):
            replies = super().exchange(jobs, terms)
            if all(job.work == "measure" for job in jobs.values()):
                return Replies({**replies, RETAINED: spoil(replies[RETAINED])})
            return replies

    odd = unlearn(phases("fedosd", SHORT), request(), Odd())
    plain = unlearn(phases("fedosd", SHORT), request(), Quadratics())
    assert torch.equal(odd.params, plain.params)
    for row, whole in zip(odd.metrics, plain.metrics, strict=True):
        others = [whole[f"r_acc {client}"] for client in ("site-2", "site-3", "site-4")]
        assert row["r_acc"] == pytest.approx(sum(others) / 3)
        assert f"r_acc {RETAINED}" not in row


@pytest.mark.parametrize(
    "score",
    [
        "acc",
        "acc_worst",
        "acc_best",
        "acc_std",
        "mse_std",
        "seen",
        "a score",
        "Score",
        "9",
        "",
        "r\n",
        7,
        None,
    ],
)
def test_a_score_that_would_pass_for_another_measure_is_left_out(score):
    class Odd(Quadratics):
        def measured(self, client, params):
            found = super().measured(client, params)
            return {**found, "test": {**found["test"], score: Mean(7.0, 1), "mse_2": Mean(3.0, 1)}}

    odd = unlearn(phases("fedosd", SHORT), request(), Odd())
    plain = unlearn(phases("fedosd", SHORT), request(), Quadratics())
    for row, expected in zip(odd.metrics, plain.metrics, strict=True):
        assert row.pop("r_mse_2") == row.pop("target_mse_2") == 3
        known = {key for key in row if "mse_2" not in key and not key.startswith("seconds")}
        assert known == {key for key in expected if not key.startswith("seconds")}
        assert [row[key] for key in known] == [expected[key] for key in known]


def test_gradients_do_not_enter_the_model():
    def attached(reply):
        return replace(reply, displacement=reply.displacement.clone().requires_grad_())

    outcome = unlearn(phases("fedosd", SHORT), request(), Spoiled(attached, set(CLIENTS), range(9)))
    plain = unlearn(phases("fedosd", SHORT), request(), Quadratics())
    assert not outcome.params.requires_grad
    assert torch.equal(outcome.params, plain.params)


def test_buffers_and_arrays_are_detached_too():
    class Attached(WithBuffers):
        def perform(self, client, job, terms):
            reply = super().perform(client, job, terms)
            arrays, buffers = (
                {n: t.clone().requires_grad_(t.is_floating_point()) for n, t in held.items()}
                for held in (reply.arrays, reply.buffers)
            )
            return replace(reply, arrays=arrays, buffers=buffers)

    asked = replace(request(), buffers=BUFFERS)
    outcome = unlearn(phases("ewcsga", SHORT), asked, Attached(lambda reply: reply, (), ()))
    state = outcome.state
    assert not any(t.requires_grad for t in (state.params, *state.buffers.values(), *state.memory.values()))


@pytest.mark.parametrize("large", [1e200, -1e160])
def test_a_float64_displacement_too_large_to_square_is_as_good_as_none(large):
    class Double(Quadratics):
        def perform(self, client, job, terms):
            moved = torch.ones(DIMENSION, dtype=torch.float64)
            return Reply(moved * (large if client == RETAINED else 1e-3 * (1 + CLIENTS.index(client))), 1)

    asked = replace(request(), params=request().params.double())
    outcome = unlearn(phases("fedosd", SHORT)[:1], asked, Double())
    assert [row.get("missing") for row in outcome.metrics[1:2]] == [1]


def test_what_a_measuring_client_sends_as_buffers_is_not_read():
    class Odd(Quadratics):
        def exchange(self, jobs, terms):
            replies = super().exchange(jobs, terms)
            if all(job.work == "measure" for job in jobs.values()):
                return Replies({c: replace(r, buffers={"x": [1]}) for c, r in replies.items()})
            return replies

    assert unlearn(phases("fedosd", SHORT), request(), Odd()).status is Status.DONE


@pytest.mark.parametrize("evaluate_every", [1, 2])
def test_a_model_that_gives_nobody_a_finite_loss_has_diverged(evaluate_every):
    class Lost(Quadratics):
        def measured(self, client, params):
            broken = len(self.exchanged) >= 2
            found = super().measured(client, params)
            return {**found, "test": {"loss": Mean(math.nan, 1)}} if broken else found

    heard = []
    outcome = unlearn(
        phases("fedosd", SHORT),
        request(),
        Lost(),
        evaluate_every=evaluate_every,
        listeners=[heard.append],
    )
    assert outcome.status is Status.DIVERGED
    assert says(outcome.reason, "no loss that clients measured is finite in round 2 of unlearning")
    assert outcome.metrics[-1]["status"] == "diverged"
    assert (outcome.metrics[-1]["round"], outcome.metrics[-1]["elapsed"]) == (1, 1)
    assert torch.equal(outcome.params, heard[1].progress.state.params)
    back = unlearn(phases("fedosd", SHORT), request(), Quadratics(), resume=heard[-1].progress)
    assert torch.equal(back.params, unlearn(phases("fedosd", SHORT), request(), Quadratics()).params)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_a_request_for_a_model_too_coarse_is_refused(dtype):
    with refused("model", says=r"params are .*, too coarse .*model.float\(\)"):
        replace(request(), params=request().params.to(dtype))
