"""The Monitor measures a training run and leaves it bit for bit as it was: probes measure, sinks store."""

from typing import TYPE_CHECKING

from normscope.importing.first_use import on_first_use
from normscope.monitor.probes.registry import PRESETS, PROBES

if TYPE_CHECKING:
    from normscope.monitor.monitor import Monitor
    from normscope.monitor.probes.activations import ActivationProbe, Activations
    from normscope.monitor.probes.covariate_shift import CovariateShift, ShiftProbe
    from normscope.monitor.probes.critical_rate import CriticalProbe, CriticalRate
    from normscope.monitor.probes.curvature import Curvature, CurvatureProbe
    from normscope.monitor.probes.health import HealthProbe, NormHealth
    from normscope.monitor.probes.landscape import DLN_FACTORS, VGG_FACTORS, Landscape, LandscapeProbe
    from normscope.monitor.record import Record, frame_of, layers_of
    from normscope.monitor.sinks.jsonl import JSONL, read_jsonl, records_of
    from normscope.monitor.sinks.trackers import TensorBoard, WandB

__all__ = [
    "DLN_FACTORS",
    "JSONL",
    "PRESETS",
    "PROBES",
    "VGG_FACTORS",
    "ActivationProbe",
    "Activations",
    "CovariateShift",
    "CriticalProbe",
    "CriticalRate",
    "Curvature",
    "CurvatureProbe",
    "HealthProbe",
    "Landscape",
    "LandscapeProbe",
    "Monitor",
    "NormHealth",
    "Record",
    "ShiftProbe",
    "TensorBoard",
    "WandB",
    "frame_of",
    "layers_of",
    "read_jsonl",
    "records_of",
]

_PLACES = {
    "DLN_FACTORS": "probes.landscape",
    "JSONL": "sinks.jsonl",
    "Monitor": "monitor",
    "Record": "record",
    "TensorBoard": "sinks.trackers",
    "VGG_FACTORS": "probes.landscape",
    "WandB": "sinks.trackers",
    "frame_of": "record",
    "layers_of": "record",
    "read_jsonl": "sinks.jsonl",
    "records_of": "sinks.jsonl",
}
_PROBES = {name: f"probes.{known.module}" for known in PROBES.values() for name in (known.probe, known.result)}
__getattr__ = on_first_use(__name__, _PLACES | _PROBES)


def __dir__() -> list[str]:
    return __all__
