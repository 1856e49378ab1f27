"""max_memory: what would take more is refused before any copy is made, with the bytes that are needed."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import normscope as ns
from normscope.isolation import tensor_copies
from normscope.isolation.lending import untouched
from normscope.isolation.refusals import TooMuchMemory

X = torch.randn(16, 100, generator=torch.Generator().manual_seed(0))
Y = torch.randint(10, (16,), generator=torch.Generator().manual_seed(1))
# 100 x 50 + 3 x 50 + 50 x 10 + 10 parameters, two buffers of 50 in float32 and one int64.
MODEL = 4 * (5_000 + 150 + 510 + 100) + 8
BATCH = 4 * 1_600 + 8 * 16


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(100, 50), nn.BatchNorm1d(50), nn.ReLU(), nn.Linear(50, 10))


def test_the_size_is_that_of_the_copies():
    model = network()
    model[0].tied, model[0].table = model[3].weight, torch.ones(7).numpy()
    model[0].frozen = nn.Parameter(torch.ones(9), requires_grad=False)
    own = {id(t) for t in (*model.parameters(), *model.buffers())}
    with untouched(model) as lent:
        copies = [t for t in (*model.parameters(), *model.buffers()) if id(t) not in own]
        assert lent.size == sum(t.nbytes for t in {id(t): t for t in copies}.values()) + 4 * 7 == MODEL + 4 * (7 + 9)
    with untouched(model, dtype=torch.float64) as lent:
        assert lent.size == 2 * (MODEL - 8) + 8 + 4 * 7 + 8 * 9


@pytest.fixture
def no_copies(monkeypatch):
    """Making a copy is an error."""

    def made(*_):
        raise AssertionError("a copy was made")

    monkeypatch.setattr(tensor_copies.TensorCopies, "of", made)


@pytest.mark.parametrize(
    ("verb", "needed"),
    [
        (lambda model, most: ns.measure(model, F.cross_entropy, (X, Y), max_memory=most), MODEL + BATCH),
        (lambda model, most: ns.bounds.check_network(model, F.cross_entropy, (X, Y), max_memory=most),
         2 * (MODEL - 8) + 8 + 2 * (BATCH - 128) + 128),
    ],
)  # fmt: skip
def test_it_is_refused_before_anything_moves_and_the_named_bytes_are_enough(verb, needed, no_copies, monkeypatch):
    model = network()
    with pytest.raises(TooMuchMemory, match=r"The copies need .* for parameters and buffers") as refused:
        verb(model, needed - 1)
    assert re.search(rf"Hand in max_memory={needed} or more", str(refused.value))
    monkeypatch.undo()
    assert verb(model, needed)


def test_the_monitor_goes_on_without_the_snapshot(no_copies, monkeypatch):
    model = network()
    monitor = ns.Monitor(model, F.cross_entropy, every=1, budget=None, max_memory=MODEL + BATCH - 1)
    sgd = torch.optim.SGD(model.parameters(), 0.1)
    F.cross_entropy(model(X), Y).backward()
    with pytest.warns(UserWarning, match=f"nothing was measured at step 0, .*max_memory={MODEL + BATCH} or more"):
        monitor.step(X, Y, sgd)
    monkeypatch.undo()
    enough = ns.Monitor(model, F.cross_entropy, on_error="raise", max_memory=MODEL + BATCH)
    assert enough.step(X, Y, sgd).results


def test_the_check_in_float64_is_left_out_where_its_copies_would_be_too_large():
    said = [
        [note for note in ns.measure(network(), F.cross_entropy, (X, Y), max_memory=most).notes if "float64" in note]
        for most in (2 * (MODEL + BATCH), 10 * (MODEL + BATCH), None)
    ]
    assert said[0][0].startswith("Not checked in float64. The copies need")
    assert said[1:] == [[], []]


@pytest.mark.parametrize("most", [0, -1, "2 GiB", True, float("nan")])
def test_what_is_no_bound_is_refused(most):
    with pytest.raises(ValueError, match="max_memory is a number of bytes above 0, such as"):
        ns.measure(network(), F.cross_entropy, (X, Y), max_memory=most)
    with pytest.raises(ValueError, match="max_memory is a number of bytes above 0, such as"):
        ns.Monitor(network(), F.cross_entropy, max_memory=most)
