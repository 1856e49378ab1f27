"""Ways to write cross-entropy, squared error and others: each recognised, or called "other"."""

import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from normscope import losses
from normscope.isolation.generators import Generators
from normscope.loss_kinds import CROSS_ENTROPY, FLAT, OTHER, SQUARED, find_kind, kind_by_name, kind_of, loss_kind

N, C, T = 8, 5, 6
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels(*shape, classes=C, seed=1):
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


Y, SEQUENCE, IMAGE = labels(N), labels(N, T), labels(N, 3, 4)
Z, WEIGHT, NUMBERS = drawn(N, C), drawn(C, seed=2).exp(), drawn(N, C, seed=3)
SOFT = drawn(N, C, seed=4).softmax(1)
IGNORED = Y.clone()
IGNORED[:5] = -100


def by_hand(z):
    return -z.log_softmax(1).gather(1, Y[:, None]).mean()


def by_log_sum_exp(z):
    return (z.exp().sum(1).log() - z.gather(1, Y[:, None])[:, 0]).mean()


def by_log_of_softmax(z):
    return -(z.softmax(1) + 1e-9).log().gather(1, Y[:, None]).sum()


def by_sigmoid(z):
    p, q = z.sigmoid(), SOFT.to(z)
    return -(q * p.log() + (1 - q) * (1 - p).log()).mean()


def shifted(z):
    return F.cross_entropy(z[:, :-1].reshape(-1, C), SEQUENCE[:, 1:].flatten())


def mixed_up(z):
    return 0.3 * F.cross_entropy(z, Y) + 0.7 * F.cross_entropy(z, Y.flip(0))


def of_log_probabilities(z):
    return F.kl_div(z, SOFT.to(z), reduction="batchmean")


