"""Find all normalizers of a model: layers of known classes, layers recognized by a probe, and unrecognized ones."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

from normscope.norms.kinds import NORM_LAYERS
from normscope.norms.recognition import Recognized, could_be_one, known, named_like_a_norm, recognize


@dataclass
class FoundNorms:
    """The normalizers of a model.

    Attributes:
        layers: by name.
        twins, formulas: for layers of other classes than torch's and normscope's, the equivalent layer and its formula
            in words.
        left: names of layers that look like a normalizer and were not recognized, with the reason.
    """

    layers: dict[str, nn.Module] = field(default_factory=dict)
    twins: dict[nn.Module, nn.Module] = field(default_factory=dict)
    formulas: dict[nn.Module, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)


def find_norms(model: nn.Module) -> FoundNorms:
    """The outermost normalizers of a model; layers inside a normalizer (noise, a wrapped layer) belong to it."""
    norms = FoundNorms()
    asked: dict[nn.Module, Recognized | None] = {}
    named: dict[str, nn.Module] = {}
    outer = None
    for name, module in model.named_modules(remove_duplicate=False):
        if outer is not None and name.startswith(outer):
            continue
        if known(module):
            norms.layers[name] = module
        elif isinstance(module, NORM_LAYERS) or (could_be_one(module) and not any(_within(module))):
            if module not in asked:
                asked[module] = recognize(module)
            _sort(norms, name, module, asked[module])
        elif named_like_a_norm(module) and type(module).forward is not nn.Sequential.forward:
            named[name] = module
        if name in norms.layers or name in norms.left:
            outer = f"{name}." if name else ""
    known_names = [*norms.layers, *norms.left]
    for name, module in named.items():
        if not any(other.startswith(f"{name}." if name else "") for other in known_names):
            norms.left[name] = (
                f"its class {type(module).__name__} has the name of a normalizer, and it is not one that is known here"
            )
    return norms


def has_known_normalizer(model: nn.Module) -> bool:
    """Whether a module of the model is a normalizer of torch or normscope with an unchanged forward.

    Example:
        >>> has_known_normalizer(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2))), has_known_normalizer(nn.Linear(2, 2))
        (True, False)
    """
    return any(known(module) for module in model.modules())


def _within(module: nn.Module) -> Iterator[bool]:
    return (isinstance(inner, NORM_LAYERS) or known(inner) for inner in module.modules() if inner is not module)


def _sort(norms: FoundNorms, name: str, module: nn.Module, recognized: Recognized | None) -> None:
    if recognized is None:
        return
    if recognized.twin is None:
        norms.left[name] = recognized.reason
    else:
        norms.layers[name] = module
        norms.twins[module] = recognized.twin
        norms.formulas[module] = recognized.formula
