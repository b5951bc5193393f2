"""An audit told to a reader who was not there: what was compared, what was found, what can be claimed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from ..evidence import Evidence, Finding, Influence, Verdict
from ..evidence.influence import influence_sentence
from ..evidence.record import canary_sentences
from ..evidence.verdicts import ALARM_MINIMUM, MINIMUM
from ..measures.evidence import MEASURES, Measure
from .audits import harmed
from .evidence import verdict_text
from .tables import Lines

WORDS = {
    Verdict.EQUIVALENT: "The target is forgotten as a retraining would have forgotten it, within the margin.",
    Verdict.UNDER: "Too little is forgotten: the model knows more about the target's examples than a "
    "retrained model does.",
    Verdict.OVER: "Too much is forgotten: the model is worse on the target's examples than a retrained one.",
    Verdict.INCONCLUSIVE: "The audit cannot tell: there are too few examples, or chance is too large. This "
    "is not a pass.",
    Verdict.NO_SIGNAL: "The audit cannot tell: the test does not find the target in the model before "
    "unlearning either, so every model would pass. This is not a pass.",
    None: "There is no verdict, because there is no retrained model to compare with.",
}
"""Verdicts in words."""

ROLES = {
    "model": ("the model", "is judged"),
    "retrained": ("retraining", "the standard: trained without the target"),
    "again": ("second retraining", "the standard, too; shows how far chance moves a retraining"),
    "original": ("ω⁰", "the model before unlearning: the test must find the target here"),
}
"""The models of an audit: title and purpose. All others are twins."""


def conclusion(evidence: Evidence) -> str:
    """The verdict, in capitals and in words; what an exact method guarantees comes before it."""
    words = WORDS[evidence.verdict]
    compared = [target.finding for target in evidence.targets.values()]
    few = [each for each in compared if min(each.n_forgotten, each.n_unseen) < MINIMUM]
    if evidence.verdict is Verdict.INCONCLUSIVE and few:
        least = min(few, key=lambda each: min(each.n_forgotten, each.n_unseen))
        words = (
            f"A verdict needs {MINIMUM} forgotten and {MINIMUM} unseen examples, and there are "
            f"{least.n_forgotten:,} and {least.n_unseen:,}. This is not a pass."
        )
    told = words if evidence.verdict is None else f"{verdict_text(evidence.verdict)}. {words}"
    return f"{evidence.exact} {told}".lstrip()


def findings(evidence: Evidence) -> Iterator[str]:
    """The verdict about each target, what it rests on, and what its hardest examples and canaries say."""
    for name, target in evidence.targets.items():
        found = target.finding
        yield f"{name}: {found.sentence}"
        yield f"{name}: {found.n_forgotten:,} forgotten and {found.n_unseen:,} unseen examples were compared."
        if target.tail is not None:
            yield f"{name}, hardest tenth of the examples: {target.tail.sentence}"
        yield from (f"{name}, {sentence}" for sentence in canary_sentences(target))


def alarm(tail: Finding) -> str:
    """Say what the hardest examples show: an alarm or none."""
    if tail.verdict is not None and tail.verdict.alarm:
        return f"alarm: {verdict_text(tail.verdict)}"
    return "too few examples" if min(tail.n_forgotten, tail.n_unseen) < ALARM_MINIMUM else "no alarm"


def test(evidence: Evidence) -> str:
    """Explain the test."""
    margin = next((each.finding.margin for each in evidence.targets.values() if each.finding.margin), None)
    auc = (
        "with those of unseen examples: the AUC is the probability that the forgotten one is lower, and 0.5 "
        "means that nothing tells them apart."
    )
    if margin is None:
        return (
            f"The target's client compares the loss of each forgotten example {auc} No retrained model was "
            "there to compare with."
        )
    retrained = "the retrained models" if "again" in evidence.models else "the retrained model"
    calibrators = "twins" if any(name not in ROLES for name in evidence.models) else retrained
    level = "95 %" if len(evidence.targets) == 1 else "95 % (more where several targets raise alarms)"
    return (
        "The target's client compares the loss of each forgotten example, minus the mean loss of "
        f"{calibrators} on it, {auc} The model is equivalent to retraining "
        f"if the 90 % interval of the difference between their AUCs lies within ±{margin:g} and the same "
        f"test finds the target in ω⁰; otherwise there is an alarm if the {level} interval excludes 0."
    )


def models(evidence: Evidence) -> Lines:
    """List every model, how it was made, its rounds and its hash."""
    lines = [["Model", "What for", "How it was made", "Rounds", "SHA-256"]]
    for name in (*ROLES, *(name for name in evidence.models if name not in ROLES)):
        if name in evidence.models:
            how = evidence.models[name]
            twin = name.replace("-", " "), "calibrates: another client is in the target's place"
            made = f"run of {how.get('method')}" if how.get("made") == "run" else str(how.get("made", "–"))
            rounds, digest = str(how.get("rounds", "unknown")), str(how.get("sha256", "–"))
            lines.append([*ROLES.get(name, twin), made, rounds, digest])
    return lines


def measures(evidence: Evidence, target: str) -> Lines:
    """List the measures of one target: a line for each measure, a column for each model, and the meaning."""
    lines = _measured(evidence, target, MEASURES.values())
    helps = {measure.metric.title: measure.metric.help for measure in MEASURES.values()}
    return [[*line, helps.get(line[0], "Meaning")] for line in lines]


def further_measures(evidence: Evidence, target: str) -> Lines:
    """The measures beside the verdict with their intervals; empty where there are none."""
    shown = [measure for key, measure in MEASURES.items() if key not in ("auc", "hardest", "plain")]
    lines = _measured(evidence, target, shown, intervals=True)
    return lines if len(lines) > 1 else []


def _measured(evidence: Evidence, target: str, shown: Iterable[Measure], *, intervals: bool = False) -> Lines:
    values = {measure: measure.of(evidence, target) for measure in shown}
    found = {measure: each for measure, each in values.items() if "model" in each}
    roles = [role for role in ROLES if any(role in each for each in found.values())]
    return [
        ["Measure", *(ROLES[role][0] for role in roles)],
        *(
            [measure.metric.title, *(measure.text(each.get(role), interval=intervals) for role in roles)]
            for measure, each in found.items()
        ),
    ]


def harm(evidence: Evidence) -> list[str]:
    """Say who was harmed."""
    told = [
        influence_sentence(measure, found, evidence.targets) for measure, found in evidence.influence.items()
    ]
    told += [f"{client} was not measured: {why}." for client, why in evidence.missing.items()]
    return told or ["Without a retrained model, it is unknown who was harmed."]


def clients(evidence: Evidence, measures: Sequence[str] = ("accuracy", "loss")) -> Lines:
    """Every client's accuracy and loss on its unseen data, against retraining."""
    known = {measure: evidence.influence[measure] for measure in measures if measure in evidence.influence}
    names = dict.fromkeys(client for found in known.values() for client in found)
    lines = [["Client", "Differs", "n"]]
    for measure in known:
        lines[0] += [measure.capitalize(), "Retrained", "Difference", "Floor"]
    for client in sorted(names, key=lambda client: (client not in evidence.targets, len(client), client)):
        own = {measure: found.get(client) for measure, found in known.items()}
        n = next((each.n for each in own.values() if each is not None and each.n is not None), None)
        name = f"{client} (target)" if client in evidence.targets else client
        line = [name, _differs(own), "–" if n is None else f"{n:,}"]
        lines.append([*line, *(text for measure, each in own.items() for text in _influence(each, measure))])
    return lines if names else []


