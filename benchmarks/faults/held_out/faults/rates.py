"""Learning rates at or beyond their limit, and attention logits that grow."""

import torch
from torch import Tensor, nn

from faults.case import Case
from faults.data import accuracy, chunks, digits, minus_squared_error, shuffled, text
from faults.held_out.networks import Attention, ByteLM, ViT, decayed_apart, minus_token_loss, mlp, token_loss
from normscope import Setup


def denoiser_beyond_its_limit(seed: int, fault: bool) -> Setup:
    """A regression of clean digits from noisy ones, at thirty times a rate that trains."""
    torch.manual_seed(seed)
    data = digits()
    generator = torch.Generator().manual_seed(seed)
    x, x_eval = (clean + torch.randn(clean.shape, generator=generator) for clean in (data.x, data.x_eval))
    model = mlp([64, 64, 64, 64], nn.LayerNorm)
    return Setup(
        model,
        nn.MSELoss(),
        shuffled(x, data.x.flatten(1), size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), lr=15.0 if fault else 0.5),
        chunks(x_eval, data.x_eval.flatten(1)),
        minus_squared_error,
        steps=200,
    )


class DynamicTanh(nn.Module):
    """tanh(alpha x) with a scale and a shift, in the place of a normalizer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.tensor(0.5))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return (self.alpha * x).tanh() * self.weight + self.bias


def tanh_at_the_rate_of_batchnorm(seed: int, fault: bool) -> Setup:
    """BatchNorm trains at this rate; DynamicTanh took its place, and needs a tenth."""
    torch.manual_seed(seed)
    data, model = digits(), mlp([64, 64, 64, 64, 10], DynamicTanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.SGD(model.parameters(), lr=0.3 if fault else 0.03, momentum=0.9),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


def warm_up_that_goes_on(seed: int, fault: bool) -> Setup:
    """A byte language model whose rate grows for 200 steps: the loss falls for 100 of them, and then jumps."""
    torch.manual_seed(seed)
    data, model = text(), ByteLM()
    optimizer = torch.optim.SGD(model.parameters(), lr=3.0 if fault else 0.3, momentum=0.9)
    growth = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 200))
    return Setup(
        model,
        token_loss,
        shuffled(data.x, data.y, size=16, steps=240, seed=seed),
        optimizer,
        chunks(data.x_eval, data.y_eval, size=64),
        minus_token_loss,
        scheduler=growth,
        steps=240,
    )


def logits_without_qk_norm(seed: int, fault: bool) -> Setup:
    """Queries and keys have grown tenfold, as late in a long training, and nothing normalizes them."""
    torch.manual_seed(seed)
    data, model = digits(), ViT(qk_norm=not fault, depth=3)
    for layer in model.modules():
        if isinstance(layer, Attention):
            with torch.no_grad():
                layer.qkv.weight[:64] *= 10.0
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(data.x, data.y, size=64, steps=200, seed=seed),
        torch.optim.AdamW(decayed_apart(model, 0.05), lr=2e-3),
        chunks(data.x_eval, data.y_eval),
        accuracy,
        steps=200,
    )


CASES = (
    Case(
        "denoiser-beyond-its-limit",
        "held-out",
        denoiser_beyond_its_limit,
        "rate-beyond-limit",
        fix="a rate of 0.5 in the place of 15",
    ),
    Case(
        "tanh-at-the-rate-of-batchnorm",
        "held-out",
        tanh_at_the_rate_of_batchnorm,
        "old-rate-after-swap",
        "jiachenzhu/DyT#18",
        also=("rate-beyond-limit",),
        fix="a tenth of the rate",
    ),
    Case(
        "warm-up-that-goes-on",
        "held-out",
        warm_up_that_goes_on,
        "loss-spike-ahead",
        also=("rate-beyond-limit",),
        fix="warm-up to a tenth of the rate",
    ),
    Case(
        "logits-without-qk-norm",
        "held-out",
        logits_without_qk_norm,
        "attention-logits-grow",
        fix="LayerNorm on queries and keys",
    ),
)
