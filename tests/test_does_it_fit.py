"""docs/does-it-fit.md: each cell of its tables is what the verb does with such a training."""

import math
import re

import pytest
import torch
from torch import nn

import normscope as ns
from docs_pages import ROOT

pytestmark = pytest.mark.slow
X, Y = torch.linspace(-3, 3, 32 * 64).sin().view(32, 1, 8, 8), torch.arange(32) % 10
SQUARED = nn.functional.one_hot(Y, 10).float()


def cnn(norm=nn.BatchNorm2d):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), norm(16), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


class Handmade(nn.Module):
    """RMSNorm over channels, written by hand."""

    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(channels))

    def forward(self, x):
        return x / (x.square().mean(1, keepdim=True) + 1e-5).sqrt() * self.scale[:, None, None]


class LoRA(nn.Module):
    def __init__(self, linear, rank=4):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) / linear.in_features**0.5)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))

    def forward(self, x):
        return self.linear(x) + x @ self.a.T @ self.b.T


class Rows(nn.Module):
    """Reads the rows of an image as a sequence."""

    def __init__(self, encoder, width):
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, 10)

    def forward(self, x):
        encoded = self.encoder(x.flatten(1).unflatten(1, (8, 8)))
        return self.head((encoded[0] if isinstance(encoded, tuple) else encoded)[:, -1])


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = cnn()

    def forward(self, a, b):
        return self.net(a + b)


class OwnLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = cnn()

    def forward(self, x, y):
        logits = self.net(x)
        return logits, nn.functional.cross_entropy(logits, y)


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(group["lr"] * p.grad.sign())


def frozen():
    model = cnn()
    model[:3].requires_grad_(False)
    return model


def lora():
    model = cnn().requires_grad_(False)
    model[6] = LoRA(model[6])
    return model


def eval_mode():
    model = cnn()
    model[1].eval()
    return model


def spectral():
    model = cnn()
    model[6] = nn.utils.parametrizations.spectral_norm(model[6])
    return model


def transformer():
    torch.manual_seed(0)
    return Rows(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 8)


def a_training(model=cnn, loss_fn=None, batch=(X, Y), optimizer=torch.optim.SGD, lr=0.01, own=False):
    def setup():
        made = model()
        loss = None if own else loss_fn or nn.CrossEntropyLoss()
        trained = [p for p in made.parameters() if p.requires_grad]
        return ns.Setup(made, loss, [batch], optimizer(trained, lr=lr))

    return setup


TRAININGS = {
    "BatchNorm in an MLP, a CNN or a residual network": a_training(),
    "LayerNorm, GroupNorm, RMSNorm in the same networks": a_training(lambda: cnn(lambda c: nn.GroupNorm(1, c))),
    "InstanceNorm": a_training(lambda: cnn(lambda c: nn.InstanceNorm2d(c, affine=True))),
    "no normalizer": a_training(lambda: cnn(lambda c: nn.Identity())),
    "a normalizer written by hand": a_training(lambda: cnn(Handmade)),
    "a transformer, attention": a_training(transformer),
    "LSTM, GRU": a_training(lambda: Rows(nn.LSTM(8, 16, batch_first=True), 16)),
    "some layers frozen": a_training(frozen),
    "LoRA": a_training(lora),
    "BatchNorm in eval mode while training": a_training(eval_mode),
    "weight_norm, spectral_norm": a_training(spectral),
    "several inputs": a_training(TwoInputs, batch=(X, X.flip(0), Y)),
    "under `torch.compile`": a_training(lambda: torch.compile(cnn(), backend="eager")),
    "DataParallel": a_training(lambda: nn.DataParallel(cnn())),
    "TorchScript": a_training(lambda: torch.jit.script(cnn())),
    "cross-entropy, also with label smoothing": a_training(loss_fn=nn.CrossEntropyLoss(label_smoothing=0.1)),
    "squared error": a_training(loss_fn=nn.MSELoss(), batch=(X, SQUARED)),
    "cross-entropy with class weights, binary cross-entropy": a_training(
        loss_fn=nn.BCEWithLogitsLoss(), batch=(X, SQUARED)
    ),
    "Huber loss": a_training(loss_fn=nn.HuberLoss(), batch=(X, SQUARED)),
    "L1 loss": a_training(loss_fn=nn.L1Loss(), batch=(X, SQUARED)),
    "the model returns its own loss": a_training(OwnLoss, own=True),
    "SGD, with or without momentum": a_training(),
    "Adam, AdamW": a_training(optimizer=torch.optim.AdamW),
    "NAdam, RMSprop, Adagrad": a_training(optimizer=torch.optim.RMSprop),
    "RAdam, Adamax, Adadelta": a_training(optimizer=torch.optim.Adamax),
    "an optimizer of your own (Lion, Muon)": a_training(optimizer=Lion),
    "LBFGS": a_training(optimizer=torch.optim.LBFGS),
}


def watched(setup):
    with ns.Monitor(setup, every=1, budget=None, on_error="raise") as monitor:
        ns.train(setup.model, setup.loss_fn, setup.batches, setup.optimizer, monitor=monitor)
    assert len(monitor.records) == 1
    return monitor


VERBS = {
    "predict": lambda setup: ns.predict(setup, (1, 8, 8)),
    "measure": ns.measure,
    "Monitor": watched,
    "tune": lambda setup: ns.tune(setup, steps=100),
    "swap_norms": lambda setup: ns.swap_norms(setup.model, "none"),
}


def claims():
    """Training, verb, cell of the page."""
    text = (ROOT / "docs/does-it-fit.md").read_text(encoding="utf-8")
    for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines())
        for name, *cells in rows:
            yield from ((name, verb, cell) for verb, cell in zip(head[1:], cells, strict=True) if verb in VERBS)


def test_the_page_and_the_trainings_are_the_same():
    assert {name for name, _, _ in claims()} == set(TRAININGS)


@pytest.mark.parametrize(("name", "verb", "cell"), claims())
@pytest.mark.filterwarnings("ignore")
def test_a_cell_says_what_the_verb_does(name, verb, cell):
    setup = TRAININGS[name]()
    if cell == "refused":
        with pytest.raises((ValueError, TypeError, RuntimeError)):
            VERBS[verb](setup)
    elif cell.startswith("works"):
        answer = VERBS[verb](setup)
        if verb == "measure":
            assert math.isnan(answer.first_guess) == ("without a first guess" in cell)
        if verb == "predict":
            assert any("gradient descent" in note for note in answer.notes) == ("but for SGD" in cell)
    else:
        assert cell == "-"
