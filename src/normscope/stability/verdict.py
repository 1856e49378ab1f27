"""A verdict: one sentence on a number for the person who trains, with its formula and source."""

from dataclasses import dataclass

from normscope.messages import severity


@dataclass(frozen=True)
class Verdict:
    """One sentence about a number, with its formula and its source.

    Attributes:
        about: the subject that it judges, as "learning rate".
        good: True, False, or None where the number alone does not decide.
        text: the finding first, then the number.
        formula: the rule as a formula.
        source: where the rule comes from.
    """

    about: str
    good: bool | None
    text: str
    formula: str
    source: str

    def __str__(self) -> str:
        return f"[{severity(self.good)}] {self.text} ({self.formula}; {self.source})"
