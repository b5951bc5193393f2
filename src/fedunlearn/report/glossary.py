"""What every number in a report means, in a sentence or two."""

GLOSSARY = {
    "asr": (
        "ASR",
        "Attack success rate: the share of the target's pictures with the trigger on them that get the "
        "attacker's label. High before the request; forgetting brings it down. A model that is retrained "
        "without the target is not at zero either: what it shows is the level to aim at.",
    ),
    "forget_acc": (
        "Forget accuracy",
        "The share of the data to be forgotten that the model is still right about. To be compared with a "
        "retrained model, not with zero.",
    ),
    "r_acc": (
        "R-Acc",
        "Accuracy of the retained clients, each on its own test data; the plain mean over clients.",
    ),
    "r_acc_worst": (
        "Worst client",
        "The retained client with the lowest accuracy: a good mean can hide one client that pays for the "
        "forgetting. Best is the client with the highest, std the deviation over clients.",
    ),
    "r_acc_client": (
        "Client by client",
        "The accuracy of one retained client on its own test data; R-Acc is the mean of these. With another "
        "seed, a client of the same number holds other data.",
    ),
    "target_acc": (
        "Target clean",
        "Accuracy on the target's own untriggered test data. What others know as well remains.",
    ),
    "distance": (
        "Distance",
        "Euclidean distance of the model's parameters to ω⁰. It grows while a model leaves what it was; a "
        "fall in post-training would mean that the model goes back.",
    ),
    "conflicts": (
        "NC",
        "Number of conflicts: retained clients whose loss a step raises, to first order; the mean over the "
        "rounds of a stage. A comparison counts the stage of unlearning.",
    ),
    "local_trainings": (
        "Local trainings",
        "How often a client was made to train, in all rounds after the request; without pre-training.",
    ),
    "megabytes": (
        "MB up, MB down",
        "What clients sent to the server (up) and received from it (down), after the request; 1 MB is "
        "1,000,000 bytes.",
    ),
    "megabytes_stored": (
        "MB stored",
        "What the server had to keep for the method beside the model: its memory, and the recorded history "
        "of pre-training that it needs.",
    ),
    "seconds": (
        "Seconds",
        "Wall time of the rounds on the machine named below, without evaluation. It depends on the machine "
        "and its load; the counts beside it do not.",
    ),
    "omega0": ("ω⁰", "The model when the request arrives: after pre-training, before anything is forgotten."),
    "stages": (
        "Unlearned, post-trained",
        "After the rounds that take the target's influence out (¹), and after those in which the retained "
        "clients repair what that cost (²). Some methods have one of the two only.",
    ),
    "ended": (
        "Ended",
        "done: all rounds are over. converged: the method stopped by itself. unfinished: the run goes on, or "
        "was stopped. diverged, no direction, missing reply: it had to stop, and kept the last good model.",
    ),
    "sha256": (
        "Model hash",
        "SHA-256 of the final parameters and buffers: equal hashes are models equal to the last bit.",
    ),
}
