"""Measurements of a training run that leave it as it was."""

from typing import TYPE_CHECKING

from normscope.first_use import on_first_use
from normscope.isolation.untouched import untouched

if TYPE_CHECKING:
    from normscope.observe.activations import ActivationProbe, Activations
    from normscope.observe.critical import CriticalProbe, CriticalStep
    from normscope.observe.health import HealthProbe, NormHealth
    from normscope.observe.jsonl import JSONL, read_jsonl, records_of
    from normscope.observe.landscape import DLN_FACTORS, VGG_FACTORS, Landscape, LandscapeProbe
    from normscope.observe.measurements import MEASUREMENTS, PRESETS
    from normscope.observe.monitor import Monitor
    from normscope.observe.record import Record, frame_of, layers_of
    from normscope.observe.shift import CovariateShift, ShiftProbe
    from normscope.observe.sinks import TensorBoard, WandB
    from normscope.observe.verdict import Verdict

__all__ = [
    "DLN_FACTORS",
    "JSONL",
    "MEASUREMENTS",
    "PRESETS",
    "VGG_FACTORS",
    "ActivationProbe",
    "Activations",
    "CovariateShift",
    "CriticalProbe",
    "CriticalStep",
    "HealthProbe",
    "Landscape",
    "LandscapeProbe",
    "Monitor",
    "NormHealth",
    "Record",
    "ShiftProbe",
    "TensorBoard",
    "Verdict",
    "WandB",
    "frame_of",
    "layers_of",
    "read_jsonl",
    "records_of",
    "untouched",
]

__getattr__ = on_first_use(
    __name__,
    {
        "DLN_FACTORS": "landscape",
        "JSONL": "jsonl",
        "MEASUREMENTS": "measurements",
        "PRESETS": "measurements",
        "VGG_FACTORS": "landscape",
        "ActivationProbe": "activations",
        "Activations": "activations",
        "CovariateShift": "shift",
        "CriticalProbe": "critical",
        "CriticalStep": "critical",
        "HealthProbe": "health",
        "Landscape": "landscape",
        "LandscapeProbe": "landscape",
        "Monitor": "monitor",
        "NormHealth": "health",
        "Record": "record",
        "ShiftProbe": "shift",
        "TensorBoard": "sinks",
        "Verdict": "verdict",
        "WandB": "sinks",
        "frame_of": "record",
        "layers_of": "record",
        "read_jsonl": "jsonl",
        "records_of": "jsonl",
    },
)


def __dir__() -> list[str]:
    return __all__
