"""NS301: gradients that grow along depth at the start."""

import math
from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

GREW = 200.0


@rule("NS301", "gradients-explode", needs=("batches",))
def gradients_explode(look: Look) -> Iterator[Found]:
    """Gradients grow along depth at the start.

    BatchNorm with ReLU and no skip connection multiplies the gradient's norm by sqrt(pi / (pi - 1)) = 1.21 a layer
    towards the input, at any width and with any weights.

    Why it hurts:
        One learning rate is too large for the first layers or too small for the last ones. 60 layers have a factor of
        100,000, and do not train.

    Threshold:
        An error where the norm of the loss's gradient at the output of the first weight layer is more than 200 times
        that at the last one. In the development half of NormFaults, clean trainings have at most 4, the fault 120,000.

    Switch off:
        The network trains anyway, by a rate for each layer for example.

    Fails:
        layers = [part for _ in range(40) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
        setup = training(nn.Sequential(*layers, nn.Linear(64, 10)))

    Passes:
        layers = [part for _ in range(4) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
        setup = training(nn.Sequential(*layers, nn.Linear(64, 10)))
    """
    depth = look.depth
    if len(depth) < 3 or not depth[-1] > 0:
        return
    ratio = depth[0] / depth[-1]
    if ratio > GREW and math.isfinite(ratio):
        growth = ratio ** (1 / (len(depth) - 1))
        batch = any(norm.over_batch for norm in look.normalizers)
        theory = "; BatchNorm with ReLU and no skips gives 1.21" if batch else ""
        yield Found(
            "error",
            f"Gradients grow by a factor of {ratio:.2g} over {len(depth)} layers towards the input, {growth:.2f} a "
            f"layer{theory}.",
            Evidence("gradient at the first layer / at the last", ratio, limit=GREW),
            "x = x + block(x)  # a skip connection around each block; or fewer layers",
            source='the encyclopedia article "Batch normalization", gradient explosion',
        )
