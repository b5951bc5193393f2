"""Display names of methods, datasets and partitions in figures and papers."""

from __future__ import annotations

NAMES = {
    "fedosd": "FedOSD",
    "retrain": "Retraining",
    "federaser": "FedEraser",
    "fedrecovery": "FedRecovery",
    "mode": "MoDe",
    "ewcsga": "EWCSGA",
    "fupga": "FUPGA",
    "sfu": "SFU",
    **{f"fedosd-m{number}": f"M{number}" for number in range(1, 7)},
    "fedosd-joint": "FedOSD-joint",
    "ascent": "Ascent",
    "fedkdu": "FedKdu",
    "fedquit": "FedQUIT",
    "finetune": "Fine-tuning",
    "knot": "KNOT",
    "not": "NoT",
    "puf": "PUF",
    "rapid": "Rapid",
    "reset": "Reset",
    "fast-retrain": "Fast retraining",
    "noisy-finetune": "Noisy fine-tuning",
    "sisa": "SISA",
    "fupareto": "FUPareto",
    "fedcare": "FedCARE",
    "fused": "FUSED",
    "fedmemprune": "FedMemPrune",
}
"""The order determines the styles in figures."""

DATA = {"fmnist": "FMNIST", "mnist": "MNIST", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}
DATA |= {"cifar100-test": "CIFAR-100 (test part)"}
PARTITIONS = {"iid": "IID"} | {f"pat-{share}": f"Pat-{share}" for share in (10, 20, 50)}