def _influence(found: Influence | None, measure: str) -> list[str]:
    if found is None:
        return ["–"] * 4
    write = "{:.1%}".format if measure == "accuracy" else "{:.3f}".format
    sign = "+" if found.difference > 0 else "−" if found.difference < 0 else ""
    floor = "unknown" if found.floor is None else write(found.floor)
    return [write(found.value), write(found.retrained), f"{sign}{write(abs(found.difference))}", floor]


def _differs(own: Mapping[str, Influence | None]) -> str:
    """Say how a client differs from retraining: accuracy beyond chance, loss beyond the noise floor."""
    told = [
        f"{measure} {'worse' if (each.difference > 0) == (measure == 'loss') else 'better'}"
        for measure, each in own.items()
        if each is not None and each.beyond
    ]
    unknown = all(each is None or each.beyond is None for each in own.values())
    return ", ".join(told) or ("unknown" if unknown else "no")


def untested(evidence: Evidence) -> list[str]:
    """List what was not tested, and the limits of the evidence."""
    told = [*evidence.omitted, *evidence.notes]
    for name, target in evidence.targets.items():
        if target.tail is None and target.finding.verdict is not None:
            told.append(f"The hardest tenth of the examples of {name}: they are too few.")
        if target.original is None:
            told.append(f"Whether the test finds {name} in the model before unlearning.")
    if "retrained" in evidence.models and "again" not in evidence.models:
        told.append("How far chance moves a retraining: there is no second one to compare with.")
    if evidence.relearning is None:
        told.append("Relearning: how soon the forgotten returns if training goes on.")
    if not any(target.canaries for target in evidence.targets.values()):
        told.append("Canaries: no examples were planted for a test of single examples.")
    return [*told, "Attacks other than those above, and every single example by itself."]


