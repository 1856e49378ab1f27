"""The grid of learning rates: nine or more for each optimizer, and the rule by which it grows.

The rates are those of the series 1, 2, 5 around the values in use, with 3e-4 added because it is a common default.
When all seeds of a task are done and the best rate of any pair of seeds is the lowest or the highest of the grid, the
next two rates of the series on that side are added, at most `GROWTHS` times.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEEDS = (0, 1, 2)
GROWTHS = 3
DIVERGED = 1.5
_SGD = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_ADAM = (1e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2)
RATES: dict[str, tuple[float, ...]] = {
    "sgd": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    "momentum": _SGD,
    "nesterov": _SGD,
    "adam": _ADAM,
    "adamw": _ADAM,
    "rmsprop": (5e-5, 1e-4, 3e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2),
}


@dataclass(frozen=True)
class Cell:
    """One training to make.

    | what | training | rule | lr | steps |
    |---|---|---|---|---|
    | grid | at a rate of the grid | - | the rate | all |
    | short | a rehearsal with a whole cosine | - | the rate | its length |
    | free | an optimizer without a rate | its name | its setting | all |
    | gen | GeN | "gen" | its setting | those left |
    | name | none: the search of an entrant | its name | - | - |
    | named | at the rate that an entrant named | - | the rate | those left |

    steps: None for all of the task.
    """

    what: str
    task: str
    seed: int
    lr: float
    steps: int | None = None
    rule: str = ""

    @property
    def key(self) -> str:
        """The name of the cell in the store."""
        words = (self.what, self.rule, self.task, str(self.seed), f"{self.lr:g}", str(self.steps or "all"))
        return " ".join(word for word in words if word)


def diverged(record: Mapping[str, Any]) -> bool:
    """Whether a loss was not finite, or the last tenth's mean is above 1.5 times the loss at the start.

    The loss at the start is the mean over the evaluation batches. A run that only fails to learn has not diverged.
    """
    return not record["finite"] or record["last"] is None or record["last"] > DIVERGED * record["start"]["eval"]["loss"]


def score(record: Mapping[str, Any]) -> float:
    """The score that the judge compares, larger is better: test accuracy in points, or minus the test loss.

    A run that diverged has the score of the network at its start.
    """
    return start_score(record) if diverged(record) else _score(record["end"]["test"])


def start_score(record: Mapping[str, Any]) -> float:
    """The score of the network at its start."""
    return _score(record["start"]["test"])


def _score(result: Mapping[str, Any]) -> float:
    if result["metric"] is not None:
        return 100.0 * float(result["metric"])
    return -math.inf if result["loss"] is None else -float(result["loss"])


def best_of(runs: dict[tuple[int, float], float], seeds: Iterable[int]) -> float:
    """The rate with the best mean score over `seeds`; of equals the smallest."""
    seeds = list(seeds)
    rates = sorted({lr for _, lr in runs if all((seed, lr) in runs for seed in seeds)})
    return max(rates, key=lambda lr: sum(runs[seed, lr] for seed in seeds))


def growth(runs: dict[tuple[int, float], float]) -> list[float]:
    """The rates to add after a complete grid: two on each side where a pair of seeds has its best."""
    rates = sorted({lr for _, lr in runs})
    bests = {best_of(runs, pair) for pair in itertools.combinations(SEEDS, 2)}
    low = [below(rates[0]), below(below(rates[0]))] if rates[0] in bests else []
    high = [above(rates[-1]), above(above(rates[-1]))] if rates[-1] in bests else []
    return low + high


def above(lr: float) -> float:
    """The next rate of the series 1, 2, 5.

    >>> above(0.05), above(0.1)
    (0.1, 0.2)
    """
    return min(x for x in _series(lr) if x > lr * 1.01)


def below(lr: float) -> float:
    """The rate before it in the series 1, 2, 5."""
    return max(x for x in _series(lr) if x < lr / 1.01)


def _series(lr: float) -> Sequence[float]:
    exponent = math.floor(math.log10(lr))
    return [float(f"{digit}e{e}") for e in range(exponent - 1, exponent + 2) for digit in (1, 2, 5)]
