"""The plan of an erasure: its numbers are those of the run, and it finds all that stands in the way."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import pytest
import torch
from closed_form import (
    CLIENTS,
    METHODS,
    NO_TERMS,
    PUBLIC,
    SCHEDULE,
    Quadratics,
    phases,
    recorded,
    request,
)
from federations import holdings, network
from flower_apps import QUICK, connected, existing, grid
from torch import nn

from fedunlearn import (
    Below,
    ClientData,
    Examples,
    Job,
    LocalTraining,
    MultiLabel,
    Participation,
    Request,
    Schedule,
    Sequential,
    State,
    flatten,
    forget,
    method,
    record,
    unlearn,
)
from fedunlearn.cli.console import out
from fedunlearn.cli.plans import print_plan
from fedunlearn.core import History, Mean
from fedunlearn.core.seeds import generator
from fedunlearn.core.vectors import buffers, shapes
from fedunlearn.driver import Guards
from fedunlearn.engines import flower
from fedunlearn.erasure.plan import Plan, make_plan
from fedunlearn.erasure.prospects import bucket
from fedunlearn.methods import recommend
from fedunlearn.methods.fedavg import Pretraining

NEVER = 10**9
HARMLESS = Guards(harm=1e3, budget=1e6)
COUNTED = ("rounds", "exchanges", "messages", "local_trainings", "bytes_down", "bytes_up")


class Counted:
    """A federation that counts what it is asked, measuring aside, and may have lost some clients."""

    def __init__(self, federation, *, public=None, without=()):
        self._federation, self._public, self._without = federation, public, {*without}
        self.task = federation.task
        self.exchanges = self.messages = self.measured = 0
        self.trained: set[str] = set()

    def present(self):
        return self._federation.present() - self._without

    def exchange(self, jobs, terms=NO_TERMS):
        if all(job.work == "measure" and job.config.get("on") != "train" for job in jobs.values()):
            self.measured += len(jobs)
        else:
            elsewhere = jobs.keys() - {self._public}
            self.exchanges += bool(elsewhere)
            self.messages += len(elsewhere)
        self.trained |= {client for client, job in jobs.items() if job.work != "measure"}
        return self._federation.exchange(jobs, terms)


def counted(outcome, federation) -> dict[str, int]:
    rows = outcome.metrics[1:]
    sums = {key: sum(row[key] for row in rows) for key in ("local_trainings", "bytes_down", "bytes_up")}
    return {
        "rounds": len(rows),
        "exchanges": federation.exchanges,
        "messages": federation.messages,
        **sums,
    }


def planned(plan: Plan) -> dict[str, int]:
    return {key: plan.total(key) for key in COUNTED}


@pytest.mark.parametrize("guards", [None, HARMLESS], ids=["plain", "guarded"])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_exchanges_exactly_what_the_plan_says(name, guards):
    asked, federation = request(), Counted(Quadratics(), public=PUBLIC)
    plan = make_plan(Quadratics(), asked, name, SCHEDULE, guards=guards, smallest=1, measured=False)
    assert plan.problems == ()
    outcome = unlearn(phases(name), asked, federation, guards=guards, evaluate_every=NEVER)
    assert not outcome.warnings or "halved" not in " ".join(outcome.warnings)
    if name == "sisa":  # clients join slice by slice, so that rounds differ
        assert not plan.phases[0].exact
        assert all(number <= planned(plan)[key] for key, number in counted(outcome, federation).items())
        return
    assert planned(plan) == counted(outcome, federation)
    assert plan.measured_messages == federation.measured


@pytest.mark.parametrize(
    "name", ["fedosd", "retrain", "fast-retrain", "federaser", "not", "finetune", "reset"]
)
@pytest.mark.parametrize("kind", ["perceptron", "batch norm"])
@pytest.mark.filterwarnings("ignore:the targets' backdoor still works")
def test_the_numbers_are_those_of_the_metrics_that_a_run_records(name, kind, tmp_path):
    """Buffers travel, too, and the guards of ``forget`` ask for losses."""
    model, data, schedule = network(kind), holdings(kind), Schedule(3, 0.01, 3, 0.01)
    training = LocalTraining(batch_size=4)
    federation = Counted(Sequential(model, data))
    asked = Request(
        flatten(model), tuple(sorted(data)), ("site-2",), buffers=buffers(model), shapes=shapes(model)
    )
    before = unlearn([Pretraining(9, 0.01, ("norms",))], asked, federation, training=training)
    trained = History.from_tensors(before.state.memory)
    history = tmp_path / "history.safetensors"
    record.write_tensors(history, trained.tensors())
    asked = replace(
        asked,
        history=trained,
        fresh=lambda purpose: State(flatten(model), buffers=buffers(model)),
    )
    plan = make_plan(federation, asked, name, schedule, training=training, smallest=1, guards=HARMLESS)
    federation.exchanges = federation.messages = federation.measured = 0
    outcome = forget(
        federation,
        model,
        "site-2",
        tmp_path / "run",
        method=name,
        schedule=schedule,
        training=training,
        history=history,
        build=lambda: network(kind),
        guards=HARMLESS,
    )
    assert planned(plan) == counted(outcome, federation)
    assert plan.measured_messages == federation.measured
    assert all(phase.exact for phase in plan.phases) is (name != "fedosd")


def test_a_replay_ends_with_the_recorded_rounds():
    long = replace(SCHEDULE, recover_rounds=20)
    plan = make_plan(Quadratics(), request(), "federaser", long, guards=None, measured=False)
    outcome = unlearn(phases("federaser", long), request(), Quadratics())
    assert plan.total("rounds") == len(outcome.metrics) - 1 == 8


def test_what_a_stop_rule_can_end_is_a_bound():
    """Every round of unlearning is measured then, and the run may stay below the plan."""
    rule, federation = Below("asr", 0.3), Counted(Quadratics(), public=PUBLIC)
    plan = make_plan(
        Quadratics(), request(), "ascent", SCHEDULE, guards=None, stop=[rule], smallest=1, measured=False
    )
    assert [phase.exact for phase in plan.phases] == [False, True]
    assert plan.measurements == 1 + 4 + 1
    outcome = unlearn(phases("ascent"), request(), federation, stop=[rule], evaluate_every=NEVER)
    found = counted(outcome, federation)
    assert outcome.metrics[-1]["phase"] == 1
    assert found["rounds"] < plan.total("rounds")
    assert all(found[key] <= planned(plan)[key] for key in COUNTED)


@pytest.mark.parametrize(("every", "count"), [(None, 3), (1, 8), (2, 5), (3, 5), (7, 3), (100, 3)])
def test_measurements_between_the_ends_of_phases_are_counted(every, count):
    federation = Counted(Quadratics(), public=PUBLIC)
    plan = make_plan(
        Quadratics(), request(), "fedosd", SCHEDULE, evaluate_every=every, guards=None, measured=False
    )
    unlearn(phases("fedosd"), request(), federation, evaluate_every=every or NEVER)
    assert plan.measurements == count
    assert plan.measured_messages == federation.measured


def test_halved_steps_cost_no_more_than_the_plan_admits():
    class Touchy(Quadratics):
        """Its clients report harm until a step has been halved twice."""

        trials = 0

        def measurement(self, client, job):
            if job.config.get("on") != "train" or client != "site-0":
                return super().measurement(client, job)
            self.trials += 1
            harmed = self.trials > 1 and self.trials % 3 > 0
            return {"train": {"loss": Mean(1e6 if harmed else 0.0, 1)}}

    federation = Counted(Touchy(), public=PUBLIC)
    plan = make_plan(Quadratics(), request(), "finetune", SCHEDULE, smallest=1, measured=False)
    outcome = unlearn(phases("finetune"), request(), federation, guards=Guards(), evaluate_every=NEVER)
    assert "halved" in " ".join(outcome.warnings)
    assert planned(plan)["exchanges"] < federation.exchanges
    assert federation.exchanges <= plan.total("exchanges") + plan.total("halvings")


def test_drawn_participants_are_counted():
    few, federation = Participation(count=2, redo=2), Counted(Quadratics(), public=PUBLIC)
    plan = make_plan(
        Quadratics(), request(), "fast-retrain", SCHEDULE, participation=few, guards=HARMLESS, measured=False
    )
    outcome = unlearn(
        phases("fast-retrain"),
        request(),
        federation,
        participation=few,
        guards=HARMLESS,
        evaluate_every=NEVER,
    )
    assert planned(plan) == counted(outcome, federation)
    (phase,) = plan.phases
    assert (phase.asked, phase.retained, phase.exact) == (2, ("site-0", "site-2", "site-3", "site-4"), True)


def hospital() -> tuple[nn.Module, dict[str, ClientData], Request]:
    """Large enough for its rounds to take a measurable time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 10))
    random = generator("hospitals")

    def some(count: int) -> Examples:
        return Examples(
            torch.randn(count, 1, 20, 20, generator=random),
            torch.randint(0, 10, (count,), generator=random),
        )

    data = {f"hospital-{number}": ClientData(some(350), {"test": some(60)}) for number in range(5)}
    start = State(flatten(model), buffers=buffers(model))
    asked = Request(flatten(model), tuple(data), ("hospital-1",), lambda purpose: start, shapes=shapes(model))
    return model, data, asked


