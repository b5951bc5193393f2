"""The plan of an erasure: its problems are what ``erase`` refuses, and its costs are bounds."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from support.closed_form import (
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
from support.codes import refused
from support.desks import (
    FEDERATION,
    NOW,
    Unsteady,
    answer,
    document,
    first_model,
    make,
    network,
    opened,
    production,
    trained,
)
from support.desks import federation as ward
from support.erasures import public_key
from support.federations import network as model_of
from support.flower_apps import QUICK, connected, existing, grid

from fedunlearn import (
    FedUnlearnError,
    History,
    MultiLabel,
    Participation,
    Request,
    Schedule,
    State,
    flatten,
    method,
    module_hash,
    unlearn,
)
from fedunlearn.cli.console import out
from fedunlearn.cli.plans import print_plan
from fedunlearn.core import RETAINED, requirements
from fedunlearn.core.vectors import buffers, shapes
from fedunlearn.driver import Guards
from fedunlearn.engines import flower
from fedunlearn.erasure import RequestState, erase, plan_erasure, receive
from fedunlearn.erasure.plan import Plan, make_plan
from fedunlearn.methods import recommend
from fedunlearn.signing import check_request, require_unused, use_nonce

NEVER = 10**9
HARMLESS = Guards(harm=1e3, budget=1e6)
TARGET = WARD = "site-1"


class Counted(Quadratics):
    """Counts what it is asked, public data aside; some clients may be absent."""

    def __init__(self, *, without=()):
        super().__init__()
        self._without = {*without}
        self.messages = 0
        self.worked: set[str] = set()

    def present(self):
        return super().present() - getattr(self, "_without", set())

    def exchange(self, jobs, terms=NO_TERMS):
        self.messages += len(jobs.keys() - {PUBLIC})
        self.worked |= {client for client, job in jobs.items() if job.work != "measure"}
        return super().exchange(jobs, terms)


def planned(name: str, guards: Guards | None = None, **options) -> Plan:
    return make_plan(Quadratics(), request(), name, SCHEDULE, guards=guards, smallest=0, **options)


@pytest.mark.parametrize("guards", [None, HARMLESS], ids=["plain", "guarded"])
@pytest.mark.parametrize("name", METHODS)
def test_a_run_stays_within_the_bounds_and_asks_only_whom_the_method_declares(name, guards):
    federation, plan = Counted(), planned(name, guards)
    assert plan.ready
    outcome = unlearn(phases(name), request(), federation, guards=guards, evaluate_every=NEVER)
    rows = outcome.metrics[1:]
    assert len(rows) <= plan.total("rounds")
    assert federation.messages <= plan.total("messages")
    for key in ("bytes_down", "bytes_up"):
        assert sum(row[key] for row in rows) <= plan.total(key) + public_bytes(name, rows, key)
    asks = requirements.asks(phases(name))
    assert (TARGET in federation.worked) is ("targets" in asks) is plan.asks_targets


def public_bytes(name: str, rows, key: str) -> int:
    """What metrics count and nobody sends: public data is at the server."""
    return sum(row[key] for row in rows) if name == "fedkdu" else 0


def test_a_phase_cannot_ask_a_target_that_it_does_not_declare(monkeypatch):
    monkeypatch.setattr(type(phases("fedosd")[0]), "asks", RETAINED)
    with refused("unsuitable", says="asks the target 'site-1', and the phase declares"):
        unlearn(phases("fedosd"), request(), Quadratics())


def test_drawn_participants_are_counted():
    few = Participation(count=2, redo=2)
    plan, federation = planned("fast-retrain", HARMLESS, participation=few), Counted()
    unlearn(
        phases("fast-retrain"),
        request(),
        federation,
        participation=few,
        guards=HARMLESS,
        evaluate_every=NEVER,
    )
    assert plan.phases[0].retained == 2
    assert federation.messages <= plan.total("messages") < planned("fast-retrain", HARMLESS).total("messages")


@pytest.mark.wording
def test_all_problems_are_told_at_once():
    asked = replace(request(history=History()), fresh=None, shapes={}, public=None)
    quiet = Counted(without=("site-1", "site-3", "site-4"))
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
        "target 'site-1' is not present, and fupga asks it to help",
    ):
        assert part in said
    assert len(plan.problems) == len(set(plan.problems))
    assert not plan.ready
    assert "site-3, site-4 will not take part" in "\n".join(plan.cautions)


@pytest.mark.wording
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("fedsod", {}, "unknown method 'fedsod'; did you mean 'fedosd'?"),
        ("fedosd", {"anker": "never"}, "method 'fedosd' has no option 'anker'; did you mean 'anchor'?"),
        ("retrain", {"rounds": 0}, "rounds = 0: it must be 1 or more"),
        ("reset", {"layers": ["none"]}, "the model has no parameter 'none'; known: bias, weight"),
    ],
)
def test_a_method_that_cannot_be_made_or_started_is_a_problem(name, options, said):
    plan = make_plan(Quadratics(), request(), name, SCHEDULE, options=options)
    assert plan.problems == (said,)


@pytest.mark.wording
@pytest.mark.parametrize("need", ["public", "labels", "norms", "cluster", "residuals", "shapes"])
def test_what_a_method_needs_and_nobody_recorded_is_a_problem(need):
    name = {"public": "fedkdu", "labels": "fedquit", "cluster": "knot", "shapes": "not"}.get(need)
    name = name or {"norms": "federaser", "residuals": "fedrecovery"}[need]
    lacking = {"public": None} if need == "public" else {"shapes": {}} if need == "shapes" else {}
    left = {key: t for key, t in recorded().tensors().items() if not key.startswith(need)}
    asked = replace(request(), **lacking, history=History.from_tensors(left))
    federation = Counted()
    if need == "labels":
        federation.task = MultiLabel()
    plan = make_plan(federation, asked, name, SCHEDULE, smallest=1)
    assert any(f"needs {need}, and the request has none" in problem for problem in plan.problems)


def test_a_target_that_is_gone_is_not_asked():
    federation = Counted(without=("site-1",))
    plan = make_plan(federation, request(), "fast-retrain", SCHEDULE, gone=True, retrainings=2)
    assert plan.ready
    assert plan.claim == "PROCESS_ONLY"
    assert any("fast-retrain is exact" in each for each in plan.evidence)
    assert federation.messages == 0


@pytest.mark.wording
def test_a_small_target_is_a_problem_only_for_methods_that_use_its_updates():
    """It has 11 examples; the plan does not tell the number."""
    for name, ready in (("fedosd", False), ("fedkdu", False), ("fast-retrain", True)):
        plan = make_plan(Quadratics(), request(), name, SCHEDULE)
        assert plan.ready is ready
        assert " 11 " not in json.dumps(plan.as_dict())
        if not ready:
            assert "fewer than 128 training examples" in plan.problems[0]


def learns(plan: Plan, who: str) -> str:
    return "\n".join(each for each in plan.reveals if each.startswith(f"{who}: "))


def test_who_learns_what_follows_from_who_is_asked():
    osd = planned("fedosd")
    assert "in all but one dimension for each retained client" in learns(osd, "all who train")
    assert "the updates of the targets in 4 rounds of unlearning" in learns(osd, "server")
    assert "all but one dimension" not in "\n".join(planned("fedosd-joint").reveals)
    # If only the targets work, nobody else sees a model between, unless guards try it.
    assert "the sum of the targets' updates" in learns(planned("ascent"), "retained clients")
    assert "every round of unlearning" in learns(planned("ascent", HARMLESS), "retained clients")
    exact = planned("fast-retrain")
    assert "targets" not in learns(exact, "server")
    assert "targets'" not in learns(exact, "retained clients")
    assert "second moments" in learns(planned("sfu"), "server")
    assert "Fisher" in learns(planned("ewcsga"), "server")
    assert "recorded contribution" in learns(planned("fedrecovery"), "retained clients")


def test_a_verdict_needs_a_retraining():
    none = planned("fedosd")
    assert none.claim == "PROCESS_ONLY"
    assert any("none is planned" in each for each in none.no_evidence)
    one = planned("fedosd", retrainings=1)
    assert one.claim == "BEHAVIOURALLY_EQUIVALENT"
    assert any("second retraining" in each for each in one.evidence)
    two = planned("fedosd", retrainings=2)
    assert any("600 forgotten and 600 unseen" in each for each in two.evidence)
    assert not any("second retraining" in each for each in two.evidence)


def test_a_method_is_chosen_by_what_is_known_of_the_target():
    backdoor = {"poisoned": True, "trusted": True}
    assert recommend().method == "fast-retrain"
    assert recommend().options == {"until_recovered": True}
    assert recommend(**backdoor).method == "fedosd"
    assert recommend(poisoned=True, trusted=False).method == "fast-retrain"
    assert recommend(**backdoor, gone=True).method == "fast-retrain"
    assert recommend(recorded=request().history.kinds).method == "knot"
    assert recommend(recorded={"slice"}).method == "sisa"
    for facts in ({}, {"gone": True}, {"poisoned": True, "trusted": False}, backdoor):
        assert "docs/results.md" in recommend(**facts).reason
    plan = make_plan(Quadratics(), request(history=History()), None, SCHEDULE, gone=True)
    assert plan.method == "fast-retrain"
    assert "asks nothing of it" in plan.why


@pytest.mark.parametrize(
    ("name", "rounds", "told"),
    [("retrain", 4, True), ("retrain", 5, False), ("fast-retrain", 4, True), ("not", 4, False)],
)
def test_a_new_model_with_far_fewer_rounds_than_the_present_one_is_a_caution(name, rounds, told):
    plain, schedule = request(history=History()), Schedule(1, 0.1, rounds - 1, 0.1)
    plan = make_plan(Quadratics(), plain, name, schedule, trained=10)
    said = f"the new model gets {rounds} rounds at most, and the present one had 10"
    assert any(caution.startswith(said) for caution in plan.cautions) == told


def test_what_did_badly_with_clean_targets_is_a_caution():
    said = "of clean targets, fedosd left too much in our audits (docs/results.md)"
    assert said in planned("fedosd").cautions
    assert said not in planned("fedosd", poisoned=True).cautions
    assert any("is a control" in each for each in planned("finetune").cautions)


@pytest.mark.wording
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
    print_plan(make_plan(Quadratics(), request(), "fedosd", SCHEDULE))
    shown = capsys.readouterr().out
    facts = shown[shown.index("unlearning") : shown.index("caution")].splitlines()
    assert max(map(len, facts)) <= width
    assert "at most 4 rounds" in " ".join(shown.split())
    assert "not ready: 1 to solve first" in shown
    print_plan(make_plan(Quadratics(), request(), "fast-retrain", SCHEDULE))
    assert "ready" in capsys.readouterr().out.splitlines()


def flower_request(name: str) -> Request:
    model = model_of(name)
    return Request(
        flatten(model),
        tuple(f"site-{number}" for number in range(5)),
        ("site-2",),
        lambda purpose: State(flatten(model) * 0.5, buffers=buffers(model)),
        buffers(model),
        shapes(model),
    )


@pytest.mark.wording
def test_what_an_existing_app_cannot_do_is_a_problem():
    federation = flower.connect_existing(
        grid(existing("perceptron")), model_of("perceptron"), clients=5, patience=QUICK
    )
    asked, schedule = flower_request("perceptron"), Schedule(2, 0.01, 2, 0.01)
    assert make_plan(federation, asked, "fedosd", schedule, smallest=1).ready
    plan = make_plan(federation, asked, "ascent", schedule, smallest=1, retrainings=2)
    assert len(plan.problems) == 1
    assert "this method cannot run on this federation: it needs the step rule 'clipped'" in plan.problems[0]
    assert any("only our own client code has" in each for each in plan.no_evidence)


def test_buffers_are_counted():
    federation, asked, schedule = (
        connected("batch norm"),
        flower_request("batch norm"),
        Schedule(2, 0.01, 2, 0.01),
    )
    plan = make_plan(federation, asked, "fast-retrain", schedule, smallest=1, guards=HARMLESS)
    outcome = unlearn(
        method["fast-retrain"](schedule), asked, federation, guards=HARMLESS, evaluate_every=NEVER
    )
    for key in ("bytes_down", "bytes_up"):
        assert sum(row[key] for row in outcome.metrics[1:]) <= plan.total(key)


# At the desk: a plan has problems exactly where erase refuses, in the same words.


LENGTHY = pytest.mark.filterwarnings("ignore:a step of unlearning was longer")


class Stop(Exception):
    pass


def change(folder, old, new):
    settings = (folder / "desk.toml").read_text()
    assert old in settings
    (folder / "desk.toml").write_text(settings.replace(old, new))


def begun(folder):
    """Kills the run of the client's request after a round."""

    def stop(event):
        if event.metrics["round"] == 2:
            raise Stop

    desk = opened(folder)
    with pytest.raises(Stop):
        erase(desk, desk.cases()[0].id, ward(), production(desk), listeners=[stop])


