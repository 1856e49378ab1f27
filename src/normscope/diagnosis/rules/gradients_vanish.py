"""NS302: gradients that vanish along depth at the start."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

SHRANK = 1e-3
# The largest gradient among the first quarter of the layers counts.
EARLY = 4


@rule("NS302", "gradients-vanish", needs=("batches",))
def gradients_vanish(look: Look) -> Iterator[Found]:
    """Gradients vanish along depth at the start.

    torch's own initial weights of a linear layer have a variance of 1 / (3 inputs), a sixth of what ReLU needs to keep
    the signal. Without a normalizer each layer shrinks it.

    Why it hurts:
        The first layers do not move, and the outputs do not depend on the input.

    Threshold:
        An error where the norm of the loss's gradient is less than 0.001 times that at the output of the last weight
        layer, at the outputs of all layers in the first quarter, and a short training does not lower the loss by 5 %
        and two standard errors. The first layer of a transformer is in a branch with a small gradient, and the residual
        stream beside it is not. In the development half of NormFaults, clean trainings have at least 0.02, the fault
        0.0002.

    Switch off:
        The first layers are not meant to train.

    Fails:
        layers = [part for _ in range(12) for part in (nn.Linear(64, 64), nn.ReLU())]
        setup = training(nn.Sequential(*layers, nn.Linear(64, 10)))

    Passes:
        layers = [part for _ in range(12) for part in (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU())]
        setup = training(nn.Sequential(*layers, nn.Linear(64, 10)))
    """
    depth = look.depth
    if len(depth) < 3 or not depth[-1] > 0 or not depth[0] > 0:
        return
    ratio = max(depth[: max(len(depth) // EARLY, 1)]) / depth[-1]
    if ratio < SHRANK and not look.learns:
        yield Found(
            "error",
            f"Gradients shrink by a factor of {1 / ratio:.2g} over {len(depth)} layers towards the input.",
            Evidence("gradient at the first layers / at the last", ratio, limit=SHRANK),
            "nn.Sequential(linear, nn.BatchNorm1d(width), nn.ReLU())  # a normalizer in each layer, or skips, or "
            "nn.init.kaiming_normal_(layer.weight, nonlinearity='relu')",
            source="He et al. 2015, Delving deep into rectifiers",
        )