@pytest.mark.parametrize("name", ["fedosd", "ascent", "fast-retrain"])
def test_the_time_is_within_a_factor_of_three(name):
    """Of the sequential engine, whose exchanges take as long as their clients together."""
    model, data, asked = hospital()
    schedule, training = Schedule(10, 0.02, 10, 0.02), LocalTraining(batch_size=25)
    federation = Sequential(model, data)
    plan = make_plan(federation, asked, name, schedule, training=training, guards=HARMLESS)
    began = time.perf_counter()
    unlearn(
        method[name](schedule), asked, federation, training=training, guards=HARMLESS, evaluate_every=NEVER
    )
    seconds = time.perf_counter() - began
    assert plan.timing is not None
    assert plan.timing.clients == 4
    assert seconds / 3 < plan.seconds < 3 * seconds


def test_a_plan_asks_no_target_to_train_and_changes_nothing():
    model, data, asked = hospital()
    federation, schedule = Counted(Sequential(model, data)), Schedule(2, 0.02, 2, 0.02)
    expected = unlearn(method["fedosd"](schedule), asked, Sequential(model, data))
    plan = make_plan(federation, asked, "fedosd", schedule)
    assert plan.seconds is not None
    assert federation.trained == {*data} - {"hospital-1"}
    again = unlearn(method["fedosd"](schedule), asked, federation)
    assert torch.equal(again.params, expected.params)