ENTROPIES = {
    "logits": (Z, lambda z: F.cross_entropy(z, Y)),
    "sum": (Z, lambda z: F.cross_entropy(z, Y, reduction="sum")),
    "constant factor": (Z, lambda z: 1e6 * F.cross_entropy(z, Y)),
    "small factor": (Z, lambda z: 1e-6 * F.cross_entropy(z, Y) + 3),
    "smoothing": (Z, lambda z: F.cross_entropy(z, Y, label_smoothing=0.1)),
    "class weights": (Z, lambda z: F.cross_entropy(z, Y, weight=WEIGHT.to(z))),
    "weights and smoothing": (Z, lambda z: F.cross_entropy(z, Y, weight=WEIGHT.to(z), label_smoothing=0.2)),
    "soft targets": (Z, lambda z: F.cross_entropy(z, SOFT.to(z))),
    "mixup": (Z, mixed_up),
    "several labels": (Z, lambda z: -(z.log_softmax(1) * (SOFT > 0.1)).sum()),
    "ignore_index": (Z, lambda z: F.cross_entropy(z, IGNORED)),
    "module": (Z, lambda z: nn.CrossEntropyLoss()(z, Y)),
    "log_softmax by hand": (Z, by_hand),
    "log-sum-exp by hand": (Z, by_log_sum_exp),
    "log of softmax by hand": (Z, by_log_of_softmax),
    "nll of log_softmax": (Z, lambda z: F.nll_loss(z.log_softmax(1), Y)),
    "KL from logits": (Z, lambda z: F.kl_div(z.log_softmax(1), SOFT.to(z), reduction="batchmean")),
    "images": (drawn(N, C, 3, 4), lambda z: F.cross_entropy(z, IMAGE)),
    "sequence, transposed": (drawn(N, T, C), lambda z: F.cross_entropy(z.transpose(1, 2), SEQUENCE)),
    "sequence, flattened": (drawn(N, T, C), lambda z: F.cross_entropy(z.reshape(-1, C), SEQUENCE.flatten())),
    "next tokens": (drawn(N, T, C), shifted),
    "heads in one row": (drawn(N, T * C), lambda z: F.cross_entropy(z.view(N * T, C), SEQUENCE.flatten())),
    "classes not read": (drawn(N, C + 3), lambda z: F.cross_entropy(z[:, :C], Y)),
    "classes masked": (Z, lambda z: F.cross_entropy(z.masked_fill(torch.arange(C) == 4, -torch.inf), Y % 4)),
    "unbatched": (drawn(C), lambda z: F.cross_entropy(z, Y[0])),
    "temperature 0.07": (0.1 * Z, lambda z: F.cross_entropy(z / 0.07, Y)),
    "temperature 4": (Z, lambda z: F.cross_entropy(z / 4, Y)),
    "similarities": (drawn(N, N), lambda z: F.cross_entropy(z, torch.arange(N))),
    "binary": (Z, lambda z: F.binary_cross_entropy_with_logits(z, SOFT.to(z))),
    "binary, one output": (drawn(N, 1), lambda z: F.binary_cross_entropy_with_logits(z[:, 0], (Y > 2).to(z))),
    "binary, weights": (Z, lambda z: F.binary_cross_entropy_with_logits(z, SOFT.to(z), pos_weight=WEIGHT.to(z))),
    "binary by hand": (Z, by_sigmoid),
    "binary, scaled": (Z, lambda z: F.binary_cross_entropy_with_logits(3 * z, SOFT.to(z))),
    "logistic": (Z, lambda z: F.soft_margin_loss(z, 2.0 * (SOFT > 0.2).to(z) - 1)),
    "generator, not saturating": (drawn(N, 1), lambda z: F.softplus(-z).mean()),
    "log-probabilities": (Z.log_softmax(1), lambda z: F.nll_loss(z, Y)),
    "log-probabilities, KL": (Z.log_softmax(1), of_log_probabilities),
    "log-probabilities, saturated": ((1e3 * Z).log_softmax(1), lambda z: F.nll_loss(z, Y)),
    "probabilities": (Z.softmax(1), lambda z: -z.gather(1, Y[:, None]).log().mean()),
    "binary probabilities": (Z.sigmoid(), lambda z: F.binary_cross_entropy(z, SOFT.to(z))),
    "zero logits": (0 * Z, lambda z: F.cross_entropy(z, Y)),
    "tiny logits": (1e-8 * Z, lambda z: F.cross_entropy(z, Y)),
    "saturated logits": (1e4 * Z, lambda z: F.cross_entropy(z, Y)),
    "batch of 1": (Z[:1], lambda z: F.cross_entropy(z, Y[:1])),
    "batch of 1, 2 classes": (Z[:1, :2], lambda z: F.cross_entropy(z, Y[:1] % 2)),
    "1000 classes": (drawn(N, 1000), lambda z: F.cross_entropy(z, torch.arange(N))),
    "1000 classes, temperature": (drawn(N, 1000), lambda z: F.cross_entropy(14 * z, torch.arange(N))),
    "50257 classes, smoothing": (drawn(N, 50257), lambda z: F.cross_entropy(z, torch.arange(N), label_smoothing=0.1)),
}
SQUARES = {
    "mean": (Z, lambda z: F.mse_loss(z, NUMBERS.to(z))),
    "sum": (Z, lambda z: F.mse_loss(z, NUMBERS.to(z), reduction="sum")),
    "ours": (Z, lambda z: losses.half_mse(z, Y)),
    "by hand": (Z, lambda z: ((z - NUMBERS.to(z)) ** 2).sum(1).mean() / 2),
    "by norm": (Z, lambda z: torch.linalg.vector_norm(z - NUMBERS.to(z)) ** 2),
    "expanded": (Z, lambda z: (z * z - 2 * z * NUMBERS.to(z)).sum()),
    "weights": (Z, lambda z: (WEIGHT.to(z) * (z - NUMBERS.to(z)) ** 2).mean()),
    "masked": (Z, lambda z: (z - NUMBERS.to(z))[NUMBERS > 0].square().mean()),
    "squeezed": (Z[:, :1], lambda z: F.mse_loss(z.squeeze(1), NUMBERS[:, 0].to(z))),
    "with a penalty on the outputs": (Z, lambda z: F.mse_loss(z, NUMBERS.to(z)) + 0.1 * z.square().mean()),
    "normal, fixed variance": (Z, lambda z: F.gaussian_nll_loss(z, NUMBERS.to(z), torch.full_like(z, 0.3))),
    "least-squares GAN": (drawn(N, 1), lambda z: (z - 1).square().mean()),
    "Brier": (Z.softmax(1), lambda z: F.mse_loss(z, SOFT.to(z))),
    "of sigmoid outputs": (Z.sigmoid(), lambda z: F.mse_loss(z, SOFT.to(z))),
    "one number": (Z[:1, :1], lambda z: F.mse_loss(z, NUMBERS[:1, :1].to(z))),
    "scalar": (Z[0, 0], lambda z: (z - 2.0) ** 2),
    "zero outputs": (0 * Z, lambda z: F.mse_loss(z, NUMBERS.to(z))),
    "large outputs": (1e5 * Z, lambda z: F.mse_loss(z, NUMBERS.to(z))),
    "large targets": (0 * Z, lambda z: F.mse_loss(z, 1e6 * NUMBERS.to(z))),
    "targets of many sizes": (Z, lambda z: F.mse_loss(z, NUMBERS.to(z) * torch.logspace(-3, 6, C).to(z))),
}


def focal(z):
    logs = z.log_softmax(1).gather(1, torch.arange(len(z))[:, None] % z.shape[1])
    return -((1 - logs.exp()) ** 2 * logs).mean()


