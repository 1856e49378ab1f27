"""The page of a result says of eta* what the verdict says, for each kind of loss, without importing torch."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.loss_kinds.meaning import MEANINGS, SURVIVES, Meaning
from normscope.report.sections.predictions_and_measurements import measurement_section

X, LABELS = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
OPENINGS = {
    "squared": "Use a learning rate below eta*",
    "cross_entropy": "Look for a learning rate around eta*",
    "other": "The local quadratic turns unstable at eta*",
}


@pytest.mark.parametrize("loss_kind", OPENINGS)
def test_the_page_says_of_a_rate_beyond_eta_star_what_the_verdict_says(loss_kind):
    losses = {
        "squared": lambda z, y: ns.losses.half_mse(z, nn.functional.one_hot(y, 3).float()),
        "cross_entropy": nn.CrossEntropyLoss(),
        "other": lambda z, y: nn.functional.cross_entropy(z, y) + z.square().square().mean(),
    }
    model = ns.models.MLP(6, 3, width=8, depth=3, norm="batch", seed=0)
    found = ns.measure(model, losses[loss_kind], (X, LABELS))
    assert found.loss_kind == loss_kind
    page, verdict = measurement_section("", found.plain()).verdicts[0].text, found.verdict(2 * found.eta_star)
    assert page.startswith(OPENINGS[loss_kind])
    may_survive = {"squared": None, "cross_entropy": "those without may fail below it", "other": "depend"}[loss_kind]
    for text in (page, verdict.text):
        assert may_survive is None or may_survive in text
        assert ("cross-entropy" in text.lower()) == (loss_kind == "cross_entropy")


def test_a_new_kind_that_survives_is_called_by_its_name(monkeypatch):
    monkeypatch.setitem(MEANINGS, "huber", Meaning("the Huber loss", SURVIVES))
    model = ns.models.MLP(6, 3, width=8, depth=3, norm="batch", seed=0)
    stored = ns.measure(model, nn.CrossEntropyLoss(), (X, LABELS)).plain() | {"loss_kind": "huber"}
    text = measurement_section("", stored).verdicts[0].text
    assert text.endswith(
        " With the Huber loss, networks with BatchNorm survive far above eta*, "
        "but may learn badly from eta* on; those without may fail below it."
    )


def test_the_section_of_a_measurement_loads_no_torch():
    code = "import sys; import normscope.report.sections.predictions_and_measurements; print('torch' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert ran.stdout.strip() == "False"