def claims(evidence: Evidence) -> Lines:
    """List the claims that the audit supports, and those that it does not."""
    verdict, verdicts = evidence.verdict, [each.finding.verdict for each in evidence.targets.values()]
    alike = "yes" if verdict is Verdict.EQUIVALENT else "no" if verdict and verdict.alarm else "not shown"
    found = {
        "On these examples, this model behaves like this retrained model, within the margin": alike,
        "The model remembers more about the target than retraining does": _claim(verdicts, Verdict.UNDER),
        "The model is worse on the target's examples than retraining": _claim(verdicts, Verdict.OVER),
        "Every single example is forgotten": "no: the AUC is an average, and the test of the hardest tenth "
        "sees only large effects",
        "The method forgets in general": "no: this is one run and one request",
        "No attack finds the target": "no: the test uses losses; another attack may see more",
        "The audit proves forgetting to a third party": "no: it trusts the clients' numbers and the server's "
        "models",
    }
    return [["Claim", "Supported?"], *([claim, answer] for claim, answer in found.items())]


def _claim(verdicts: Sequence[Verdict | None], claimed: Verdict) -> str:
    """Say whether a claim about one of the targets is supported by the verdicts about all."""
    if claimed in verdicts:
        return "yes, wrong in about 1 of 20 cases"
    if not all(each is Verdict.EQUIVALENT or (each and each.alarm) for each in verdicts):
        return "not shown"
    return "not on average, beyond the margin" if Verdict.EQUIVALENT in verdicts else "not on average"


def revealed(evidence: Evidence) -> str:
    """Say how many clients answered, and what stayed with them."""
    names = {client for found in evidence.influence.values() for client in found}
    retained = len(names - {*evidence.targets})
    targets = ", ".join(evidence.targets)
    who = (
        f"{targets} and {retained} retained client{'' if retained == 1 else 's'}" if names else "The clients"
    )
    return (
        f"{who} computed on their own data. The loss of a single example never left its client. No noise was "
        "added: statistics of few examples can still reveal something about them."
    )


def left(evidence: Evidence) -> Lines:
    """List what clients revealed."""
    sums = "sums and counts of losses and scores on its unseen and"
    others, own = f"{sums} training examples", f"{sums} forgotten examples"
    own += "; sums of output distances; how often the probe was right; counts for each true positive rate"
    if any(target.canaries for target in evidence.targets.values()):
        own += "; how many guesses about canaries were right"
    if evidence.relearning is not None:
        others += "; an update in every round of relearning by post-training"
        own += "; in every round of relearning by fine-tuning an update on few forgotten examples"
    return [
        ["Client", "For each model", "For each comparison"],
        ["retained", others, "nothing"],
        ["target", own, "two AUCs and their difference, each with its standard error, and two counts"],
    ]


def rows_of(runs: Mapping[str, Sequence[Evidence]]) -> Iterator[str]:
    """The rows of a comparison by what was found: who forgets too little, too much, or harms others."""
    kinds = {
        Verdict.UNDER: "Too little forgotten",
        Verdict.OVER: "Too much forgotten",
        Verdict.EQUIVALENT: "Like retraining, within the margin",
        Verdict.INCONCLUSIVE: f"Inconclusive, which is not a pass (a verdict needs {MINIMUM} forgotten and "
        f"{MINIMUM} unseen examples)",
        Verdict.NO_SIGNAL: "No signal, which is not a pass",
        None: "No verdict",
    }
    if exact := [row for row, audits in runs.items() if all(each.exact for each in audits)]:
        yield f"Never saw the data that was to be forgotten, because the method is exact: {', '.join(exact)}."
    for verdict, title in kinds.items():
        found = {row: [each.verdict for each in audits].count(verdict) for row, audits in runs.items()}
        named = [
            row if count == len(runs[row]) else f"{row} ({count} of {len(runs[row])})"
            for row, count in found.items()
            if count
        ]
        if named:
            yield f"{title}: {', '.join(named)}."
    paid = {row: [harmed(each) for each in audits] for row, audits in runs.items()}
    named = [
        f"{row} ({sum(bool(each) for each in found)} of {len(found)})"
        for row, found in paid.items()
        if any(found)
    ]
    if named:
        yield (
            "A retained client is less accurate than after retraining, beyond chance (exact test after Holm, "
            f"over all rows): {', '.join(named)}."
        )