def small(folder, asked):
    change(folder, "smallest = 32", "smallest = 1000")


def needy(folder, asked):
    change(folder, '"fedosd"', '"fupga"')


def crowded(folder, asked):
    change(folder, "[training]", "[participation]\nminimum = 4\n\n[training]")


def slow(folder, asked):
    change(folder, "unlearn_lr = 0.5", "unlearn_lr = 1e-39")


def absent(folder, asked):
    asked["federation"] = Unsteady(lambda client, number: client == WARD)


def gone(folder, asked):
    asked["gone"] = True


def stranger(folder, asked):
    trained = recorded_by(CLIENTS[2:])
    asked["history"] = History(trained)


def recorded_by(clients):
    return {"norms": {client: torch.ones(3, 1) for client in clients}}


def other_model(folder, asked):
    asked["model"] = network(5)


def unspeakable(folder, asked):
    asked["engine"] = "My Engine"


def overtaken(folder, asked):
    desk = opened(folder)
    other = receive(desk, document("site-2"), module_hash(production(desk)))

    def stop(event):
        raise Stop

    with pytest.raises(Stop):
        erase(desk, other.id, ward(), production(desk), listeners=[stop])


def other_settings(folder, asked):
    begun(folder)
    change(folder, "floor = 1.0", "floor = 0.9")


