"""Training accuracy by stretches of steps, and of the one in which a run diverged."""

import pytest
import torch

from normscope.losses import cross_entropy
from normscope.papers.experiments.vgg import Hits


def test_shares_of_whole_and_broken_stretches():
    hits = Hits("cpu")
    outputs = torch.eye(4)
    for target in ([0, 1, 2, 3], [0, 1, 0, 0]):
        loss = hits.loss(outputs, torch.tensor(target))
        assert loss == cross_entropy(outputs, torch.tensor(target))
    hits.close()
    hits.loss(outputs, torch.tensor([1, 1, 2, 0]))
    assert hits.shares() == pytest.approx([6 / 8, 2 / 4])


def test_no_share_of_a_stretch_without_a_batch():
    hits = Hits("cpu")
    hits.loss(torch.eye(2), torch.tensor([1, 0]))
    hits.close()
    assert hits.shares() == [0.0]
