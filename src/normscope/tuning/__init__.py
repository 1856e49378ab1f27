"""`tune` names a learning rate after trying a few of them for a few steps on copies of the network.

`request.py` checks the arguments, `stage.py` keeps what all rehearsals share, `rehearsal.py` trains one copy at one
rate, `stacked_rehearsal.py` several at once, `search.py` decides which rates to rehearse, `choice.py` names the rate
from what the rehearsals showed.
"""

from typing import TYPE_CHECKING

from normscope.importing.first_use import on_first_use

if TYPE_CHECKING:
    from normscope.tuning.rehearsal import Rehearsal
    from normscope.tuning.result import Cost, Tuning
    from normscope.tuning.tune_network import tune

__all__ = ["Cost", "Rehearsal", "Tuning", "tune"]

__getattr__ = on_first_use(
    __name__, {"Cost": "result", "Rehearsal": "rehearsal", "Tuning": "result", "tune": "tune_network"}
)


def __dir__() -> list[str]:
    return __all__
