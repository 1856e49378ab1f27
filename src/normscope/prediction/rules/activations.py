"""The rules of elementwise functions: of torch's, and of modules that act on each value by itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.prediction.kernels.field import Field
from normscope.prediction.refusals import check_channels
from normscope.prediction.rules.elementwise_map import activation
from normscope.prediction.rules.registry import Rule, rule
from normscope.prediction.walk import Walk
from normscope.theory.gaussian import RELU, Activation

_WITHOUT_SETTINGS = {
    "relu": RELU,
    "relu_": RELU,
    "tanh": Activation("tanh", torch.tanh),
    "sigmoid": Activation("sigmoid", torch.sigmoid),
    "erf": Activation("erf", torch.erf),
    "sin": Activation("sin", torch.sin, monotone=False),
    "cos": Activation("cos", torch.cos, monotone=False),
    "abs": Activation("abs", torch.abs, line=(-1.0, 2.0), monotone=False),
}
_WITH_SETTINGS = (
    "elu", "gelu", "silu", "softplus", "relu6", "hardtanh", "hardswish", "hardsigmoid", "mish", "celu", "selu",
    "softsign", "logsigmoid",
)  # fmt: skip
_MODULES = (
    nn.ReLU, nn.Tanh, nn.Sigmoid, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.ReLU6, nn.Hardtanh, nn.Hardswish,
    nn.Hardsigmoid, nn.Mish, nn.CELU, nn.SELU, nn.Softsign, nn.LogSigmoid, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink,
)  # fmt: skip


def _applying(phi: Activation) -> Rule:
    """The rule of one activation, whatever further arguments it is called with."""
    return lambda walk, name, x, *_, **__: activation(walk, name, x, phi)


def _quadrature(function: Callable[..., Tensor]) -> Rule:
    """The rule of an elementwise function with settings, by quadrature of the function itself."""

    def apply(walk: Walk, name: str, x: Field, *args: Any, inplace: bool = False, **kwargs: Any) -> Field:
        phi = Activation(function.__name__, lambda z: function(z.clone(), *args, **kwargs), monotone=False)
        return activation(walk, name, x, phi)

    return apply


for _name, _phi in _WITHOUT_SETTINGS.items():
    rule(_name)(_applying(_phi))
for _name in _WITH_SETTINGS:
    rule(_name)(_quadrature(getattr(F, _name)))
rule(functions=[F.hardtanh_])(_quadrature(F.hardtanh))


@rule("leaky_relu", modules=[nn.LeakyReLU], settings=("negative_slope",))
def leaky_relu(walk: Walk, name: str, x: Field, negative_slope: float = 0.01, inplace: bool = False) -> Field:
    """Leaky ReLU in closed form."""
    return activation(walk, name, x, _leaky(negative_slope))


def _leaky(slope: float) -> Activation:
    return Activation("leaky relu", lambda z: F.leaky_relu(z, slope), line=(slope, 1 - slope), monotone=slope >= 0)


@rule(modules=[nn.PReLU], settings=lambda layer, x: {"layer": layer})
def prelu(walk: Walk, name: str, x: Field, layer: nn.PReLU) -> Field:
    """PReLU as the leaky ReLU of the mean slope, which is taken as a constant."""
    if layer.num_parameters != 1:
        check_channels(layer.num_parameters, x)
    if not bool(torch.isfinite(layer.weight.detach()).all()):
        raise ValueError("has a slope that is not finite. Initialize it, or load it again")
    if walk.trains(layer.weight):
        walk.remarks.note(
            f"{name}: the slope is taken as a constant; what it adds is a width's part of what weights add."
        )
    return activation(walk, name, x, _leaky(float(layer.weight.detach().mean())))


@rule(modules=_MODULES, settings=lambda layer, x: {"layer": layer}, subclasses=False)
def module_of_values(walk: Walk, name: str, x: Field, layer: nn.Module) -> Field:
    """A module that acts on each value by itself: torch's function of that name, or by quadrature."""
    layer_type = type(layer).__name__
    phi = _WITHOUT_SETTINGS.get(layer_type.lower()) or Activation(layer_type, _forward_of(layer), monotone=False)
    return activation(walk, name, x, phi)


def elementwise_module(module_class: type[nn.Module]) -> type[nn.Module]:
    """Declare that modules of this class act on each value by itself; their moments are found by quadrature.

    Use it as a decorator of the class, or call it once with the class.

    Args:
        module_class: a class of modules whose forward takes one tensor and gives a tensor of the same shape.

    Returns:
        The class itself.

    Example:
        An activation that torch does not have.

        >>> @elementwise_module
        ... class Cubic(nn.Module):
        ...     def forward(self, x):
        ...         return x - x**3 / 10
        >>> from normscope.prediction import predict
        >>> net = nn.Sequential(nn.Linear(50, 200), Cubic(), nn.Linear(200, 1))
        >>> predict(net, (50,), "half_mse").lambda_max > 0
        True
    """
    rule(modules=[module_class], settings=lambda layer, x: {"layer": layer}, subclasses=False)(module_of_values)
    return module_class


def _forward_of(layer: nn.Module) -> Callable[[Tensor], Tensor]:
    """The module's forward on a copy of the values, which it may write to.

    Outside of inference mode, so that tensors that the module keeps are good for training.
    """

    def function(z: Tensor) -> Tensor:
        with torch.inference_mode(False):
            values: Tensor = layer(z.clone())
        return values

    return function
