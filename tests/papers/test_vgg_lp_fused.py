"""The VGG experiment compiles l_p layers on a GPU, and only while it runs."""

import pytest
import torch

from normscope.norms import LpNorm2d
from normscope.papers.experiments.vgg import lp_fused


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Calls that went through a compiled forward; torch.compile stands for itself with the `eager` backend."""
    calls, real = [], torch.compile

    def recording(function, **options):
        inner = real(function, backend="eager", **options)

        def forward(layer, x):
            calls.append(options)
            return inner(layer, x)

        return forward

    monkeypatch.setattr(torch, "compile", recording)
    return calls


@pytest.mark.parametrize(("device", "expected"), [("cpu", 0), ("cuda", 3), ("cuda:1", 3)])
def test_layers_of_several_shapes_give_the_eager_numbers(compiled: list[dict], device: str, expected: int) -> None:
    layers = [LpNorm2d(channels, p=p) for channels, p in ((3, 1), (5, 2), (4, float("inf")))]
    images = [torch.randn(6, layer.num_features, 4, 4, generator=torch.Generator().manual_seed(0)) for layer in layers]
    wanted = [layer(x) for layer, x in zip(layers, images, strict=True)]
    with lp_fused(device):
        found = [layer(x) for layer, x in zip(layers, images, strict=True)]
    assert len(compiled) == expected
    assert all(options == {"dynamic": False} for options in compiled)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


def test_forward_is_the_layers_own_again_after_an_error(compiled: list[dict]) -> None:
    own = LpNorm2d.forward
    with pytest.raises(ValueError, match="channels"), lp_fused("cuda"):
        LpNorm2d(3, p=1)(torch.zeros(2, 4, 1, 1))
    assert len(compiled) == 1
    assert LpNorm2d.forward is own
