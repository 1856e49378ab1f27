"""A verdict: one sentence on a number for the person who trains, with its formula and source."""

from dataclasses import dataclass

from normscope.messages import severity


@dataclass(frozen=True)
class Verdict:
    """One sentence about a number; good: True, False, or None where the number alone does not decide."""

    about: str
    good: bool | None
    text: str
    formula: str
    source: str

    def __str__(self) -> str:
        return f"[{severity(self.good)}] {self.text} ({self.formula}; {self.source})"