def no_history(folder, asked):
    asked["history"] = folder / "history.safetensors"


class Strict(Unsteady):
    """Must be shown the signed request, as Flower must; it may have answered another client before."""

    authorised = "site-2"

    def __init__(self, key=WARD):
        super().__init__()
        self.key = public_key(key)

    def examine(self, client, document, *, name, model, folder, ledger, now):
        asked = {"client": client, "federation": name, "model_sha256": model, "public_key": self.key}
        request = check_request(document, **asked, now=now)
        require_unused(ledger, request, str(folder))
        return request

    def authorise(self, client, document, *, folder, ledger, **settings):
        request = self.examine(client, document, folder=folder, ledger=ledger, **settings)
        use_nonce(ledger, request, str(folder))
        self.authorised = client


def other_key(folder, asked):
    asked["federation"] = Strict("site-2")


def replayed(folder, asked):
    there = asked["federation"] = Strict()
    settings = {"name": FEDERATION, "model": None, "ledger": folder / "nonces/federation", "now": NOW}
    there.authorise(WARD, document(), folder="elsewhere", **settings)
    there.authorised = None


def authorised_for_another(folder, asked):
    asked.update(federation=Strict(), gone=True)
    change(folder, '"fedosd"', '"fast-retrain"')


def nothing(folder, asked):
    pass


