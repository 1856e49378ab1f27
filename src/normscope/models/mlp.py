"""The fully connected network of Wei et al. 2019, Section 4."""

from torch import nn

from normscope.models.initialization import initialize, seeded
from normscope.norms import make_norm


class MLP(nn.Sequential):
    r"""`depth` linear maps, with normalizer and ReLU after all but the last; inputs are flattened.

    Paper's setting (the defaults): L = 4, N = 1000, 10 linear outputs, W ~ N(0, 2/N), b ~ N(0, 0.5),
    BatchNorm before each ReLU, beta = 0.

    Args:
        d_in: number of inputs.
        d_out: number of outputs.
        width: units of each hidden layer.
        depth: number of linear maps, with that of the output.
        norm: the normalizer of the hidden layers, a name of `normscope.norms.NORM_NAMES`.
        gamma: initial scale of the normalizers.
        init: the initial distribution of the weights, by name; see `initialize`.
        sigma_w2: variance of the weights times fan-in, for init="mean_field".
        sigma_b2: variance of the biases, for init="mean_field".
        seed: seed of the initial weights.

    Example:
        >>> import torch
        >>> MLP(8, 3, width=16, norm="batch")(torch.zeros(2, 8)).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        d_in: int = 784,
        d_out: int = 10,
        *,
        width: int = 1000,
        depth: int = 4,
        norm: str = "none",
        gamma: float = 1.0,
        init: str = "mean_field",
        sigma_w2: float = 2.0,
        sigma_b2: float = 0.5,
        seed: int = 0,
    ) -> None:
        layers: list[nn.Module] = [nn.Flatten()]
        with seeded(seed):
            for i in range(depth - 1):
                linear = nn.Linear(width if i else d_in, width)
                layers += [linear, make_norm(norm, width, dim=1, gamma=gamma), nn.ReLU()]
            layers.append(nn.Linear(width if depth > 1 else d_in, d_out))
        super().__init__(*layers)
        initialize(self, init, seed=seed, sigma_w2=sigma_w2, sigma_b2=sigma_b2)