def confident(z):
    return F.cross_entropy(z, Y) - 0.1 * (z.softmax(1) * z.log_softmax(1)).sum(1).mean()


def contrastive(z):
    unit = F.normalize(z)
    return F.cross_entropy(10 * unit @ unit.T, torch.arange(N))


def symmetric(z):
    return F.cross_entropy(z, torch.arange(N)) + F.cross_entropy(z.T, torch.arange(N))


def log_margin(z):
    return F.cross_entropy(z + WEIGHT.log().to(z), Y)


OTHERS = {
    "focal": (Z, focal),
    "focal, 1000 classes": (drawn(N, 1000), focal),
    "poly-1": (Z, lambda z: F.cross_entropy(z, Y) + (1 - z.softmax(1).gather(1, Y[:, None])).mean()),
    "entropy penalty": (Z, confident),
    "penalty on the logits": (Z, lambda z: F.cross_entropy(z, Y) + 0.01 * z.square().mean()),
    "a target pushed away": (Z, lambda z: 2 * F.cross_entropy(z, Y) - F.cross_entropy(z, (Y + 1) % C)),
    "plus a linear term": (Z, lambda z: F.cross_entropy(z, Y) + 0.1 * z.mean()),
    "reverse KL": (Z, lambda z: F.kl_div(SOFT.log().to(z), z.softmax(1), reduction="batchmean")),
    "squared error of softmax": (Z, lambda z: F.mse_loss(z.softmax(1), SOFT.to(z))),
    "squared error of sigmoid": (Z, lambda z: F.mse_loss(z.sigmoid(), SOFT.to(z))),
    "root of the mean": (Z, lambda z: F.mse_loss(z, NUMBERS.to(z)).sqrt()),
    "Huber": (Z, lambda z: F.huber_loss(z, NUMBERS.to(z))),
    "Huber, zero outputs": (0 * Z, lambda z: F.huber_loss(z, SOFT.to(z))),
    "absolute": (Z, lambda z: F.l1_loss(z, NUMBERS.to(z))),
    "absolute, large targets": (Z, lambda z: F.l1_loss(z, 1e5 * NUMBERS.to(z))),
    "log-cosh": (Z, lambda z: (z - NUMBERS.to(z)).cosh().log().mean()),
    "Poisson": (Z, lambda z: F.poisson_nll_loss(z, NUMBERS.abs().to(z))),
    "hinge": (Z, lambda z: F.multi_margin_loss(z, Y)),
    "hinge GAN": (drawn(N, 1), lambda z: F.relu(1 - z).mean()),
    "Wasserstein GAN": (drawn(N, 1), lambda z: -z.mean()),
    "Wasserstein GAN, zero outputs": (torch.zeros(N, 1), lambda z: -z.mean()),
    "nll of logits": (Z, lambda z: F.nll_loss(z, Y)),
    "triplet": (Z, lambda z: F.triplet_margin_loss(z[:2], z[2:4], z[4:6])),
    "cosine": (Z, lambda z: 1 - F.cosine_similarity(z, NUMBERS.to(z)).mean()),
    "contrastive": (Z, contrastive),
    "rows and columns": (drawn(N, N), symmetric),
    "normal, learned variance": (Z, lambda z: F.gaussian_nll_loss(z[:, :1], Z[:, :1].to(z), z[:, 1:2].exp())),
    "standard deviation": (Z, lambda z: z.std()),
    "negative cross-entropy": (Z, lambda z: -F.cross_entropy(z, Y)),
    "negative squared error": (Z, lambda z: -F.mse_loss(z, NUMBERS.to(z))),
    "class prior": (Z, log_margin),
    "clamped, far out": (1e3 * Z, lambda z: F.cross_entropy(z.clamp(-10, 10), Y)),
    "random": (Z, lambda z: F.cross_entropy(F.dropout(z), Y)),
    "one class": (Z[:, :1], lambda z: F.cross_entropy(z, 0 * Y)),
    "constant": (Z, lambda z: torch.tensor(1.0)),
    "raises": (Z, lambda z: F.cross_entropy(z, Y[:-1])),
    "nan": (Z, lambda z: math.nan * F.cross_entropy(z, Y)),
    "no scalar": (Z, lambda z: F.cross_entropy(z, Y, reduction="none")),
    "no tensor": (Z, lambda z: 1.0),
}


@DTYPES
@pytest.mark.parametrize("way", ENTROPIES)
def test_cross_entropy(way, dtype):
    outputs, loss = ENTROPIES[way]
    assert loss_kind(loss, outputs.to(dtype)) == CROSS_ENTROPY


@DTYPES
@pytest.mark.parametrize("way", SQUARES)
def test_squared_error(way, dtype):
    outputs, loss = SQUARES[way]
    assert loss_kind(loss, outputs.to(dtype)) == SQUARED


