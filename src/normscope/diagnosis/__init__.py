"""`diagnose` finds what is wrong with the normalization in a training: findings with evidence, cost and fix.

`look/` gathers once what all rules judge from: the normalizers, the order of calls, statistics of several batches, and
a short training of a copy. Each file in `rules/` has one rule. `registry.py` knows the rules by id and name, and
`diagnose_network.py` is the verb.
"""

from typing import TYPE_CHECKING

from normscope.importing.first_use import on_first_use

if TYPE_CHECKING:
    from normscope.diagnosis.diagnose_network import diagnose
    from normscope.diagnosis.finding import Cost, Evidence, Finding
    from normscope.diagnosis.gap_result import TrainEvalGap
    from normscope.diagnosis.gap_split import train_eval_gap
    from normscope.diagnosis.result import Diagnosis

__all__ = ["Cost", "Diagnosis", "Evidence", "Finding", "TrainEvalGap", "diagnose", "train_eval_gap"]

__getattr__ = on_first_use(
    __name__,
    {
        "Cost": "finding",
        "Diagnosis": "result",
        "Evidence": "finding",
        "Finding": "finding",
        "TrainEvalGap": "gap_result",
        "diagnose": "diagnose_network",
        "train_eval_gap": "gap_split",
    },
)


def __dir__() -> list[str]:
    return __all__
