"""The noise of Algorithm 1: its moments, its formula, its exactness."""

import copy
import math

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import reference
from normscope.norms import CovariateNoise, NoisyBatchNorm1d, NoisyBatchNorm2d, covariate_noise
from normscope.norms.noisy import N_MU, N_SIGMA, R_MU, R_SIGMA

# 4 standard errors: a false alarm in 6e-5 of the seeds, and the seeds are fixed.
K = 4


def steps_of(layer, x, n):
    outputs = [layer(x) for _ in range(n)]
    return torch.stack([y.mean(0) for y in outputs]), torch.stack([y.var(0, correction=0) for y in outputs])


def test_moments_of_the_source():
    """Disjoint pairs of steps, every unit a draw: E|mu' - mu|, E|var' - var| and the mean variance."""
    units, pairs, m = 300, 20, 1024
    x = torch.randn(m, units, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    layer = NoisyBatchNorm1d(units, eps=0.0, seed=1, dtype=torch.float64)
    mu, var = steps_of(layer, x, 2 * pairs)
    expected = reference.noisy_moments(N_MU, N_SIGMA, R_MU, R_SIGMA)
    found = {
        "mean_shift": (mu[1::2] - mu[::2]).abs(),
        "var_shift": (var[1::2] - var[::2]).abs(),
        "var": var,
    }
    for name, values in found.items():
        error = expected[f"{name}_std"] / math.sqrt(values.numel())
        # A finite batch adds O(1/m) to a mean of absolute differences.
        assert abs(values.mean().item() - expected[name]) <= K * error + 1 / m, name
    assert expected["mean_shift"] == pytest.approx(1 / 3, abs=1e-9)
    assert expected["var_shift"] == pytest.approx(0.1875, abs=1e-4)
    assert expected["var"] == pytest.approx(1.284, abs=1e-3)


@pytest.mark.parametrize("shape", [(50, 4), (5, 4, 10), (2, 4, 5, 5), (2, 4, 5, 5, 1)])
def test_is_the_update_of_algorithm_1(shape):
    """Zeros show m_ij, and ones s_ij + m_ij; with them the loop of the paper gives every other output."""
    state = torch.tensor([3, 11])
    a = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    m = covariate_noise(torch.zeros_like(a), state)
    s = covariate_noise(torch.ones_like(a), state) - m
    zeros = torch.zeros(shape[1], dtype=torch.float64).numpy()
    expected = reference.noisy_batch_norm(a.numpy(), zeros, zeros, m.numpy(), s.numpy())
    assert (covariate_noise(a, state) - torch.from_numpy(expected)).abs().max() <= 1e-12


def test_distributions_within_a_step_and_across_units():
    n, units = 50_000, 8
    state = torch.tensor([9, 4])
    uniform = covariate_noise(torch.zeros(n, units), state, n_mu=0.0, r_mu=1.0)
    normal = covariate_noise(torch.ones(n, units), state, n_mu=0.0, n_sigma=1.0, r_mu=0.0, r_sigma=1.0) - 1
    for values, variance, fourth in ((uniform, 1 / 3, 1 / 5), (normal, 1.0, 3.0)):
        v = values.double()
        assert v.mean().abs() <= K * math.sqrt(variance / v.numel())
        assert (v.square().mean() - variance).abs() <= K * math.sqrt((fourth - variance**2) / v.numel())
        correlation = torch.corrcoef(v.T) - torch.eye(units)
        # 28 pairs each: 5 standard errors.
        assert correlation.abs().max() <= 5 / math.sqrt(n)
    assert uniform.abs().max() <= 1
    # Samples, streams and steps are independent of each other too.
    later = covariate_noise(torch.zeros(n, units), torch.tensor([9, 5]), n_mu=0.0, r_mu=1.0)
    other = covariate_noise(torch.zeros(n, units), torch.tensor([10, 4]), n_mu=0.0, r_mu=1.0)
    rows = torch.stack(
        [t.flatten()[:-1].double() for t in (uniform, normal, later, other)] + [uniform.flatten()[1:].double()]
    )
    assert (torch.corrcoef(rows) - torch.eye(5)).abs().max() <= 5 / math.sqrt(n * units)


def test_unit_parameters_are_redrawn_each_step_and_differ_between_units_and_layers():
    steps, units = 300, 200
    draws = torch.stack(
        [covariate_noise(torch.zeros(2, units), torch.tensor([2, t]), r_mu=0.0)[0] for t in range(steps)]
    )
    assert draws.unique().numel() > 0.99 * steps * units
    assert (draws.double().var() - N_MU**2 / 3).abs() <= K * N_MU**2 * math.sqrt((1 / 5 - 1 / 9) / draws.numel())
    layers = [CovariateNoise(3), CovariateNoise(3)]
    assert not torch.equal(layers[0].noise_state, layers[1].noise_state)


def test_replays_from_a_checkpoint_and_moves_no_generator():
    layer, x = NoisyBatchNorm2d(3, seed=5), torch.randn(4, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    layer(x)
    saved = copy.deepcopy(layer.state_dict())
    before = torch.get_rng_state()
    first = [layer(x) for _ in range(3)]
    assert torch.equal(before, torch.get_rng_state())
    resumed = NoisyBatchNorm2d(3, seed=77)
    resumed.load_state_dict(saved)
    for expected in first:
        assert torch.equal(resumed(x), expected)
    assert not torch.equal(first[0], first[1])


def test_off_in_eval_and_constant_to_the_gradient():
    layer = NoisyBatchNorm1d(3, seed=5)
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0))
    before = layer.noise.noise_state.clone()
    assert torch.equal(layer.eval()(x), torch.nn.functional.batch_norm(x, torch.zeros(3), torch.ones(3)))
    assert torch.equal(layer.noise.noise_state, before)
    noise = CovariateNoise(3, seed=1)
    a = x.clone().requires_grad_()
    m = covariate_noise(torch.zeros(8, 3), noise.noise_state)
    s = covariate_noise(torch.ones(8, 3), noise.noise_state) - m
    (grad,) = torch.autograd.grad(noise(a).sum(), a)
    assert torch.allclose(grad, s)


