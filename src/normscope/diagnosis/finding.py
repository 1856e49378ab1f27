"""A finding: one fault of a training, with its evidence, its cost and its fix."""

import math
from dataclasses import dataclass

SEVERITIES = ("error", "warning", "note")


@dataclass(frozen=True)
class Evidence:
    """The number that a finding rests on.

    Attributes:
        what: the quantity, as a noun phrase.
        value: its value; nan where it is not known.
        spread: the standard error of the value over batches or channels; nan where the value is exact.
        limit: the value from which the rule finds a fault; nan where there is none.
    """

    what: str
    value: float
    spread: float = math.nan
    limit: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.value):
            return f"{self.what}: not known"
        spread = "" if math.isnan(self.spread) else f" +- {self.spread:.2g}"
        limit = "" if math.isnan(self.limit) else f" (limit {self.limit:.3g})"
        return f"{self.what} = {self.value:.3g}{spread}{limit}"


@dataclass(frozen=True)
class Cost:
    """The cost of a fault.

    Attributes:
        value: what the fault costs, in `unit`; nan where it is not known.
        spread: the standard error of the value; nan where it is not known.
        unit: "loss" or "metric".
        how: "measured", "predicted", or "not priced".
        share: the cost as a share of the loss, or of a metric of 1; findings are sorted by it.
    """

    value: float = math.nan
    spread: float = math.nan
    unit: str = "loss"
    how: str = "not priced"
    share: float = math.nan

    def __str__(self) -> str:
        if math.isnan(self.value):
            return self.how
        spread = "" if math.isnan(self.spread) else f" +- {self.spread:.2g}"
        return f"{self.value:.3g}{spread} of {self.unit}, {self.how}"


@dataclass(frozen=True)
class Finding:
    """One result of `diagnose`.

    Attributes:
        rule: id of the rule, as "NS201".
        name: name of the rule, as "stale-running-statistics".
        severity: "error", "warning" or "note".
        layers: names of the layers, empty where the finding is about the whole training.
        text: what is wrong, in one sentence.
        evidence: the number behind it.
        cost: what it costs.
        fix: the fix as code.
        source: where the fault is described.

    Example:
        >>> found = Finding("NS105", "bias-before-normalizer", "note", ("conv",), "A bias does nothing.",
        ...                 Evidence("biases", 1), Cost(), "nn.Conv2d(3, 8, 3, bias=False)", "")
        >>> str(found)
        'NS105 bias-before-normalizer [note] A bias does nothing.'
    """

    rule: str
    name: str
    severity: str
    layers: tuple[str, ...]
    text: str
    evidence: Evidence
    cost: Cost
    fix: str
    source: str

    def __post_init__(self) -> None:
        if self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {', '.join(SEVERITIES)}; got {self.severity!r}.")

    @property
    def order(self) -> tuple[int, float, str]:
        """The key of sorting: severity first, then cost from the largest to the unknown, then the rule's id."""
        share = self.cost.share
        return SEVERITIES.index(self.severity), math.inf if math.isnan(share) else -share, self.rule

    def __str__(self) -> str:
        return f"{self.rule} {self.name} [{self.severity}] {self.text}"


def layers_in_words(layers: tuple[str, ...] | list[str], most: int = 3) -> str:
    """Names of layers for a sentence, the first few of many.

    Example:
        >>> layers_in_words(["a", "b", "c", "d", "e"]), layers_in_words([""])
        ('a, b, c and 2 more', 'the model itself')
        >>> layers_in_words(["1", "blocks.0"])
        'layer 1, blocks.0'
    """
    named = ["the model itself" if not name else f"layer {name}" if name[0].isdigit() else name for name in layers]
    more = f" and {len(named) - most} more" if len(named) > most else ""
    return ", ".join(named[:most]) + more


def names_as_code(names: list[str], most: int = 6) -> str:
    """The names of layers as a list in code, or where they are many the place of that list.

    Example:
        >>> names_as_code(["0.norm", "1.norm"]), names_as_code(list("abcdefgh"))
        ("['0.norm', '1.norm']", 'finding.layers')
    """
    return repr(names) if len(names) <= most else "finding.layers"
