"""The usual rate: the learning rate that serves an optimizer best before anything of the network is known.

The rates of SGD, Adam and RMSprop are the best ones on the development tasks of the race in `benchmarks/tuning/`, small
networks trained for 500 to 2,000 steps; `calibrate.py` there fits them with one task left out at a time. For the other
optimizers of torch they follow from the ratios of torch's defaults to Adam's.
"""

from dataclasses import dataclass

import torch

from normscope.tuning.learning_rates import largest_rate

SGD, ADAM = 0.12, 0.006
# By class name: the usual rate; SGD's is the same with and without momentum.
RATES = {
    "SGD": SGD,
    "Adam": ADAM,
    "AdamW": ADAM,
    "NAdam": 2 * ADAM,
    "RAdam": ADAM,
    "Adamax": 2 * ADAM,
    "RMSprop": ADAM,
    "Adagrad": 10 * ADAM,
    "Adadelta": 1.0,
}
MEASURED = ("SGD", "Adam", "AdamW", "RMSprop")
LONGEST = 2000


@dataclass(frozen=True)
class Prior:
    """The rate to start from, the words that say where it comes from, and a note where it is not measured."""

    rate: float
    words: str
    note: str = ""


def prior_of(optimizer: torch.optim.Optimizer, steps: int) -> Prior:
    """The prior of an optimizer; for one of an unknown class, the learning rate it was given.

    Example:
        >>> prior_of(torch.optim.AdamW([torch.zeros(1, requires_grad=True)]), 1000).rate
        0.006
    """
    name = type(optimizer).__name__
    if name not in RATES:
        given = largest_rate(optimizer)
        note = f"No usual rate of {name} is known, so the search began at the rate that it was given."
        return Prior(given if given > 0 else ADAM, f"the rate that {name} was given", note)
    note = ""
    if name not in MEASURED:
        note = f"The usual rate of {name} follows from that of Adam; it was not measured."
    else:
        note = (
            f"The usual rate of {name}, {RATES[name]:g}, is the one that was best on small networks trained for 500 to "
            f"{LONGEST:,} steps (benchmarks/tuning in the repository)."
        )
        note += f" This training of {steps:,} steps is longer." if steps > LONGEST else ""
    return Prior(RATES[name], f"the usual rate of {name}", note)