def test_nobody_is_asked_unless_time_is_wanted():
    federation = Counted(Quadratics())
    plan = make_plan(federation, request(), "fedosd", SCHEDULE, measured=False)
    assert federation.exchanges == federation.measured == 0
    assert plan.seconds is plan.timing is None
    assert any("nothing was measured" in caution for caution in plan.cautions)


def test_all_problems_are_told_at_once():
    asked = replace(request(history=History()), fresh=None, shapes={}, public=None)
    quiet = Counted(Quadratics(), without=("site-1", "site-3", "site-4"))
    quiet.task = MultiLabel()
    quiet.authorised = "site-2"
    schedule = replace(SCHEDULE, unlearn_lr=1e-39)
    plan = make_plan(quiet, asked, "fupga", schedule, participation=Participation(minimum=3))
    said = "\n".join(plan.problems)
    for part in (
        "the learning rate of unlearning begins with 1e-39",
        "2 clients that can train are present and the minimum is 3",
        "ProjectedAscent needs fresh",
        "ProjectedAscent needs locals",
        "site-1 has not asked to be forgotten: the signed request is by site-2",
        "target 'site-1' is not present",
    ):
        assert part in said
    assert len(plan.problems) == len(set(plan.problems))
    assert not plan.ready
    assert plan.phases == ()
    assert plan.recorded.missing == ("locals",)
    assert plan.online.missing == ("site-1", "site-3", "site-4")
    assert "site-3, site-4 will not take part" in "\n".join(plan.cautions)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fedsod", {}, "unknown method 'fedsod'; did you mean 'fedosd'?"),
        ("fedosd", {"anker": "never"}, "method 'fedosd' has no option 'anker'; did you mean 'anchor'?"),
        ("retrain", {"rounds": 0}, "rounds = 0: it must be 1 or more"),
    ],
)
def test_a_method_that_cannot_be_made_is_a_problem(name, options, said):
    plan = make_plan(Quadratics(), request(), name, SCHEDULE, options=options)
    assert plan.problems == (said,)
    assert plan.seconds is None


