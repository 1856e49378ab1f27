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
        separate: statistics modes in which outputs were found to depend on no other sample.
        weights: the weight of each batch in the loss of all data, None until it is computed.
    """

    forward_draws: bool = False
    mixing: set[str] = field(default_factory=set)
    forward_mode: bool = True
    penalty: bool = False
    separate: set[str] = field(default_factory=set)
    weights: list[float] | None = None
