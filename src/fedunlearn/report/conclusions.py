"""Conclusions from runs, in sentences: what was forgotten, what came back, and what it cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from ..measures.metrics import Metric, metric
from .runs import Run
from .samples import Sample, sample
from .settings import setting
from .summary import end, mean, minus, summarise

FORGOTTEN = 0.1
"""An attack success rate counts as forgotten up to this value, or up to that of retraining if higher."""
NEAR = 0.05
"""The largest distance from retraining that counts as near, and the share that may come back."""
NOTHING = 0.05
"""Below this attack success rate, a model has no backdoor to forget."""
SAME = 0.02
"""Shares that differ by at most this count as equal."""
CAME_BACK = 0.1
"""The fraction of the removed memory that may come back."""

Finished = Mapping[str, Sequence[Run]]
"""Rows whose runs have all ended well."""


@dataclass(frozen=True)
class Memory:
    """The memory of the targets' data in a model: before, after unlearning (if any), at the end."""

    metric: Metric
    before: float
    unlearned: float | None
    end: float

    def text(self, value: float | None) -> str:
        return "–" if value is None else self.metric.text(value)


@dataclass(frozen=True)
class Judgement:
    """The forgetting that a comparison shows; ``retrained`` is the level of retraining, if it was run."""

    memories: Mapping[str, Memory]
    retrained: float | None
    references: Sequence[str]
    """The rows that retrain; the first is the level to reach."""
    chance: Sample | None = None
    """The range in which chance moves the level of retraining."""

    @property
    def metric(self) -> Metric | None:
        return next((memory.metric for memory in self.memories.values()), None)

    @property
    def nothing_to_forget(self) -> bool:
        return bool(self.memories) and all(
            nothing_to_forget(memory, self.retrained) or self.hidden(memory)
            for memory in self.memories.values()
        )

    def hidden(self, memory: Memory) -> bool:
        """Return whether ω⁰ itself is within the interval of retraining: then the measure ranks no row."""
        return self.chance is not None and memory.before in self.chance.interval

    @property
    def relapsed(self) -> dict[str, Memory]:
        if self.nothing_to_forget:
            return {}
        return {row: memory for row, memory in self.memories.items() if relapsed(memory, self.retrained)}

    @property
    def judged(self) -> list[str]:
        """The rows that can be ranked by what they remember."""
        if self.metric is None or self.nothing_to_forget:
            return []
        if self.metric.better == "retraining":
            return (
                [row for row in self.memories if row not in self.references] if self.aim is not None else []
            )
        return list(self.memories)

    @property
    def aim(self) -> float | None:
        """The level to reach, if neither a low nor a high value is good in itself."""
        return self.retrained if self.metric is not None and self.metric.better == "retraining" else None

    @property
    def limit(self) -> float:
        """The attack success rate up to which a row counts as forgotten."""
        return max(FORGOTTEN, self.retrained or 0.0)

    @property
    def bar(self) -> str:
        """The end of rows that count as having forgotten."""
        score = self.metric or metric("asr")
        if self.aim is not None:
            return f"near the {score.title} of retraining ({score.text(self.aim)})"
        return f"with {'an' if score.key == 'asr' else 'a'} {score.title} of at most {score.text(self.limit)}"

    @property
    def forgot(self) -> list[str]:
        """The rows that end low enough, or near enough to retraining."""
        if self.metric is None or self.aim is None:
            return [row for row in self.judged if self.memories[row].end <= self.limit]
        near = NEAR if self.metric.unit == "share" else NEAR * abs(self.aim)
        return [row for row in self.judged if abs(self.memories[row].end - self.aim) <= near]


def remembered(runs: Sequence[Run]) -> Memory | None:
    """The mean over the runs of a row; None if no metric shows what they remember."""
    known = [run for run in runs if run.evaluated and run.forgetting]
    if not known:
        return None
    key = str(known[0].forgetting)
    numbers = [summarise(run) for run in known]
    before = [float(run.evaluated[0][key]) for run in known if key in run.evaluated[0]]
    after, end = mean(numbers, f"{key}_1"), mean(numbers, key)
    if not before or end is None:
        return None
    return Memory(metric(key), sum(before) / len(before), after, end)


