"""Order parameters of a random network, measured layer by layer: the slow twin of `predict`'s table.

Written from the definitions: run the network on a batch, keep what enters and leaves every linear layer, send the sum
of one output over the batch back, and average over channels, sites, samples and pairs of samples.
"""

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

from normscope.curvature.operators.statistics import statistics_mode

LINEAR = (nn.Linear, nn.Conv2d)


def _of_pairs(values: Tensor) -> tuple[Tensor, Tensor]:
    """(m, ...) -> sums over everything but samples: of squares for one sample, of products for two."""
    m = len(values)
    flat = values.flatten(1).double()
    one = flat.square().sum() / m
    two = (flat.sum(0).square().sum() - flat.square().sum()) / (m * (m - 1))
    return one, two


@contextlib.contextmanager
def _kept(model: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    kept: dict[str, list[Tensor]] = {}
    hooks = []

    def keep(name: str):
        def hook(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            output.retain_grad()
            kept[name] = [inputs[0], output]

        return hook

    for name, layer in model.named_modules():
        if isinstance(layer, LINEAR):
            hooks.append(layer.register_forward_hook(keep(name)))
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def measured(model: nn.Module, x: Tensor, stats: str = "batch") -> dict[str, dict[str, float]]:
    """qh, qh_xy, q, q_xy as means over channels and sites; qt, qt_xy as sums.

    Gradients by the weights are asked for nowhere, and are not taken.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    with _kept(model) as kept, statistics_mode(model, stats):
        model(x.detach().requires_grad_())[:, 0].sum().backward()
    for parameter in trained:
        parameter.requires_grad_()
    found = {}
    for name, (before, after) in kept.items():
        assert after.grad is not None
        row = {}
        for symbol, values, mean in (("qh", before, True), ("q", after, True), ("qt", after.grad, False)):
            one, two = _of_pairs(values.detach())
            size = values[0].numel() if mean else 1
            row[symbol], row[f"{symbol}_xy"] = float(one) / size, float(two) / size
        found[name] = row
    return found