def shown(folder, asked):
    asked["federation"] = Strict()


def continued(folder, asked):
    """A run that has begun goes on without the target: it ends as partial, which is no refusal."""
    begun(folder)
    absent(folder, asked)


def restored(folder, asked):
    """Somebody restores the model from before an erasure."""
    answer(opened(folder), document("site-2"), client="site-2")
    (folder / "model.safetensors").write_bytes(trained())
    asked["model"] = production(opened(folder))


def edited(folder, asked):
    (path,) = folder.glob("requests/*/request.json")
    path.write_text(path.read_text() + " ")


def lost_key(folder, asked):
    (path,) = folder.glob("requests/*/key")
    path.unlink()


REFUSALS = {
    small: "data",
    needy: "unsuitable",
    crowded: "unsuitable",
    slow: "unsuitable",
    absent: "absent",
    gone: "unsuitable",
    stranger: "not-forgotten",
    other_model: "other-model",
    restored: "other-model",
    unspeakable: "invalid",
    overtaken: "unfinished",
    other_settings: "changed",
    no_history: "missing",
    other_key: "unknown-key",
    replayed: "replayed",
    authorised_for_another: "unsuitable",
    edited: "damaged",
    lost_key: "purged",
}
"""Everything for which ``erase`` refuses a request that the desk has accepted, with its code."""
RECEIVED_ONLY = (other_settings, edited, lost_key, continued)


