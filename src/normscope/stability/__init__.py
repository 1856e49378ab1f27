"""Stability of training: limits of optimizers, the critical rate, the first guess of a rate, and words for them.

optimizer_rules         the stability rule of each optimizer
optimizer_limits        the stability limit eta* of an optimizer, and its preconditioner
critical_rate           the search for the critical rate
first_guess             the learning rate to try first, with its notes
first_guess_rates       the rule: a rate from the critical rate and eta*
first_guess_evidence    the measured shares, and what they cost in tests
first_guess_words       the first guess in sentences
verdict, wording        a verdict, and the verdict on a rate beside eta*
"""

from normscope.stability.optimizer_limits import Limit, momentum_limit, optimizer_limit
from normscope.stability.verdict import Verdict

__all__ = ["Limit", "Verdict", "momentum_limit", "optimizer_limit"]
