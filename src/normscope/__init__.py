"""normscope: an instrument for normalization in neural networks.

This file lists the public names. They load on first use, so that the command line answers without importing torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from normscope._version import __version__

if TYPE_CHECKING:
    from normscope import (
        bounds,
        curvature,
        data,
        diagnosis,
        losses,
        models,
        monitor,
        norms,
        papers,
        prediction,
        solve,
        sweeping,
        tuning,
    )
    from normscope.curvature import measure
    from normscope.diagnosis import diagnose
    from normscope.monitor import Monitor
    from normscope.norms import fold_norms, swap_norms
    from normscope.papers import reproduce
    from normscope.prediction import predict
    from normscope.setup import Setup
    from normscope.sweeping import sweep
    from normscope.training import train
    from normscope.tuning import tune

_MODULES = (
    "bounds",
    "curvature",
    "data",
    "diagnosis",
    "losses",
    "models",
    "norms",
    "monitor",
    "prediction",
    "papers",
    "solve",
    "sweeping",
    "tuning",
)
_NAMES = {
    "Monitor": "monitor",
    "Setup": "setup",
    "diagnose": "diagnosis",
    "fold_norms": "norms",
    "measure": "curvature",
    "predict": "prediction",
    "reproduce": "papers",
    "swap_norms": "norms",
    "sweep": "sweeping",
    "train": "training",
    "tune": "tuning",
}

__all__ = [
    "Monitor",
    "Setup",
    "__version__",
    "bounds",
    "curvature",
    "data",
    "diagnose",
    "diagnosis",
    "fold_norms",
    "losses",
    "measure",
    "models",
    "monitor",
    "norms",
    "papers",
    "predict",
    "prediction",
    "reproduce",
    "solve",
    "swap_norms",
    "sweep",
    "sweeping",
    "train",
    "tune",
    "tuning",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"normscope.{name}")
    if name in _NAMES:
        return getattr(import_module(f"normscope.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'normscope' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