def judge(finished: Finished) -> Judgement:
    """Judge what the rows of a comparison remember, relative to retraining."""
    memories = {row: memory for row, runs in finished.items() if (memory := remembered(runs))}
    references = [
        row
        for row, runs in finished.items()
        if row in memories and all(run.method == "retrain" for run in runs)
    ]
    references.sort(key=lambda row: row != "retrain")
    if not references:
        return Judgement(memories, None, references)
    level = memories[references[0]]
    return Judgement(
        memories, level.end, references, sample(finished[references[0]], level.metric.key, level.end)
    )


def nothing_to_forget(memory: Memory, retrained: float | None = None) -> bool:
    """Return whether ω⁰ had no backdoor, or remembered no more than a model that never saw the targets."""
    if memory.metric.key == "asr" and memory.before < NOTHING:
        return True
    if retrained is None:
        return False
    same = SAME if memory.metric.unit == "share" else SAME * max(abs(memory.before), abs(retrained))
    more = memory.before - retrained
    return (-more if "loss" in memory.metric.key else more) <= same


def relapsed(memory: Memory, retrained: float | None = None) -> bool:
    """Return whether post-training brought back more of what unlearning had removed than retraining has."""
    if memory.unlearned is None:
        return False
    removed = memory.before - memory.unlearned
    side = 1 if removed > 0 else -1
    allowed = max(
        CAME_BACK * abs(removed), NEAR if memory.metric.unit == "share" else NEAR * abs(memory.before)
    )
    back = side * (memory.end - memory.unlearned)
    beyond = back if retrained is None else side * (memory.end - retrained)
    return bool(removed) and min(back, beyond) > allowed


def verdict(run: Run) -> str:
    """The result of one run, in sentences."""
    if not run.evaluated:
        return "Nothing has been measured yet."
    memory = remembered([run])
    sentences = [_memory(run, memory)] if memory else []
    sentences += [_utility(run)] if run.utility else []
    if memory and nothing_to_forget(memory):
        sentences.append(
            f"Nothing can be concluded about forgetting: the ASR of ω⁰ was only {memory.text(memory.before)}."
        )
    elif memory and relapsed(memory):
        sentences.append(
            f"Forgetting relapsed: {memory.metric.title} was {memory.text(memory.unlearned)} after "
            f"unlearning and is {memory.text(memory.end)} at the end."
        )
    if memory and memory.metric.better == "retraining" and run.method != "retrain":
        sentences.append(f"Compare {memory.metric.title} with a retrain run: no value is good in itself.")
    coverage = float(run.evaluated[-1].get("coverage", 1.0))
    if coverage < 1:
        unheard = ", ".join(map(str, run.outcome.get("unheard", [])))
        never = f"; {unheard} never did, so no step could take them into account" if unheard else ""
        sentences.append(f"Only {metric('coverage').text(coverage)} of the retained clients replied{never}.")
    sentences += [f"Warning: {told}." for told in run.outcome.get("warnings", [])]
    return " ".join(sentences)


def _memory(run: Run, memory: Memory) -> str:
    who, (now, before) = forgotten(run), (memory.text(memory.end), memory.text(memory.before))
    if memory.metric.key == "asr":
        return f"The backdoor of {who} works on {now} of the triggered data (before the request: {before})."
    if memory.metric.key == "forget_acc":
        return f"The model is right on {now} of the forgotten data of {who} (before the request: {before})."
    return f"{memory.metric.title} of {who} is {now} (before the request: {before})."


def forgotten(run: Run) -> str:
    """The data that the request asks to forget, by client or class."""
    if setting(run.config, "request", "level") == "class":
        return f"class {setting(run.config, 'request', 'label')}"
    names = [
        f"{len(run.parts[name])} examples of {name.partition('#')[0]}" if name in run.parts else name
        for name in run.targets
    ]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "") or "the target"


def in_turn(run: Run) -> str:
    """The data that all requests so far ask to forget."""
    return ", then ".join(forgotten(each) for each in (*run.earlier, run))


def _utility(run: Run) -> str:
    first, last = run.evaluated[0], run.evaluated[-1]

    def change(key: str) -> str:
        return " to ".join(metric(key).text(float(row[key])) for row in (first, last) if key in row)

    key = str(run.utility)
    what = "accuracy" if key == "r_acc" else metric(key).title.removeprefix("R-")
    worst = f"{key}_worst"
    tail = f"; that of the worst client from {change(worst)}" if worst in first and worst in last else ""
    return f"The {what} of the retained clients went from {change(key)}{tail}."


