"""Guards: limits on what a single client can do to the model, whether by mistake or by intent."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import require, require_count, require_rate

FLOOR = 0.1
"""The R-Acc that retained clients may lose in a request, unless the caller says otherwise."""


@dataclass(frozen=True)
class Guards:
    """Limits against clients that cheat or fail; lengths are Euclidean norms."""

    norm: float = 10.0
    """A retained client's update may be this many times as long as the median of the exchange, and longer
    if the client holds more data; otherwise it is refused and counts as missing."""
    target_norm: float = 2.0
    """A target's update is shortened to this many times the median of the retained clients."""
    amplification: float = 10.0
    """A step that a method has lengthened more than this is shortened to it."""
    step: float = 0.1
    """A longer step of unlearning, as a share of the model's length, is shortened to it."""
    budget: float = 1.0
    """The steps of unlearning together may be this many times as long as ω⁰; then unlearning ends."""
    utility: bool = True
    """Ask all retained clients, before a step is taken, for their training loss with it: one exchange more
    in every round, which sends the model but trains nothing."""
    harm: float = 1.0
    """A retained client's training loss may rise by this share, or by this number if it is below 1, above
    that of ω⁰ or of the model that the phase began with, whichever is larger."""
    halvings: int = 4
    """A step that would harm a retained client more is halved this often, then left out."""

    def __post_init__(self) -> None:
        for name in ("norm", "target_norm", "amplification", "step", "budget", "harm"):
            require_rate(name, getattr(self, name))
        for name in ("norm", "amplification"):
            value = getattr(self, name)
            require(value >= 1, name, value, "1 or more")
        require_count("halvings", self.halvings)
        require(isinstance(self.utility, bool), "utility", self.utility, "true or false")
