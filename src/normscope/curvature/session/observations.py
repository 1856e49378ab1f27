"""Facts that the passes of a session have shown, for the notes of a measurement."""

from dataclasses import dataclass, field


@dataclass
class Observations:
    """Facts that the passes of a session have shown so far.

    Attributes:
        forward_draws: whether forwards draw random numbers.
        mixing: statistics modes in which outputs depend on other samples though no known normalizer makes them.
        forward_mode: whether forward mode gave every J v.
        penalty: whether the loss reads parameters itself.
    """

    forward_draws: bool = False
    mixing: set[str] = field(default_factory=set)
    forward_mode: bool = True
    penalty: bool = False