def headline(finished: Finished, judgement: Judgement) -> str:
    """A comparison in a few sentences; the first ranks its rows."""
    if not finished:
        return "No run has ended yet."
    if judgement.metric is None:
        unranked = "not ranked: they answer several requests, or nothing measures what they forgot"
        rows = "1 row has" if len(finished) == 1 else f"{len(finished)} rows have"
        return f"{rows} finished, {unranked}."
    score, forgot, judged = judgement.metric, judgement.forgot, judgement.judged
    if judgement.nothing_to_forget:
        memory = next(iter(judgement.memories.values()))
        beside, chance = "", judgement.chance
        if judgement.retrained is not None:
            beside = f" (retraining: {score.text(judgement.retrained)})"
        if chance is not None:
            low, high = map(score.text, (chance.interval.low, chance.interval.high))
            within = f", 95 % interval {low} to {high}, {chance.size})"
            beside = beside.removesuffix(")") + within
        return (
            f"Nothing can be concluded about forgetting: {score.title} of ω⁰ was "
            f"{score.text(memory.before)}{beside}, so this measure ranks nothing here."
        )
    if not judged:
        return f"Without a finished retrain row, {score.title} cannot be judged. Compare 'retrain', too."
    end = f"{len(forgot)} of {len(judged)} finished rows end" if len(judged) > 1 else "The finished row"
    if len(judged) == 1:
        end += " ends" if forgot else " does not end"
    return f"{ranking(finished, judgement)}{end} {judgement.bar}."


RULE = (
    "The worse of two distances decides: from retraining in forgetting (of an ASR, only above it), and below "
    "its utility; without a retrain row, from an ASR of 0 and from the best utility."
)


def ranking(finished: Finished, judgement: Judgement) -> str:
    """The judged rows by forgetting and utility together, in a sentence; empty if one of both is unknown."""
    score, reference = judgement.metric, next(iter(judgement.references), None)
    key = next((run.utility for runs in finished.values() for run in runs if run.utility), None)
    if score is None or key is None:
        return ""
    useful, sides = metric(key), score.better == "retraining"
    ends = {row: [end(run) for run in runs] for row, runs in finished.items()}
    found = ends if reference is None else minus(finished, reference)
    better = -1 if useful.better == "lower" else 1
    pairs = {
        row: (far, kept)
        for row in judgement.judged
        if row in found
        and (far := mean(found[row], score.key)) is not None
        and (kept := mean(found[row], key)) is not None
    }
    best = 0.0 if reference else max((better * kept for _, kept in pairs.values()), default=0.0)

    def shortfalls(row: str) -> list[float]:
        far, kept = pairs[row]
        return sorted((abs(far) if sides else max(far, 0.0), max(best - better * kept, 0.0)), reverse=True)

    sign = "+" if reference else ""
    told = [
        f"{row} ({score.title} {score.text(far, sign)}, {useful.title} {useful.text(kept, sign)})"
        for row, (far, kept) in sorted(pairs.items(), key=lambda pair: shortfalls(pair[0]))
    ]
    nearest = f"Nearest to {reference}" if reference else "Best"
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    return f"{nearest} in forgetting and utility together: {', then '.join(told[:3])}{more}. " if told else ""


def warnings(judgement: Judgement) -> list[str]:
    """Warnings about the rows in which forgetting relapsed."""
    return [
        f"{row}: forgetting relapsed. {memory.metric.title} was {memory.text(memory.unlearned)} after "
        f"unlearning and is {memory.text(memory.end)} at the end"
        + (f" (retraining: {memory.text(level)})." if (level := judgement.retrained) is not None else ".")
        for row, memory in judgement.relapsed.items()
    ]


def noted(rows: Mapping[str, Sequence[Run]]) -> list[str]:
    """Return the warnings of each row, a line each, with the number of seeds that noted it."""
    lines = []
    for row, runs in rows.items():
        every = (dict.fromkeys(run.outcome.get("warnings", [])) for run in runs)
        for told, count in Counter(chain.from_iterable(every)).items():
            seeds = f" ({count} of {len(runs)} seeds)" if len(runs) > 1 else ""
            lines.append(f"{row}: {told.rstrip('.')}{seeds}.")
    return lines
