"""The vocabulary of an erasure certificate: codes, and the meaning of each in plain words.

Every text of a certificate that is not a number, a digest, a name of software or the wording of its claim is
one of these codes.
"""

from __future__ import annotations

from enum import StrEnum


class Worded(StrEnum):
    """A code with a meaning."""

    words: str

    def __new__(cls, value: str, words: str) -> Worded:
        member = str.__new__(cls, value)
        member._value_ = value
        member.words = words
        return member


class EndState(Worded):
    """The end of the run of a request."""

    CERTIFIED = "certified", "the procedure ran to its end"
    PARTIAL = "partial", "a participant left before the end"
    GUARD_STOP = "guard_stop", "a guard stopped the run"
    NO_DIRECTION = "no_direction", "no step forgets the data and spares the retained clients"
    ESCALATED = "escalated", "the request was passed to a person"


class Grade(Worded):
    """The presence of the client during the tests."""

    G1 = "G1", "the client evaluated the model until the end"
    G2 = "G2", "the client had left; only planted canaries were tested"
    G3 = "G3", "the client evaluated the model after unlearning at most, not at the end"


class Scope(Worded):
    """The scope of a request."""

    CLIENT = "client", "everything that one client contributed"


class LegalBasis(Worded):
    """The legal basis of an erasure; a certificate may state another code."""

    GDPR_17_1 = "gdpr-17-1", "GDPR Art. 17(1): right to erasure"
    GDPR_17_1_A = "gdpr-17-1-a", "GDPR Art. 17(1)(a): the data are no longer necessary"
    GDPR_17_1_B = "gdpr-17-1-b", "GDPR Art. 17(1)(b): consent was withdrawn"
    GDPR_17_1_C = "gdpr-17-1-c", "GDPR Art. 17(1)(c): the person objects to the processing"
    GDPR_17_1_D = "gdpr-17-1-d", "GDPR Art. 17(1)(d): the data were processed unlawfully"
    GDPR_17_1_E = "gdpr-17-1-e", "GDPR Art. 17(1)(e): a law requires erasure"
    GDPR_17_1_F = "gdpr-17-1-f", "GDPR Art. 17(1)(f): data of a child, collected by an online service"
    CCPA = "ccpa-1798.105", "California Civil Code 1798.105: right to delete"
    CONTRACT = "contract", "a contract with the client"
    VOLUNTARY = "voluntary", "the controller's own decision"
    OTHER = "other", "another basis, recorded by the controller"
    NOT_STATED = "not-stated", "legal basis not stated"


class Bucket(StrEnum):
    """A number of examples, roughly: an exact number would describe the client."""

    TENS = "<100"
    HUNDREDS = "100-1k"
    THOUSANDS = "1k-10k"
    TENS_OF_THOUSANDS = "10k-100k"
    MORE = ">100k"

    @classmethod
    def of(cls, count: int) -> Bucket:
        """Return the order of a number of examples.

        >>> Bucket.of(620)
        <Bucket.HUNDREDS: '100-1k'>
        """
        return tuple(cls)[sum(count >= limit for limit in (100, 1_000, 10_000, 100_000))]


class Role(Worded):
    """The party that computed a number."""

    TARGET = "target", "the client that asked"
    RETAINED = "retained-clients", "the retained clients"
    ALL = "all-clients", "all clients"
    SERVER = "server", "the server"


class Measure(StrEnum):
    """A measure of the evidence."""

    heading: str
    page: str
    """The page of the documentation that defines it."""
    words: str

    def __new__(cls, value: str, heading: str, page: str, words: str) -> Measure:
        member = str.__new__(cls, value)
        member._value_ = value
        member.heading, member.page, member.words = heading, f"evidence/measures.md#{page}", words
        return member

    AUC = (
        "auc",
        "Membership test",
        "calibrated-auc-and-the-verdict",
        "Decides the verdict. Above retraining: remembered. Below: worse than retraining.",
    )
    AUC_BEFORE = (
        "auc-before",
        "Membership test on the model before",
        "power-gate",
        "The control: the test must find the data here, or it could not find them anywhere.",
    )
    AUC_HARDEST = (
        "auc-hardest",
        "Membership test, hardest tenth",
        "tail-alarm",
        "The same on the hardest examples, where memory shows first. It can only raise an alarm.",
    )
    AUC_LOSSES = (
        "auc-losses",
        "Membership test, plain losses",
        "calibrated-auc-and-the-verdict",
        "What many attacks use. Near 0.5 also where nothing was forgotten.",
    )
    TPR_1 = (
        "tpr-at-1",
        "Found at 1 % false alarms",
        "tpr-at-low-fpr",
        "Share of the forgotten examples that an attack finds which is rarely wrong. Chance is 0.01.",
    )
    TPR_01 = (
        "tpr-at-0.1",
        "Found at 0.1 % false alarms",
        "tpr-at-low-fpr",
        "Share of the forgotten examples that an attack finds which is hardly ever wrong. Chance is 0.001.",
    )
    JS_FORGOTTEN = (
        "js-forgotten",
        "Distance of outputs, forgotten examples",
        "js-distance",
        "How far the outputs are from those of retraining, 0 to 1. The reference is a second retraining.",
    )
    JS_UNSEEN = (
        "js-unseen",
        "Distance of outputs, unseen examples",
        "js-distance",
        "The same on unseen examples: an equal excess here is a changed model, not memory.",
    )
    PROBE = (
        "probe",
        "Linear probe of the last hidden layer",
        "linear-probe",
        "Accuracy of a simple classifier on the layer. Above retraining: the layer still knows.",
    )
    BACKDOOR = (
        "backdoor",
        "Backdoor, training examples",
        "asr",
        "How often a planted trigger still works. Compare with retraining; zero is not the aim.",
    )
    BACKDOOR_UNSEEN = (
        "backdoor-unseen",
        "Backdoor, unseen examples",
        "asr",
        "The same on examples that nobody trained on.",
    )
    CANARIES = (
        "canaries",
        "Canaries",
        "canaries",
        "Share of right guesses which planted examples were trained on. Chance is 0.5.",
    )
    TOW = (
        "tow",
        "Tug of war",
        "tow",
        "One number for forgetting and utility together; 1 is like retraining.",
    )
    RETAINED_MEAN = (
        "retained-accuracy",
        "Accuracy of the retained clients",
        "client-influence",
        "Mean over the retained clients, on data that nobody trained on.",
    )
    RETAINED_WORST = (
        "retained-accuracy-worst",
        "Accuracy of the client that lost most",
        "client-influence",
        "The retained client with the largest loss of accuracy against retraining.",
    )
    RELEARN_POSTTRAINING = (
        "relearn-post-training",
        "Rounds until it returns, further training",
        "relearn-time",
        "Further training of the retained clients. Much sooner than after retraining: it was only hidden.",
    )
    RELEARN_FINETUNING = (
        "relearn-fine-tuning",
        "Rounds until it returns, fine-tuning",
        "relearn-time",
        "The client teaches a few of its examples again. Much sooner than after retraining: only hidden.",
    )


