"""The kernel draws what the operations draw, in every layout, and its derivatives are right in every order."""

import pytest
import torch

from normscope.norms import noisy

CONSTANTS = {"n_mu": 0.5, "n_sigma": 1.25, "r_mu": 0.1, "r_sigma": 0.1}


def operations(a, state, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(noisy, "_has_triton", lambda: False)
        return noisy.covariate_noise(a, state, **CONSTANTS)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(8, 40, 1, 1), (4, 6, 5, 7), (128, 64, 32, 32)])
@pytest.mark.parametrize("words", [(7, 3), (2**61 + 12345, 2**33 + 9)])
def test_as_the_operations_draw(shape, layout, words, monkeypatch):
    a = torch.randn(shape, device="cuda").to(memory_format=layout).requires_grad_()
    state = torch.tensor(words, device="cuda")
    fused, plain = noisy.covariate_noise(a, state, **CONSTANTS), operations(a, state, monkeypatch)
    assert type(fused.grad_fn).__name__ == "FusedNoiseBackward"
    assert fused.stride() == a.stride()
    torch.testing.assert_close(fused, plain, rtol=1e-5, atol=1e-5)
    direction = torch.randn_like(a)
    of_fused, of_plain = (
        torch.autograd.grad((y**3 * direction).sum(), a, create_graph=True)[0] for y in (fused, plain)
    )
    torch.testing.assert_close(of_fused, of_plain, rtol=1e-4, atol=1e-4)
    second = [torch.autograd.grad((g * direction).sum(), a)[0] for g in (of_fused, of_plain)]
    torch.testing.assert_close(*second, rtol=1e-3, atol=1e-3)


@pytest.mark.gpu
def test_the_backward_pass_is_of_the_step_that_was_taken():
    layer = noisy.CovariateNoise(6, seed=0, device="cuda")
    a = torch.randn(4, 6, 5, 5, device="cuda", requires_grad=True)
    state = layer.noise_state.clone()
    y = layer(a)
    layer(a)
    (grad,) = torch.autograd.grad(y.sum(), a)
    expected = noisy.covariate_noise(torch.ones_like(a), state) - noisy.covariate_noise(torch.zeros_like(a), state)
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-5)
