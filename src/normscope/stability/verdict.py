"""What a number means for the person who trains: one sentence, its formula and its source."""

from dataclasses import dataclass

# Measured, not derived: on BatchNorm networks with cross-entropy plain gradient descent shows no rise of the loss at
# twice the quadratic limit, a first rise between 2 and 10 times, and still trains at 10 times.
NOT_A_LIMIT = (
    "With cross-entropy this is no limit of training: networks go on learning well beyond the learning rate at which "
    "the local quadratic would rise."
)


@dataclass(frozen=True)
class Verdict:
    """good: True, False, or None where the number alone does not decide."""

    about: str
    good: bool | None
    text: str
    formula: str
    source: str

    def __str__(self) -> str:
        mark = {True: "good", False: "look", None: "note"}[self.good]
        return f"[{mark}] {self.text} ({self.formula}; {self.source})"