@pytest.mark.parametrize("need", ["public", "labels", "norms", "cluster", "residuals", "shapes"])
def test_what_a_method_needs_and_nobody_recorded_is_a_problem(need):
    name = {"public": "fedkdu", "labels": "fedquit", "cluster": "knot", "shapes": "not"}.get(need)
    name = name or {"norms": "federaser", "residuals": "fedrecovery"}[need]
    lacking = {"public": None} if need == "public" else {"shapes": {}} if need == "shapes" else {}
    left = {key: t for key, t in recorded().tensors().items() if not key.startswith(need)}
    asked = replace(request(), **lacking, history=History.from_tensors(left))
    federation = Counted(Quadratics())
    if need == "labels":
        federation.task = MultiLabel()
    plan = make_plan(federation, asked, name, SCHEDULE, smallest=1)
    assert any(f"needs {need}, and the request has none" in problem for problem in plan.problems)


def test_a_target_that_is_gone_is_not_asked():
    federation = Counted(Quadratics(), without=("site-1",))
    plan = make_plan(federation, request(), "fedosd", SCHEDULE, gone=True)
    assert plan.problems == (
        "fedosd asks the targets to help, and they are gone: use a method that does not, such as "
        "fast-retrain, retrain or federaser",
    )
    plan = make_plan(federation, request(), "fast-retrain", SCHEDULE, gone=True, retrainings=2)
    assert plan.ready
    assert plan.evidence.claim == "PROCESS_ONLY"
    assert any("fast-retrain is exact" in each for each in plan.evidence.possible)
    assert plan.measured_messages == 2 * 4
    assert not any(each.who == "target" for each in plan.reveals)


def test_a_small_target_is_a_problem_only_for_methods_that_use_its_updates():
    """It has 11 examples; the exact number stays in the dark."""
    for name, ready in (("fedosd", False), ("fedkdu", False), ("fast-retrain", True)):
        plan = make_plan(Quadratics(), request(), name, SCHEDULE)
        assert plan.ready is ready
        assert plan.evidence.examples == {"site-1": "< 32"}
        if not ready:
            assert "fewer than 128 training examples" in plan.problems[0]
        assert " 11 " not in json.dumps(plan.as_dict()["evidence"])


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "< 32"),
        (31, "< 32"),
        (32, "32–99"),
        (99, "32–99"),
        (100, "100–299"),
        (300, "300–999"),
        (999, "300–999"),
        (1000, "≥ 1,000"),
    ],
)
def test_numbers_of_examples_are_ranges(count, text):
    assert bucket(count) == text


def told(plan: Plan, who: str) -> str:
    return "\n".join(each.sees for each in plan.reveals if each.who == who)


def plan_of(name: str, guards: Guards | None = None) -> Plan:
    return make_plan(Quadratics(), request(), name, SCHEDULE, guards=guards, smallest=1, measured=False)


