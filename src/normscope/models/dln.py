"""The deep linear network of Santurkar et al. 2018, Appendix A: k square layers that fit a linear map."""

import torch
from torch import Tensor, nn

from normscope.models.initialization import initialize, seeded
from normscope.norms import make_norm


class DLN(nn.Module):
    r"""x -> W_k ... W_1 x without biases, a normalizer after every layer.

    Paper's setting: k = 25 layers of 10 x 10, Glorot, n = 1000 Gaussian samples as one full batch, loss
    1/2 sum over data and outputs of (f(x) - A x)^2 (`half_sse`), plain gradient descent at lr 1e-6 for 10,000
    steps. Layers are numbered from the input. Whether the last layer is normalized too is not stated; with it the
    ratio of final losses is the paper's (3.2 measured, 3.5 printed), without it 1.7, so it is by default.

    Args:
        k: number of layers.
        width: inputs and outputs of each layer.
        norm: a name of `normscope.norms.NORM_NAMES`.
        norm_last: whether the last layer's output is normalized, too.
        gamma: initial scale of the normalizers.
        seed: seed of the initial weights W_0, which are the same for every norm.
        dtype: float64 by default, since rounding matters at a learning rate of 1e-6.
    """

    def __init__(
        self,
        *,
        k: int = 25,
        width: int = 10,
        norm: str = "none",
        norm_last: bool = True,
        gamma: float = 1.0,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        normalized = k if norm_last else k - 1
        with seeded(seed):
            self.linears = nn.ModuleList(nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(k))
            self.norms = nn.ModuleList(
                make_norm(norm if i < normalized else "none", width, dim=1, gamma=gamma).to(dtype) for i in range(k)
            )
        initialize(self, "glorot", seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(linear(x))
        return x
