"""Studies: many small federations that show what a method does beyond a single run."""

from .per_example import PerExample, per_example
from .separation import Confidences, Separation, attack_accuracy, separation

__all__ = ["Confidences", "PerExample", "Separation", "attack_accuracy", "per_example", "separation"]