def test_who_learns_what_follows_from_who_receives_what():
    osd = plan_of("fedosd")
    assert "the target's update in all but at most 4 of 12 dimensions" in told(osd, "retained clients")
    assert "the part of its own update" in told(osd, "target")
    assert "up to 4 updates of each target" in told(osd, "server")
    assert "no step helps everybody, in all but at most 4" in told(plan_of("fupareto"), "retained clients")
    # Only the targets work in unlearning, so nobody else sees a model between, unless guards try it.
    assert "the model that unlearning ends with" in told(plan_of("ascent"), "retained clients")
    assert "every round of unlearning" in told(plan_of("ascent", HARMLESS), "retained clients")
    exact = plan_of("fast-retrain")
    assert "no update of a target is in it" in told(exact, "retained clients")
    assert "each target" not in told(exact, "server")
    assert "second moments" in told(plan_of("sfu"), "server")
    assert "Fisher" in told(plan_of("ewcsga"), "server")
    assert "recorded contribution" in told(plan_of("fedrecovery"), "retained clients")


def test_a_verdict_needs_the_target_a_retraining_and_examples():
    model, data, asked = hospital()
    federation, schedule = Sequential(model, data), Schedule(1, 0.02, 1, 0.02)
    none = make_plan(federation, asked, "fedosd", schedule).evidence
    assert none.claim == "PROCESS_ONLY"
    assert any("none is planned" in each for each in none.impossible)
    one = make_plan(federation, asked, "fedosd", schedule, retrainings=1).evidence
    assert one.claim == "BEHAVIOURALLY_EQUIVALENT"
    assert (one.examples, one.unseen) == ({"hospital-1": "300–999"}, {"hospital-1": "32–99"})
    assert any("second retraining" in each for each in one.impossible)
    assert any("EQUIVALENT may be out of reach" in each for each in one.impossible)
    two = make_plan(federation, asked, "fedosd", schedule, retrainings=2, canaries=True).evidence
    assert any("against 2 retrainings" in each for each in two.possible)
    assert any("canaries" in each for each in two.possible)


def test_a_method_is_chosen_by_what_is_known_of_the_target():
    plain = request(history=History())
    backdoor = {"poisoned": True, "trusted": True}
    assert recommend().method == "fast-retrain"
    assert recommend().options == {"until_recovered": True}
    assert recommend(**backdoor).method == "fedosd"
    assert recommend(poisoned=True, trusted=False).method == "fast-retrain"
    assert recommend(**backdoor, gone=True).method == "fast-retrain"
    assert recommend(recorded=request().history.kinds).method == "knot"
    assert recommend(recorded={"slice"}).method == "sisa"
    for facts in ({}, {"gone": True}, {"poisoned": True, "trusted": False}, backdoor):
        assert "docs/evidence/results.md" in recommend(**facts).reason
    plan = make_plan(Quadratics(), plain, None, SCHEDULE, gone=True)
    assert plan.method == "fast-retrain"
    assert "asks nothing of it" in plan.why


@pytest.mark.parametrize(
    ("name", "rounds", "told"), [("retrain", 4, True), ("retrain", 5, False), ("not", 4, False)]
)
def test_a_new_model_with_far_fewer_rounds_than_the_present_one_is_a_caution(name, rounds, told):
    plain, schedule = request(history=History()), Schedule(1, 0.1, rounds - 1, 0.1)
    said = f"the new model gets {rounds} rounds at most, and the present one had 10"
    for asked, trained in ((plain, 10), (replace(plain, history=heard(10)), None)):
        plan = make_plan(Quadratics(), asked, name, schedule, trained=trained)
        assert any(caution.startswith(said) for caution in plan.cautions) == told
    assert not any("at most, and" in each for each in make_plan(Quadratics(), plain, name, schedule).cautions)


def heard(rounds: int) -> History:
    """What as many rounds record."""
    return History({"norms": {client: torch.ones(rounds, 1) for client in CLIENTS}})


