"""Curvature of the loss as it is trained: products, eigenvalues, stable learning rates.

The files here, in the order in which a call of `measure` goes through them:

    measure_network         `measure`: checks the arguments
    request                 the arguments, with defaults filled in
    measurement_steps       all steps, from the batches to the result
    opening, session        the lent model on its batches, in which products and searches are made
    options                 the settings of a session
    cached_weights          the weights of several batches, computed once
    first_pass              loss, gradient, kind of the loss
    search_steps, searches  the eigenvalue searches
    float64_check           their results checked in float64
    further_batches         how much the numbers vary over batches
    measurement_notes, observations     facts that the reader of the result should know
    measured, measured_to_result, result    the numbers, and the `Measurement` made of them

`whole_spectrum` is the other entrance: density, trace and mean mode. Below: `operators/` knows networks and makes
products, `eigensolvers/` knows only products, `autograd/` has the derivatives that torch lacks or makes slow.

How a product with the Hessian is made is said, and done, in `operators/network_products.py`; `operators/passes.py` has
the passes through the network. `session.py` hands such a product to a search of `eigensolvers/solver.py`.
"""

from typing import TYPE_CHECKING

from normscope.curvature.eigensolvers.lanczos import Ritz, lanczos
from normscope.first_use import on_first_use

if TYPE_CHECKING:
    from normscope.curvature.eigensolvers.block_lanczos import block_lanczos
    from normscope.curvature.eigensolvers.density import Density
    from normscope.curvature.eigensolvers.solver import Solver
    from normscope.curvature.measure_network import measure
    from normscope.curvature.operators.fisher_by_outputs import MeanMode
    from normscope.curvature.operators.network_products import Network
    from normscope.curvature.operators.statistics import STATISTICS
    from normscope.curvature.result import Measurement
    from normscope.curvature.whole_spectrum import Spectrum, mean_mode, spectrum

__all__ = [
    "STATISTICS",
    "Density",
    "MeanMode",
    "Measurement",
    "Network",
    "Ritz",
    "Solver",
    "Spectrum",
    "block_lanczos",
    "lanczos",
    "mean_mode",
    "measure",
    "spectrum",
]

__getattr__ = on_first_use(
    __name__,
    {
        "STATISTICS": "operators.statistics",
        "Density": "eigensolvers.density",
        "MeanMode": "operators.fisher_by_outputs",
        "Measurement": "result",
        "Network": "operators.network_products",
        "Solver": "eigensolvers.solver",
        "Spectrum": "whole_spectrum",
        "block_lanczos": "eigensolvers.block_lanczos",
        "mean_mode": "whole_spectrum",
        "measure": "measure_network",
        "spectrum": "whole_spectrum",
    },
)


def __dir__() -> list[str]:
    return __all__