def test_wrong_channels_leave_the_counter_alone():
    noise = CovariateNoise(3, seed=1)
    with pytest.raises(ValueError, match="CovariateNoise was built for 3 channels"):
        noise(torch.zeros(4, 5))
    assert noise.noise_state.tolist() == [1, 0]


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_repeats_the_noise(reentrant):
    def gradient(checkpointed):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), NoisyBatchNorm1d(4, seed=1), torch.nn.Tanh())
        with torch.no_grad():
            model[0].weight.copy_(torch.linspace(-1, 1, 12).view(4, 3))
            model[0].bias.zero_()
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
        y = checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)
        y.square().sum().backward()
        return model[0].weight.grad, model[1].noise.noise_state

    (expected, state), (found, repeated) = gradient(False), gradient(True)
    assert torch.equal(found, expected)
    assert torch.equal(repeated, state)


def test_an_empty_batch_passes_and_a_reset_starts_the_seed_anew():
    layer = NoisyBatchNorm1d(3, seed=5)
    assert layer(torch.zeros(0, 3)).shape == (0, 3)
    layer(torch.randn(4, 3, generator=torch.Generator().manual_seed(0)))
    layer.noise.reset_parameters()
    assert layer.noise.noise_state.tolist() == [5, 0]
    empty = torch.nn.utils.skip_init(CovariateNoise, 3, seed=7)
    empty.reset_parameters()
    assert empty.noise_state.tolist() == [7, 0]


def test_integers_are_refused():
    with pytest.raises(TypeError, match="covariate_noise normalizes floating-point"):
        covariate_noise(torch.ones(4, 3, dtype=torch.int64), torch.tensor([0, 0]))
