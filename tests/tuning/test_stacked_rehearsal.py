"""Rates rehearsed as a stack of copies show what each shows alone, and where they would not, they are not stacked."""

import math
import random

import pytest
import torch
from test_rehearsal import stage_of
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel
from trainings import data, same

import normscope as ns
from normscope import norms
from normscope.tuning.rehearsal import rehearse
from normscope.tuning.stacked_rehearsal import NotStacked, rehearse_stacked

RATES = (0.2, 0.05, 0.01)
STEPS = 8


class Image(nn.Module):
    """Six numbers as an image of one channel."""

    def forward(self, x):
        return x.view(-1, 1, 2, 3)


class Transformer(nn.Module):
    """One block over six tokens, with tied embeddings; forward returns the loss."""

    def __init__(self):
        super().__init__()
        self.tokens, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.head.weight = self.tokens.weight
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, x, y):
        tokens = (4 + 2 * x).clamp(0, 7).long()
        return F.cross_entropy(self.head(self.block(self.tokens(tokens)))[:, 0], y)


class Centred(nn.Module):
    """Subtracts a running mean, a buffer that each forward replaces."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(16))

    def forward(self, x):
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - self.mean + 0.01 * random.random()


def perceptron(norm):
    return lambda: nn.Sequential(nn.Linear(6, 16), norm(), nn.ReLU(), nn.Linear(16, 3))


def convolutions(norm):
    return lambda: nn.Sequential(
        Image(), nn.Conv2d(1, 8, 3, padding=1), norm(), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)
    )


NETWORKS = {
    "batchnorm": perceptron(lambda: nn.BatchNorm1d(16)),
    "own batchnorm": perceptron(lambda: norms.BatchNorm1d(16)),
    "layernorm": perceptron(lambda: nn.LayerNorm(16)),
    "none": perceptron(nn.Identity),
    "assigned buffer": perceptron(Centred),
    "groupnorm": convolutions(lambda: nn.GroupNorm(2, 8)),
    "batchnorm2d": convolutions(lambda: nn.BatchNorm2d(8)),
    "transformer": Transformer,
}
OPTIMIZERS = {
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 0.1),
    "groups": lambda p: torch.optim.RMSprop([{"params": p[:2], "lr": 0.01}, {"params": p[2:], "lr": 0.1}]),
}


def described(network, optimizer="momentum", device="cpu", **fields):
    torch.manual_seed(0)
    x, y = (part.to(device) for part in data(96))
    model = NETWORKS[network]() if network in NETWORKS else network
    model = model.to(device, torch.float64)
    pairs = list(zip(x.double().split(16), y.split(16), strict=True))
    loss_fn = None if isinstance(model, Transformer) else nn.CrossEntropyLoss()
    given = {"loss_fn": loss_fn, "batches": pairs, "optimizer": OPTIMIZERS[optimizer](list(model.parameters()))}
    return ns.Setup(model, **given | {"eval_batches": pairs[:2]} | fields)


def check(setup, rates=RATES):
    """Both ways agree; returns the stacked rehearsals."""
    stage = stage_of(setup, steps=STEPS, held_out=2, schedule="cosine")
    stacked = rehearse_stacked(stage, rates, STEPS)
    for lr, made in zip(rates, stacked, strict=True):
        alone = rehearse(stage, lr, STEPS)
        assert (made.lr, made.steps, made.passes) == (lr, STEPS, alone.passes)
        assert made.diverged_at == alone.diverged_at
        assert made.losses == pytest.approx(alone.losses, rel=1e-5, nan_ok=True)
        assert made.held_out == pytest.approx(alone.held_out, rel=1e-5)
        assert made.metric == pytest.approx(alone.metric, nan_ok=True)
        assert made.pace > 0
        assert made.seconds > 0
    return stacked


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_stack_shows_what_each_copy_shows_alone(network, optimizer):
    made = check(described(network, optimizer))
    assert len({each.losses[0] for each in made}) <= 2  # but for rounding
    assert len({each.losses[2] for each in made}) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"clip": 0.1},
        {"clip": lambda parameters: nn.utils.clip_grad_value_(parameters, 0.01)},
        {"accumulate": 3},
        {"scaler": torch.amp.GradScaler("cpu"), "clip": 0.1},
        {"metric": lambda outputs, y: outputs.argmax(1).eq(y).double().mean()},
    ],
)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_clipping_accumulation_and_scaling_are_of_each_copy(fields, optimizer):
    check(described("batchnorm", optimizer, **fields))


def test_an_average_of_the_weights_and_frozen_parts_stay_with_their_copy():
    setup = described("batchnorm")
    setup.model[0].requires_grad_(False)
    setup.model[1].eval()
    averaged = AveragedModel(setup.model, use_buffers=True)
    check(ns.Setup(**vars(setup) | {"averaged_model": averaged}))


def test_a_forward_may_write_into_its_batch():
    def forward(model, batch):
        return F.cross_entropy(model(batch["x"].mul_(0.5)), batch.pop("y"))

    setup = described("layernorm")
    batches = [{"x": x, "y": y} for x, y in setup.batches]
    check(ns.Setup(setup.model, None, batches, setup.optimizer, forward=forward, eval_batches=batches[:2]))


def test_a_loss_with_parameters_is_stacked_too():
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3, dtype=torch.float64))

        def forward(self, outputs, y):
            return F.cross_entropy(outputs * self.weight, y)

    loss_fn, setup = Weighted(), described("layernorm")
    optimizer = torch.optim.SGD([*setup.model.parameters(), *loss_fn.parameters()], 0.1, momentum=0.9)
    check(ns.Setup(**vars(setup) | {"loss_fn": loss_fn, "optimizer": optimizer}))


def test_a_copy_that_diverges_leaves_the_others_as_they_were():
    setup = described("none", loss_fn=lambda outputs, y: outputs.square().mean(), clip=None)
    apart = check(setup, (0.2, 1e6, 0.01, 1e200))
    assert [each.diverged_at is None for each in apart] == [True, False, True, False]
    assert apart[1].diverged_at > 0
    assert apart[1].passes == apart[1].diverged_at + 1
    assert not math.isnan(apart[0].losses[-1])
    # All diverge, the last at a step where it is alone.
    check(setup, (1e200, 1e6))


class Roomy(nn.Module):
    """Runs out of memory in a stack, from some pass on."""

    def __init__(self, after=0):
        super().__init__()
        self.after, self.passes = after, 0

    def forward(self, x):
        if torch._C._functorch.is_batchedtensor(x):
            self.passes += 1
            if self.passes > self.after:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return x


class Branches(nn.Module):
    def forward(self, x):
        return 2 * x if x.mean() > 0 else x


class Behind(nn.Module):
    """Uses its weight through a list, where a stack cannot replace it."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16).double()
        self.held = [self.inner.weight]

    def forward(self, x):
        return x @ self.held[0].T + self.inner.bias


