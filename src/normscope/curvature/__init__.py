"""Curvature of the loss as it is trained: products, eigenvalues, stable learning rates."""

from typing import TYPE_CHECKING

from normscope.curvature.lanczos import Ritz, lanczos
from normscope.first_use import on_first_use

if TYPE_CHECKING:
    from normscope.curvature.block import block_lanczos
    from normscope.curvature.density import Density
    from normscope.curvature.dual import MeanMode
    from normscope.curvature.limits import Limit, momentum_limit, optimizer_limit
    from normscope.curvature.measurement import Measurement
    from normscope.curvature.measuring import measure
    from normscope.curvature.network import Network
    from normscope.curvature.probe import Curvature, CurvatureProbe
    from normscope.curvature.statistics import STATISTICS
    from normscope.curvature.whole import Spectrum, mean_mode, spectrum

__all__ = [
    "STATISTICS",
    "Curvature",
    "CurvatureProbe",
    "Density",
    "Limit",
    "MeanMode",
    "Measurement",
    "Network",
    "Ritz",
    "Spectrum",
    "block_lanczos",
    "lanczos",
    "mean_mode",
    "measure",
    "momentum_limit",
    "optimizer_limit",
    "spectrum",
]

__getattr__ = on_first_use(
    __name__,
    {
        "STATISTICS": "statistics",
        "Curvature": "probe",
        "CurvatureProbe": "probe",
        "Density": "density",
        "Limit": "limits",
        "MeanMode": "dual",
        "Measurement": "measurement",
        "Network": "network",
        "Spectrum": "whole",
        "block_lanczos": "block",
        "mean_mode": "whole",
        "measure": "measuring",
        "momentum_limit": "limits",
        "optimizer_limit": "limits",
        "spectrum": "whole",
    },
)


def __dir__() -> list[str]:
    return __all__