class NotTested(Worded):
    """A test that was not made."""

    EVERYTHING = "behaviour", "How the model behaves on the data: no test was made."
    RETRAINING = (
        "retraining",
        "Whether the model behaves like a retrained one: there was none to compare with.",
    )
    SECOND_RETRAINING = (
        "second-retraining",
        "How far chance alone moves a retraining: there was no second one.",
    )
    CONTROL = "model-before", "Whether the test finds the data in the model before."
    HARDEST = "hardest-examples", "The hardest tenth of the examples: they were too few."
    LOW_FPR = "low-false-alarms", "Attacks that are rarely wrong: they need more unseen examples."
    OUTPUTS = "output-distance", "How far the outputs are from those of retraining."
    HIDDEN = "hidden-layers", "What hidden layers still know."
    BACKDOOR = "backdoor", "Backdoors: none was planted for a test."
    CANARIES = "canaries", "Canaries: no examples were planted for a test of single examples."
    RELEARNING = "relearning", "How soon the forgotten returns if training goes on."
    RETAINED = "retained-clients", "What the retained clients lost against retraining."
    SOME_RETAINED = "some-retained-clients", "Some retained clients: they sent nothing that can be used."
    SINGLE_EXAMPLES = "single-examples", "Every single example by itself."
    OTHER_ATTACKS = "other-attacks", "Attacks other than those above, such as reconstruction of inputs."
    COPIES = "copies", "Copies of the earlier model, and models derived from it, in other hands."


ALWAYS_UNTESTED = (NotTested.SINGLE_EXAMPLES, NotTested.OTHER_ATTACKS, NotTested.COPIES)


class GuardEvent(Worded):
    """An action of the guards."""

    SHORTENED = "target-shortened", "an update of the client was shortened"
    AMPLIFICATION = "amplification-cut", "a step that had been lengthened too much was cut"
    STEP = "step-cut", "a step that was too long was cut"
    HALVED = "step-halved", "a step that would have harmed a retained client was halved"
    LEFT_OUT = "step-left-out", "a step that would have harmed a retained client was left out"
    IDLE = "idle", "a retained client sent an update that is practically zero"
    STOPPED = "stopped", "the run was stopped to protect the retained clients"
    NOT_FORGOTTEN = "not-forgotten", "the measures of the run do not show forgetting"
    LOST = "accuracy-lost", "the retained clients lost more than 3 points of accuracy"
    UNTRIED = "not-tried", "steps could not be tried before they were taken"
    UNMEASURED = "not-measured", "nothing was measured of the client in the run"
    OTHER = "other", "another event"


class Artefact(Worded):
    """Something that is deleted or kept."""

    ORIGINAL_MODEL = "original-model", "the model before, and everything that contains it"
    CHECKPOINTS = "checkpoints", "checkpoints of the run"
    HISTORY = "history", "recorded updates of training"
    RETRAINED_MODELS = "retrained-models", "models that were retrained for the audit"
    KEY = "request-key", "the key that encrypted the files of the request"
    MODEL_AFTER = "model-after", "the model after"
    REQUEST = "request", "the signed request"
    NONCE = "nonce", "the one-time number of the request"
    SUPPRESSION = "suppression-entry", "a keyed hash of the client's name"
    CERTIFICATE = "certificate", "this certificate"
    LEDGER = "ledger", "the ledger"


class Purpose(Worded):
    """The purpose for which something is kept."""

    SERVICE = "in-service", "it is in service"
    ACCOUNTABILITY = "accountability", "to show that the request was answered"
    REPLAY = "replay-protection", "so that no request is used twice"
    SUPPRESSION = "suppression", "so that the client takes part in no later request"


class Backups(Worded):
    """The treatment of backups."""

    EXPIRE = "expire", "backups are overwritten by the stated date"
    NOT_COVERED = "not-covered", "this certificate does not cover backups"