class Recurrent(nn.LSTM):
    def forward(self, x):
        return super().forward(x[:, None])[0][:, 0]


@pytest.mark.parametrize(
    ("layer", "reason", "spent"),
    [
        (lambda: nn.Dropout(0.1), r"1 \(Dropout\): RuntimeError: vmap: called random operation", 0),
        (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16)), "_SpectralNorm", 0),
        (Branches, r"1 \(Branches\): RuntimeError: .*data-dependent control flow", 0),
        (lambda: Recurrent(16, 16), "Batching rule not implemented for aten::lstm", 0),
        (Behind, r"the gradient of model.1.inner.weight of the first step is another in a stack", 3),
        (Roomy, "a stack of the copies does not fit in memory", 0),
        (lambda: Roomy(after=2), "a stack of the copies does not fit in memory", 6),
    ],
)
def test_what_does_not_stack_is_named(layer, reason, spent):
    stage = stage_of(described(perceptron(layer)()), steps=STEPS)
    states = torch.get_rng_state(), random.getstate()
    with pytest.raises(NotStacked, match=reason) as raised:
        rehearse_stacked(stage, RATES, STEPS)
    assert raised.value.passes == spent
    assert same((torch.get_rng_state(), random.getstate()), states)
    assert rehearse(stage, 0.05, STEPS).diverged_at is None


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"training_step": lambda model, batch, optimizer: 0.0}, "a training_step trains one copy"),
        ({"autocast": torch.bfloat16}, "with autocast torch computes parts of a stack in float32"),
    ],
)
def test_some_setups_are_not_stacked(fields, reason):
    with pytest.raises(NotStacked, match=reason):
        rehearse_stacked(stage_of(described("none", **fields)), RATES, STEPS)


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("network", NETWORKS)
def test_on_a_gpu(network, optimizer):
    check(described(network, optimizer, "cuda"))