def refusal(call) -> tuple[str, str]:
    """The code and the sentence of a refusal, or of the first problem of a plan."""
    try:
        found = call()
    except FedUnlearnError as error:
        said = str(error).removeprefix("the request cannot be answered yet: ").partition(" (and ")[0]
        return error.code, said
    return (found.codes[0], found.problems[0]) if isinstance(found, Plan) and found.problems else ("", "")


@LENGTHY
@pytest.mark.parametrize("received", [True, False], ids=["received", "signed"])
@pytest.mark.parametrize("case", [*REFUSALS, nothing, shown, continued], ids=lambda each: each.__name__)
def test_a_plan_has_problems_exactly_where_erase_refuses(case, received, tmp_path):
    if not received and case in RECEIVED_ONLY:
        pytest.skip("a request that has begun was received")
    folder = make(tmp_path / "desk")
    if received:
        receive(opened(folder), document(), first_model())
    asked = {"federation": ward(), "model": production(opened(folder)), "gone": False, "history": None}
    case(folder, asked)
    desk, given = opened(folder), dict(asked)
    there, model = given.pop("federation"), given.pop("model")
    text = None if received else document()
    planned = refusal(lambda: plan_erasure(desk, WARD, there, model, document=text, **given))
    request = receive(desk, document(), first_model()).id
    answered = refusal(lambda: erase(desk, request, there, model, **given))
    assert planned == answered
    assert planned[0] == REFUSALS.get(case, "")
    if case not in REFUSALS:
        end = RequestState.PARTIAL if case is continued else RequestState.CERTIFIED
        assert desk.case(request).state is end


@LENGTHY
def test_the_time_is_that_of_the_last_recorded_run(tmp_path):
    folder = make(tmp_path / "desk", more="keep_days = 3")
    desk = opened(folder)
    plan = plan_erasure(desk, WARD, ward(), production(desk), document=document())
    assert plan.seconds is None
    assert dict(plan.facts)["time"] == "measured on the first round"
    case = receive(desk, document(), module_hash(production(desk)))
    erase(desk, case.id, ward(), production(desk))
    plan = plan_erasure(desk, "site-2", ward(), production(desk))
    assert plan.seconds is not None
    assert plan.seconds > 0
    assert "the desk's last recorded run" in dict(plan.facts)["time"]
    (metrics,) = (desk.place(case.id) / "run").glob("*/metrics.jsonl")
    metrics.write_text("{")
    assert plan_erasure(desk, "site-2", ward(), production(desk)).seconds is None


def test_a_plan_asks_no_client_to_train_and_changes_nothing(tmp_path):
    folder = make(tmp_path / "desk")
    before = sorted(path for path in folder.rglob("*"))
    there = Unsteady()
    assert plan_erasure(opened(folder), WARD, there, production(opened(folder))).ready
    assert (there.exchanges, there.rounds) == (1, 0)
    assert sorted(path for path in folder.rglob("*")) == before
