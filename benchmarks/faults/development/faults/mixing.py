"""Batches that differ from one another, and samples that see each other through the batch."""

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from faults.case import Case
from faults.data import Drawn, Split, accuracy, chunks, digits, shuffled
from faults.development.networks import cnn, mlp
from faults.development.setups import adamw, classify, digit_setup, sgd
from normscope import Setup


def sorted_classes(seed: int, fault: bool) -> Setup:
    """Files come folder by folder: each batch has the images of two classes."""
    torch.manual_seed(seed)
    split, steps = digits(), 200
    setup = digit_setup(cnn(), sgd(0.02), size=32, steps=steps, seed=seed)
    order = split.y.argsort(stable=True)

    def draw(generator: torch.Generator) -> Sequence[Tensor]:
        parts = [part for part in order.split(32) if len(part) == 32]
        return [parts[int(number)] for number in torch.randperm(len(parts), generator=generator)]

    return replace(setup, batches=Drawn((split.x, split.y), steps, seed, draw)) if fault else setup


def two_cameras(seed: int, fault: bool) -> Setup:
    """Every other batch is from a camera with less light; the evaluation has images of both."""
    torch.manual_seed(seed)
    split, steps = digits(), 200

    def seen(x: Tensor) -> Tensor:
        dark = (torch.arange(len(x)) % 2 == 1)[:, None, None, None]
        return torch.where(dark, 0.2 * x - 3, x + 1)

    both = Split(seen(split.x), split.y, seen(split.x_eval), split.y_eval)
    setup = classify(cnn(), both, sgd(0.05), size=32, steps=steps, seed=seed)

    def draw(generator: torch.Generator) -> Sequence[Tensor]:
        order = 2 * torch.randperm(len(both.x) // 2, generator=generator)[:640].view(20, 32)
        return [rows + camera for rows in order for camera in (0, 1)]

    return replace(setup, batches=Drawn((both.x, both.y), steps, seed, draw)) if fault else setup


class Gan(nn.Module):
    """A generator of 8 x 8 images and its discriminator; called, it discriminates."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64))
        self.discriminator = mlp((64, 64, 64, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.discriminator(x.flatten(1)).squeeze(1)


def gan(seed: int, fault: bool) -> Setup:
    """The discriminator sees real and generated images in batches of their own."""
    torch.manual_seed(seed)
    split, model = digits(), Gan()
    noise = torch.Generator().manual_seed(seed)

    def step(model: nn.Module, batch: tuple[Tensor, ...], optimizer: torch.optim.Optimizer) -> Tensor:
        assert isinstance(model, Gan)
        real = batch[0]
        fake = model.generator(torch.randn(len(real), 16, generator=noise)).detach().view_as(real)
        labels = torch.cat([torch.ones(len(real)), torch.zeros(len(real))])
        scores = torch.cat([model(real), model(fake)]) if fault else model(torch.cat([real, fake]))
        loss = F.binary_cross_entropy_with_logits(scores, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    with torch.no_grad():
        made = model.generator(torch.randn(len(split.x_eval), 16, generator=torch.Generator().manual_seed(5)))
    x_eval = torch.cat([split.x_eval, made.view_as(split.x_eval)])
    y_eval = torch.cat([torch.ones(len(made)), torch.zeros(len(made))])
    return Setup(
        model,
        nn.BCEWithLogitsLoss(),
        shuffled(split.x, torch.ones(len(split.x)), size=32, steps=150, seed=seed),
        torch.optim.Adam(model.discriminator.parameters(), 2e-3),
        eval_batches=chunks(x_eval, y_eval),
        metric=lambda scores, y: float(((scores > 0) == (y > 0.5)).float().mean()),
        training_step=step,
        steps=150,
    )


class TwoViews(nn.Module):
    """An encoder of two views of each image; while it trains, shares of the batch are normalized by themselves."""

    def __init__(self, shares: int) -> None:
        super().__init__()
        self.encoder, self.shares = mlp((64, 128, 128, 32)), shares

    def _encoded(self, x: Tensor) -> Tensor:
        shares = x.chunk(self.shares if self.training else 1)
        return F.normalize(torch.cat([self.encoder(share) for share in shares]), dim=1)

    def forward(self, views: Tensor) -> Tensor:
        queries, keys = views.unbind(1)
        return self._encoded(queries) @ self._encoded(keys).T / 0.1


def contrastive(seed: int, fault: bool) -> Setup:
    """A query and its key are normalized in the same share of two images."""
    torch.manual_seed(seed)
    split, steps = digits(), 300
    generator = torch.Generator().manual_seed(11)

    def views(x: Tensor) -> Tensor:
        return x[:, None] + 0.5 * torch.randn(len(x), 2, *x.shape[1:], generator=generator)

    pairs, eval_pairs = views(split.x), views(split.x_eval)
    model, right = TwoViews(32 if fault else 1), torch.arange(64)
    return Setup(
        model,
        nn.CrossEntropyLoss(),
        shuffled(pairs, size=64, steps=steps, seed=seed, make=lambda rows: (rows, right)),
        torch.optim.Adam(model.parameters(), 1e-3),
        eval_batches=[(part, right) for part in eval_pairs.split(64) if len(part) == 64],
        metric=accuracy,
        steps=steps,
    )


def replies(seed: int, fault: bool) -> Setup:
    """A reward model: good and bad replies to one question make a batch, and each is judged against the others.

    A reply is the question, a pattern that is added if it is good and taken away if it is bad, and noise.
    """
    torch.manual_seed(seed)
    split, steps = digits(), 300
    generator = torch.Generator().manual_seed(13)
    pattern = 0.3 * torch.randn(64, generator=generator)

    def of(questions: Tensor, copies: int) -> tuple[Tensor, Tensor]:
        y = torch.arange(len(questions) * copies) % 2
        noise = 0.5 * torch.randn(len(y), 64, generator=generator)
        return questions.flatten(1).repeat_interleave(copies, 0) + (2 * y[:, None] - 1) * pattern + noise, y

    (x, y), (x_eval, y_eval) = of(4 * split.x, 16), of(4 * split.x_eval, 2)
    replied = Split(x, y, x_eval, y_eval)
    setup = classify(mlp((64, 64, 64, 2)), replied, adamw(2e-3), size=16, steps=steps, seed=seed)

    def draw(generator: torch.Generator) -> Sequence[Tensor]:
        parts = torch.arange(len(x)).split(16)
        return [parts[int(number)] for number in torch.randperm(len(parts), generator=generator)]

    return replace(setup, batches=Drawn((x, y), steps, seed, draw)) if fault else setup


CASES = (
    Case("two-classes-a-batch", "development", sorted_classes, "batches-differ", fix="shuffled batches"),
    Case(
        "two-cameras-in-turn",
        "development",
        two_cameras,
        "batches-differ",
        also=("stale-running-statistics",),
        fix="images of both cameras in each batch",
    ),
    Case(
        "generated-images-apart",
        "development",
        gan,
        "batches-differ",
        also=("stale-running-statistics", "samples-see-each-other"),
        fix="real and generated images in one batch",
    ),
    Case(
        "contrastive-in-shares-of-two",
        "development",
        contrastive,
        "samples-see-each-other",
        "https://github.com/facebookresearch/moco/issues/20",
        also=("unsynchronized-statistics", "small-batch-noise"),
        fix="statistics of the whole batch",
    ),
    Case(
        "one-question-a-batch",
        "development",
        replies,
        "samples-see-each-other",
        also=("batches-differ",),
        fix="shuffled batches",
    ),
)