@DTYPES
@pytest.mark.parametrize("way", OTHERS)
def test_others(way, dtype):
    outputs, loss = OTHERS[way]
    found = find_kind(loss, outputs.to(dtype))
    assert found.name == OTHER
    assert found.why


@pytest.mark.parametrize("way", ["logits", "1000 classes", "binary", "sequence, flattened"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_outputs_in_half_precision(way, dtype):
    outputs, loss = ENTROPIES[way]
    assert loss_kind(loss, outputs.to(dtype)) == CROSS_ENTROPY
    with torch.autocast("cpu", torch.bfloat16):
        assert loss_kind(loss, outputs.to(torch.bfloat16)) == CROSS_ENTROPY
        assert loss_kind(focal, Z.to(torch.bfloat16)) == OTHER
    assert loss_kind(lambda z: F.mse_loss(z, NUMBERS.to(z)), Z.to(dtype)) == SQUARED


def test_reasons():
    assert find_kind(*reversed(OTHERS["one class"])) == FLAT
    assert "raised ValueError: Expected input batch_size" in find_kind(*reversed(OTHERS["raises"])).why
    assert "not return one number" in find_kind(*reversed(OTHERS["no scalar"])).why
    assert "linear in outputs" in find_kind(*reversed(OTHERS["nll of logits"])).why
    assert "not at this batch's" in find_kind(*reversed(OTHERS["clamped, far out"])).why
    assert "a tuple, not one tensor" in find_kind(lambda z: z, (Z, Z)).why
    assert "are not finite" in find_kind(by_hand, Z * math.inf).why
    assert "are empty" in find_kind(by_hand, Z[:0]).why


def test_convexity():
    for way in ("negative cross-entropy", "squared error of sigmoid", "cosine"):
        assert not find_kind(*reversed(OTHERS[way])).convex, way
    for way in ("Huber", "log-cosh", "Poisson", "penalty on the logits"):
        assert find_kind(*reversed(OTHERS[way])).convex, way


def test_it_leaves_no_trace():
    class Counting(nn.Module):
        def forward(self, z):
            torch.rand(1), random.random()
            return F.cross_entropy(F.dropout(z, 0.5), Y)

    weight = nn.Parameter(WEIGHT.clone())
    outputs = Z.clone().requires_grad_()
    for loss in (Counting(), lambda z: F.cross_entropy(z * weight, Y), lambda z: F.cross_entropy(z.add_(1), Y)):
        generators = Generators()
        generators.save()
        loss_kind(loss, outputs)
        assert not generators.moved()
        assert weight.grad is None
        assert outputs.grad is None
        assert torch.equal(outputs, Z)
    with torch.no_grad():
        assert loss_kind(by_hand, outputs) == CROSS_ENTROPY
        assert not torch.is_grad_enabled()


def test_it_takes_five_gradients_by_the_outputs_and_always_the_same():
    points = []

    def loss(z):
        points.append(z.detach().clone())
        return by_hand(z)

    assert loss_kind(loss, Z) == CROSS_ENTROPY
    first, points = points, []
    loss_kind(loss, Z)
    assert len(first) == 5
    assert all(torch.equal(a, b) for a, b in zip(first, points, strict=True))


def test_losses_of_probabilities_are_never_asked_beyond_them():
    def loss(z):
        assert ((z >= 0) & (z <= 1)).all()
        return F.binary_cross_entropy(z, SOFT) + 0.3 * z.sqrt().sum()

    assert find_kind(loss, Z.sigmoid()).why.startswith(
        "its gradient with respect to the outputs changes in another way"
    )


def test_a_name_decides_only_where_it_cannot_be_wrong():
    class Own(nn.CrossEntropyLoss):
        def forward(self, z, y):
            return (z - y).square().sum()

    assert kind_by_name(nn.CrossEntropyLoss(label_smoothing=0.1)) == CROSS_ENTROPY
    for loss in (Own(), F.nll_loss, nn.BCELoss(), lambda z, y: F.cross_entropy(z, y), None):
        assert kind_by_name(loss) == ""
    assert kind_of(Own(), Z, NUMBERS).name == SQUARED


def test_outputs_in_containers():
    def loss(outputs, y):
        return F.cross_entropy(outputs["logits"], y)

    hidden = drawn(N, 7)
    assert kind_of(loss, {"logits": Z, "hidden": hidden, "mask": Y}, Y).name == CROSS_ENTROPY
    assert kind_of(lambda o, y: losses.half_mse(o[1], y), (hidden, Z), Y).name == SQUARED
    two = kind_of(lambda o, y: losses.half_mse(o[1], y) + o[0].square().sum(), (hidden, Z), Y)
    assert two.name == OTHER
    assert two.why == "it reads 2 tensors of the outputs"