def test_a_plan_is_json_and_sentences():
    plan = make_plan(Quadratics(), request(), "fedosd", SCHEDULE)
    read = json.loads(json.dumps(plan.as_dict(), allow_nan=False))
    assert read["phases"][0]["bytes_down"] == plan.phases[0].bytes_down
    assert read["sentences"] == list(plan.sentences)
    assert all(sentence.endswith(".") for sentence in plan.sentences)
    assert plan.sentences[0].startswith("Problem: target 'site-1' has fewer than 128")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_plan_fits_on_terminals(width, monkeypatch, capsys):
    monkeypatch.setattr(out, "width", width)
    plan = make_plan(Quadratics(), request(), "fedosd", SCHEDULE)
    print_plan(plan)
    shown = capsys.readouterr().out
    table = [line for line in shown.splitlines() if line.startswith(("unlearning", "post-training", "time"))]
    assert max(map(len, table)) <= width
    assert "≤ 4" in shown
    assert "not ready: 1 to solve first" in shown
    print_plan(make_plan(Quadratics(), request(), "fast-retrain", SCHEDULE, measured=False))
    assert "ready" in capsys.readouterr().out.splitlines()


def flower_request(name: str) -> Request:
    model = network(name)
    return Request(
        flatten(model),
        tuple(f"site-{number}" for number in range(5)),
        ("site-2",),
        lambda purpose: State(flatten(model) * 0.5, buffers=buffers(model)),
        buffers(model),
        shapes(model),
    )


@pytest.mark.parametrize("name", ["fedosd", "fast-retrain"])
def test_on_flower_the_numbers_are_the_same(name):
    federation, schedule = Counted(connected("batch norm")), Schedule(2, 0.01, 2, 0.01)
    asked = flower_request("batch norm")
    plan = make_plan(federation, asked, name, schedule, smallest=1, guards=HARMLESS)
    assert plan.ready
    assert plan.seconds > 0
    federation.exchanges = federation.messages = 0
    outcome = unlearn(method[name](schedule), asked, federation, guards=HARMLESS, evaluate_every=NEVER)
    assert planned(plan) == counted(outcome, federation)


def test_what_an_existing_app_cannot_do_is_a_problem():
    federation = flower.connect_existing(
        grid(existing("perceptron")), network("perceptron"), clients=5, patience=QUICK
    )
    asked, schedule = flower_request("perceptron"), Schedule(2, 0.01, 2, 0.01)
    assert make_plan(federation, asked, "fedosd", schedule, smallest=1).ready
    plan = make_plan(federation, asked, "ascent", schedule, smallest=1, retrainings=2)
    assert len(plan.problems) == 1
    assert "this method cannot run on this federation: it needs the step rule 'clipped'" in plan.problems[0]
    assert any("only our own client code has" in each for each in plan.evidence.impossible)


def test_a_client_that_fails_in_the_measured_round_is_told():
    class Failing(Quadratics):
        def exchange(self, jobs, terms=NO_TERMS):
            replies = super().exchange(jobs, terms)
            return type(replies)({c: r for c, r in replies.items() if c != "site-3"})

    plan = make_plan(Failing(), request(), "fast-retrain", SCHEDULE)
    assert "site-3 did not answer when it was asked for this plan" in plan.cautions
    assert plan.ready
    assert {CLIENTS[3]} <= {*plan.phases[0].retained}


def test_jobs_of_a_plan_are_plain():
    """What is measured for a plan is what every client can do."""
    seen: list[Job] = []

    class Seeing(Quadratics):
        def exchange(self, jobs, terms=NO_TERMS):
            seen.extend(jobs.values())
            return super().exchange(jobs, terms)

    make_plan(Seeing(), request(), "fupga", SCHEDULE)
    assert {(job.work, str(job.config.get("loss", "-"))) for job in seen} == {
        ("measure", "-"),
        ("train", "task"),
    }
