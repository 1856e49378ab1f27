"""A replayed gradient against an eager one, on a CPU: its graph is one that writes where it was recorded to write."""

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_unflatten

from normscope.replaying import ReplayedGradient

CPU = torch.device("cpu")


class WritesInPlaces:
    """A CUDA graph knows the tensors that were `.grad` at its recording, and not what is `.grad` now."""

    def replay(self) -> None:
        replayed = self.of
        before = [p.grad for p in replayed._parameters]
        loss = replayed._gradient(tree_unflatten(replayed._tensors, replayed._form))
        for parameter, place, now in zip(replayed._parameters, replayed._grads, before, strict=True):
            if place is not None:
                place.copy_(parameter.grad)
            parameter.grad = now
        replayed._loss.copy_(loss)


@contextmanager
def recording(graph, stream):
    yield


@pytest.fixture
def on_a_cpu(monkeypatch):
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", WritesInPlaces)
    monkeypatch.setattr(torch.cuda, "graph", recording)


def batch(n, i, dtype=torch.float64):
    return (torch.randn(n, 3, generator=torch.Generator().manual_seed(i), dtype=torch.float64).to(dtype), torch.ones(n))


def trained(stream, *, replay, between=lambda optimizer: None):
    """By SGD with momentum; the loss has a parameter of its own, and a layer that only batches of four go through."""
    torch.manual_seed(0)
    model, extra = nn.Linear(3, 1).double(), nn.Linear(3, 1).double()
    size = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    optimizer = torch.optim.SGD(
        [*model.parameters(), *extra.parameters(), size], lr=0.1, momentum=0.9, weight_decay=0.1
    )

    def gradient(batch):
        optimizer.zero_grad()
        x, y = batch[:2]
        x = x.double()
        outputs = model(x) + extra(x) if len(x) == 4 else model(x)
        loss = (size * outputs[:, 0] - y).square().mean() * (batch[2] if len(batch) > 2 else 1)
        loss.backward()
        return loss.detach()

    parameters = [*model.parameters(), *extra.parameters(), size]
    call = ReplayedGradient(gradient, parameters, CPU) if replay else gradient
    WritesInPlaces.of = call
    losses = []
    for each in stream:
        losses.append(float(call(each)))
        optimizer.step()
        between(optimizer)
    return losses, [p.detach().clone() for p in parameters]


STREAMS = {
    "alike": [batch(8, i) for i in range(8)],
    "another size": [batch(4 if i == 5 else 8, i) for i in range(9)],
    "another dtype": [batch(8, i, torch.float32 if i == 3 else torch.float64) for i in range(7)],
    "more than tensors": [(*batch(8, i), 1.0 + i % 2) for i in range(7)],
    "with a gradient": [(batch(8, i)[0].requires_grad_(), batch(8, i)[1]) for i in range(6)],
}


@pytest.mark.parametrize("cleared", [False, True])
@pytest.mark.parametrize("name", STREAMS)
def test_it_trains_as_an_eager_one(on_a_cpu, name, cleared):
    """Also where someone clears the gradients between two steps."""
    between = (lambda optimizer: optimizer.zero_grad()) if cleared else (lambda optimizer: None)
    eager, expected = trained(STREAMS[name], replay=False)
    again, found = trained(STREAMS[name], replay=True, between=between)
    assert again == eager
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours, theirs)


def test_what_cannot_be_recorded_says_so(on_a_cpu, monkeypatch):
    @contextmanager
    def refusing(graph, stream):
        yield
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph", refusing)
    with pytest.raises(RuntimeError, match=r"replay=False. Torch says: operation not permitted"):
        trained(STREAMS["alike"], replay=True)
