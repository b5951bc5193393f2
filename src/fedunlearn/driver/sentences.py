"""The sentences of the driver by code: the events of a run, and the reasons why it ended."""

from __future__ import annotations

from collections.abc import Mapping

SENTENCES: Mapping[str, str] = {
    # Why a run ends.
    "diverged": (
        "{cause} in round {round} of {stage}: the model before it is kept; {first}lower the learning rate "
        "(now {lr:g}) and run again"
    ),
    "step_not_finite": "the step is not finite",
    "losses_not_finite": "no loss that clients measured is finite",
    "loss_absurd": "the retained clients' mean loss is {now:.1e} ({first:.3g} at first)",
    "update_not_finite": "{client} {detail}",
    "updates_not_finite": "{client} {detail}, as did all other clients,",
    "check_data": "check the data of {client}, or ",
    "too_few_present": "{who} in round {round} of {stage}, and the minimum is {minimum}: resume later",
    "too_few_usable": (
        "{answered} of {asked} clients sent what can be used in round {round} of {stage}{minimum}: {missing}"
    ),
    "remedy_away": "resume later, when they are back",
    "remedy_failed": "fix that and resume",
    "remedy_guards": "choose other Guards(...) if they are honest",
    "remedy_data": "check their data and code",
    "converged": "every target meets a stop rule: {rules}",
    "stopped": "{stage} ended in round {round} of {rounds}: the next step {why}",
    "harm": (
        "would harm {clients}, even halved {halvings} times ({worst} would have a training loss of "
        "{loss:.3g}, and {limit:.3g} is admitted)"
    ),
    "budget": (
        "would move the model by more than {budget:g} times its length in all: raise the budget if the "
        "method needs more"
    ),
    # What the guards did.
    "shortened": (
        "the update of {client} was shortened to {share:g} times the median of the retained clients"
    ),
    "idle": "{client} sent an update that is practically zero",
    "cut:amplification": "a step was lengthened more than {limit:g} times, and cut to that{closest}",
    "closest": "; without {client} there would be most room",
    "cut:step": "a step of unlearning was longer than {limit:.0%} of the model, and cut",
    "halved": "a step of {stage} was halved because it would have harmed {client}",
    "left_out": "a step of {stage} was left out: it would have harmed retained clients",
    "untried": (
        "no retained client reports a loss, so no step is tried before it is taken: let clients measure "
        "their training loss, or pass Guards(utility=False)"
    ),
    # What the model is like.
    "not_learning": (
        "the training loss has not fallen in the first {rounds} rounds ({now:.3g}, in the first "
        "{first:.3g}): check the labels, scale the inputs, or train at another rate than {lr:g}"
    ),
    "worse": "the retained clients are worse off than before ({measured}): {remedy}",
    "worse_r_acc": "R-Acc {now:.3f}, before {before:.3f}{most}",
    "worse_most": "; {client} lost most, {now:.3f} after {before:.3f} on {count:,} test examples",
    "worse_loss": "a mean loss of {now:.3g}, before {before:.3g}",
    "worse_client": "{client} ends with an accuracy of {now:.3f}, before {before:.3f}",
    "remedy_repair": "take more rounds after unlearning, a lower rate in it, or a method that retrains",
    "remedy_retrain": "train the new model for more rounds, or at another rate",
    "remedy_floor": ", or allow it by another floor",
    "backdoor_works": "the targets' backdoor still works after {stage}: {asr}",
    "backdoor_left": (
        "a part of the targets' backdoor still works: {asr}; use a method that retrains, or more rounds of "
        "unlearning"
    ),
    "loss_not_risen": (
        "the loss on the data to be forgotten has hardly risen in unlearning: {now:.3g}, before {before:.3g}"
    ),
    "loss_not_fallen": (
        "the targets' own unlearning loss has hardly fallen in unlearning: {now:.3g}, in the first round "
        "{before:.3g}"
    ),
    "unmeasured": "nothing is measured of the targets, so it is unknown whether they are forgotten",
    "absent": "{client} was left out of {count} of {rounds} rounds: {detail}",
}


def sentence(code: str, **facts: object) -> str:
    """Return the sentence of a code, with its facts."""
    return SENTENCES[code].format(**facts)
