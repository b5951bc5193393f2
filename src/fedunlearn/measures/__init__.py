"""The measures of every round; the keys are the same in files, tables and plots."""

from .cost import cost, coverage, size
from .forgetting import forgetting
from .training import training
from .utility import tested, utility

__all__ = ["cost", "coverage", "forgetting", "size", "tested", "training", "utility"]
