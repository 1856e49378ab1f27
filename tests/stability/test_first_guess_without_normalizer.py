"""The first guess without a normalizer and with cross-entropy: its rule, and what the stored trainings say of it."""

import json
import math
from pathlib import Path
from statistics import mean, median

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from normscope import data, losses, measure, models
from normscope.loss_kinds import CROSS_ENTROPY
from normscope.stability.first_guess_evidence import COST_WITHOUT, WITHOUT_NORMALIZER
from normscope.stability.first_guess_rates import rate_from_measurement
from normscope.stability.optimizer_rules import ADAM, MOMENTUM, PLAIN

STORED = Path(__file__).parents[2] / "benchmarks" / "results" / "without-batchnorm-cpu.json"
KINDS = {"sgd": PLAIN, "momentum": MOMENTUM, "adamw": ADAM}


@pytest.fixture(scope="module")
def rows():
    """The rows of networks without a normalizer and without attention."""
    stored = json.loads(STORED.read_text())["rows"]
    return [row for row in stored if "layernorm" not in row["network"] and "transformer" not in row["network"]]


def test_the_rates_that_were_trained_are_those_of_the_rule(rows):
    for row in rows:
        rate = rate_from_measurement(
            row["critical_rates"][0], row["eta_star"], CROSS_ENTROPY, KINDS[row["optimizer"]], normalized=False
        )
        assert row["named"]["lr"] == pytest.approx(rate, rel=0.01)


def test_no_named_rate_diverges_and_the_quoted_cost_is_the_stored_one(rows):
    assert all(row["named"]["loss"] < 2.0 for row in rows)
    for optimizer, kind in KINDS.items():
        costs = {}
        for row in rows:
            if row["optimizer"] == optimizer:
                best = max(trained["accuracy"] for trained in row["trained"])
                costs.setdefault(row["network"], []).append(100 * (best - row["named"]["accuracy"]))
        means = [mean(each) for each in costs.values()]
        assert COST_WITHOUT[kind] == (
            len(means),
            pytest.approx(median(means), abs=0.051),
            pytest.approx(max(means), abs=0.051),
        )


def test_the_share_for_networks_with_a_normalizer_would_have_diverged(rows):
    """A tenth of the critical rate: at the next rate of the grid above it, many of these networks do not train."""

    def loss_near(row):
        rate = 0.1 * row["critical_rates"][0]
        return next((t["loss"] for t in row["trained"] if t["lr"] >= rate), float("inf"))

    momentum = [row for row in rows if row["optimizer"] == "momentum"]
    assert sum(not loss_near(row) < 2.0 for row in momentum) > len(momentum) / 3


def test_with_attention_no_rate_is_named_because_one_diverged():
    stored = json.loads(STORED.read_text())["rows"]
    assert any("transformer" in row["network"] and not row["named"]["loss"] < 2.0 for row in stored)
    block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
    x, y = torch.randn(128, 4, 8), torch.randint(2, (128,))

    class Attending(nn.Module):
        def __init__(self):
            super().__init__()
            self.block, self.last = block, nn.Linear(8, 2)

        def forward(self, x):
            return self.last(self.block(x).mean(1))

    assert measure(Attending(), nn.CrossEntropyLoss(), (x, y)).first_guess > 0
    block.norm1 = block.norm2 = nn.Identity()
    found = measure(Attending(), nn.CrossEntropyLoss(), (x, y))
    assert math.isnan(found.first_guess)
    assert found.critical_rate > 0
    assert any("the model has attention and no normalizer" in note for note in found.notes)


def test_measure_names_the_smaller_share_and_says_so():
    digits = data.digits(seed=0)
    x, y = digits.x_train[:128].flatten(1), digits.y_train[:128]
    for momentum, kind in ((0.0, PLAIN), (0.9, MOMENTUM)):
        model = models.MLP(64, 10, width=32, depth=3, norm="none", seed=0)
        found = measure(model, losses.cross_entropy, (x, y), momentum=momentum)
        assert found.first_guess == pytest.approx(WITHOUT_NORMALIZER[kind] * found.critical_rate)
        assert f"{WITHOUT_NORMALIZER[kind]:g} times the critical rate" in found.advice
        assert f"tasks without a normalizer (cross-entropy, {kind})" in found.advice


def test_an_mlp_on_pixels_trains_at_the_named_rate_and_not_at_a_tenth_of_the_critical_rate():
    """The reader's case: eta* is large at the start, and training with momentum ends far below it."""
    pixels, labels = (torch.as_tensor(part[:1024]) for part in load_digits(return_X_y=True))
    x, y = pixels.float() / 16, labels

    def last_loss(share):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        found = measure(model, nn.CrossEntropyLoss(), (x[:128], y[:128]), optimizer=optimizer)
        optimizer.param_groups[0]["lr"] = share * found.first_guess
        for step in range(150):
            rows = slice(128 * (step % 8), 128 * (step % 8) + 128)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
        return float(loss.detach())

    assert last_loss(1.0) < 1.0
    assert not last_loss(0.1 / WITHOUT_NORMALIZER[MOMENTUM]) < 2.0
