"""Axes of size one, dropped and put back, change no value; others are refused by name."""

import pytest
import torch
from networks import Forward
from torch import Tensor, nn
from torch.nn import functional as F

import normscope as ns


def lam(model: nn.Module, shape: tuple[int, ...], **options: object) -> float:
    return ns.predict(model, shape, batch_size=32, **options).lambda_max


ENDS = {
    "squeeze": lambda h: h.squeeze(-1),
    "squeeze all": lambda h: torch.squeeze(h),
    "squeeze two": lambda h: h[:, :, None].squeeze((1, 2)),
    "view": lambda h: h.view(-1),
    "view by size": lambda h: h.view(h.size(0)),
    "reshape": lambda h: h.reshape(h.shape[0]),
    "flatten": lambda h: h.flatten(),
    "flatten two": lambda h: h.flatten(0, 1),
    "index": lambda h: h[:, 0],
    "index from behind": lambda h: h[..., -1],
    "select": lambda h: h.select(1, 0),
    "and back": lambda h: h.squeeze(1).unsqueeze(-1),
    "and back by index": lambda h: h[:, 0][:, None],
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("options", [{}, {"batch": torch.randn(32, 20, generator=torch.Generator().manual_seed(0))}])
def test_one_output_with_and_without_its_axis(end, options):
    body = nn.Sequential(nn.Linear(20, 60), nn.BatchNorm1d(60), nn.ReLU(), nn.Linear(60, 1))
    net = Forward(lambda net, x: ENDS[end](net.body(x)), body=body)
    assert lam(net, (20,), loss="mse", **options) == lam(body, (20,), loss="mse", **options)


def test_one_output_without_its_axis_read_by_export():
    class Branching(nn.Module):
        def __init__(self, end) -> None:
            super().__init__()
            self.a, self.b, self.end = nn.Linear(20, 60), nn.Linear(60, 1), end

        def forward(self, x: Tensor) -> Tensor:
            return self.end(self.b(F.relu(self.a(x))) if x.shape[0] > 1 else x)

    for end in (lambda h: h.squeeze(-1), lambda h: h[:, 0], lambda h: h.view(-1), lambda h: h.squeeze(1).unsqueeze(1)):
        net = Branching(end)
        plain = nn.Sequential(net.a, nn.ReLU(), net.b)
        found = ns.predict(net, (20,), "half_mse", 32)
        assert any("torch.export" in note for note in found.notes)
        assert found.lambda_max == lam(plain, (20,), loss="half_mse")


@pytest.mark.parametrize(
    "middle",
    [
        lambda h: h.unsqueeze(2).squeeze(2),
        lambda h: h[:, :, None].flatten(2),
        lambda h: h.unsqueeze(-1).squeeze(-1),
        lambda h: h.reshape(h.shape[0], 30, -1, 1).view(h.shape[0], 30, 1, -1).squeeze(2),
    ],
)
@pytest.mark.parametrize("length", [12, 300])
def test_axes_of_one_on_a_line(middle, length):
    """300 sites are described by offsets, 12 by pairs."""
    parts = {"a": nn.Conv1d(3, 30, 3, padding=1), "b": nn.Conv1d(30, 40, 5, stride=2), "c": nn.Linear(40, 5)}
    nets = [
        Forward(lambda net, x, m=m: net.c(F.relu(net.b(m(F.relu(net.a(x))))).mean(2)), **parts)
        for m in (lambda h: h, middle)
    ]
    assert lam(nets[1], (3, length)) == pytest.approx(lam(nets[0], (3, length)), rel=1e-12)


def test_a_line_as_an_image_of_one_row_or_column():
    one, last = nn.Conv1d(3, 40, 5, padding=2), nn.Linear(40, 5)
    for axis, size, padding in ((2, (1, 5), (0, 2)), (3, (5, 1), (2, 0))):
        two = nn.Conv2d(3, 40, size, padding=padding)
        two.weight.data = one.weight.data.reshape(two.weight.shape).clone()
        two.bias.data = one.bias.data.clone()
        line = Forward(lambda net, x: net.f(F.relu(net.c(x)).mean(2)), c=one, f=last)
        image = Forward(lambda net, x, a=axis: net.f(F.relu(net.c(x.unsqueeze(a))).mean((2, 3))), c=two, f=last)
        for length in (12, 300):
            assert lam(image, (3, length)) == pytest.approx(lam(line, (3, length)), rel=1e-12)


@pytest.mark.parametrize(
    ("forward", "shape", "words"),
    [
        (lambda net, x: net.c(x.unsqueeze(1)), (8, 8), r"\(N, 8, 8\) to \(N, 1, 8, 8\)"),
        (lambda net, x: net.c(x.view(-1, 1, 8, 8)), (64,), r"pass that shape: input_shape=\(1, 8, 8\)"),
        (lambda net, x: net.f(x)[:, 0], (20,), r"'getitem'.*takes a part of \(N, 5\)"),
        (lambda net, x: net.f(x)[0], (20,), r"'getitem'.*takes a part of \(N, 5\)"),
        (lambda net, x: net.f(x)[:, :1], (20,), r"'getitem'.*takes a part of \(N, 5\)"),
        (lambda net, x: net.f(x)[None], (20,), "an axis before the batch"),
        (lambda net, x: net.f(x).unsqueeze(0), (20,), "an axis before the batch"),
        (lambda net, x: net.f(x).flatten(), (20,), "mixes samples"),
        (lambda net, x: net.f(x).squeeze(2), (20,), r"dimension 2 of \(N, 5\)"),
        (lambda net, x: net.g(x).squeeze(1) + net.h(x), (20,), "would broadcast"),
        (lambda net, x: torch.cat([net.g(x).squeeze(1), net.h(x).squeeze(1)]), (20,), r"samples of tensors \(N,\)"),
        (lambda net, x: net.f(net.g(x).squeeze(1)), (20,), r"last dimension of \(N,\)"),
    ],
)
def test_axes_that_are_not_of_one_are_refused(forward, shape, words):
    parts = {"c": nn.Conv2d(1, 40, 3), "f": nn.Linear(20, 5), "g": nn.Linear(20, 1), "h": nn.Linear(20, 1)}
    with pytest.raises(ValueError, match=words):
        ns.predict(Forward(forward, **parts), shape)
