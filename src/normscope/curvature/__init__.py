"""Curvature of the loss as it is trained: products, eigenvalues, stable learning rates.

    measure_network     `measure`: checks the arguments
    whole_spectrum      the other entrance: density, trace and mean mode
    result              `Measurement`

    measurement/        the steps of `measure`, in the order of `all_steps.py`
    session/            a lent network on its batches, with its settings: here products and searches are made
    operators/          knows networks and makes products
    eigensolvers/       knows only products
    autograd/           derivatives that torch lacks or makes slow

How a product with the Hessian is made is said, and done, in `operators/network_products.py`; `operators/passes.py` has
the passes through the network. `session/session.py` hands such a product to a search of `eigensolvers/solver.py`.
"""

from typing import TYPE_CHECKING

from normscope.curvature.eigensolvers.lanczos import Ritz, lanczos
from normscope.importing.first_use import on_first_use

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
