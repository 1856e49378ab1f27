"""Normalizers as other people write them: the patterns of model libraries, each in a few lines of our own."""

import torch
from torch import nn
from torch.nn import functional as F


class LlamaRMSNorm(nn.Module):
    """Statistics in float32, eps under a name of its own, the weight after the cast back."""

    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.variance_epsilon = eps

    def forward(self, hidden):
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(hidden.dtype)


class GemmaRMSNorm(LlamaRMSNorm):
    """A weight that starts at 0 and acts as 1 + weight."""

    def forward(self, hidden):
        y = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return y * (1 + self.weight)


class GatedRMSNorm(LlamaRMSNorm):
    def forward(self, hidden, gate=None):
        return super().forward(hidden if gate is None else hidden * F.silu(gate))


class UnitLengthNorm(nn.Module):
    """Unit length times sqrt(size)."""

    def __init__(self, size, weights=True):
        super().__init__()
        self.scale = size**0.5
        self.g = nn.Parameter(torch.ones(size)) if weights else 1.0

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class ScaleNorm(nn.Module):
    """One weight for all channels."""

    def __init__(self, size):
        super().__init__()
        self.scale = size**0.5
        self.g = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return F.normalize(x, dim=-1) * self.scale * self.g


class L2Norm(nn.Module):
    """Unit length, for any number of channels."""

    def __init__(self, size):
        super().__init__()

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)


class BareLayerNorm(nn.Module):
    """No weight; the size is an attribute."""

    def __init__(self, size):
        super().__init__()
        self.normalized_shape = (size,)

    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, eps=1e-5)


class BiasFreeLayerNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = None

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


class LayerNorm1P(nn.LayerNorm):
    def forward(self, x):
        return F.layer_norm(x, self.normalized_shape, self.weight + 1, self.bias, self.eps)


class HandLayerNorm2d(nn.Module):
    """Over the channels of (N, C, H, W), statistics by hand."""

    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        var = (x - mean).pow(2).mean(1, keepdim=True)
        return self.weight[:, None, None] * ((x - mean) / torch.sqrt(var + 1e-6)) + self.bias[:, None, None]


class ChannelLayerNorm(nn.Module):
    """The same with parameters (1, C, 1, 1) of other names."""

    def __init__(self, size):
        super().__init__()
        self.g, self.b = nn.Parameter(torch.ones(1, size, 1, 1)), nn.Parameter(torch.zeros(1, size, 1, 1))

    def forward(self, x):
        var, mean = torch.var_mean(x, 1, correction=0, keepdim=True)
        return (x - mean) * (var + 1e-5).rsqrt() * self.g + self.b


class RMSNorm2d(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(1, keepdim=True) + 1e-6) * self.weight.view(1, -1, 1, 1)


class RMSNormWithBias(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * self.weight + self.bias


class HandGroupNorm(nn.Module):
    def __init__(self, size, groups=3):
        super().__init__()
        self.groups = groups
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        z = x.reshape(len(x), self.groups, -1)
        var, mean = torch.var_mean(z, -1, correction=0, keepdim=True)
        z = ((z - mean) / (var + 1e-3).sqrt()).view(x.shape)
        shape = (1, -1, *[1] * (x.ndim - 2))
        return z * self.weight.view(shape) + self.bias.view(shape)


class HandInstanceNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        var, mean = torch.var_mean(x, (2, 3), correction=0, keepdim=True)
        z = (x - mean) / (var + 1e-5).sqrt()
        return z * self.weight.view(1, -1, 1, 1) + self.bias.view(1, -1, 1, 1)


class HandBatchNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(1, size, 1, 1)), nn.Parameter(torch.zeros(1, size, 1, 1))
        self.register_buffer("moving_mean", torch.zeros(1, size, 1, 1))
        self.register_buffer("moving_var", torch.ones(1, size, 1, 1))

    def forward(self, x):
        mean, var = self.moving_mean, self.moving_var
        if self.training:
            var, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
            self.moving_mean = 0.9 * self.moving_mean + 0.1 * mean.detach()
            self.moving_var = 0.9 * self.moving_var + 0.1 * var.detach()
        return self.gamma * (x - mean) / (var + 1e-5).sqrt() + self.beta


class UnbiasedLayerNorm(nn.Module):
    """The unbiased standard deviation, eps beside it."""

    def __init__(self, size):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))

    def forward(self, x):
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.b


class OutsideEps(nn.LayerNorm):
    """eps beside the standard deviation."""

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-3) + self.bias


class GlobalResponseNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x):
        length = x.norm(dim=(1, 2), keepdim=True)
        return x + self.weight * x * length / (length.mean(-1, keepdim=True) + 1e-6)


class EitherLayerNorm(nn.LayerNorm):
    """Channels second in images, last in sequences."""

    def forward(self, x):
        if x.ndim == 4:
            return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return super().forward(x)


class LayerScale(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return x * self.gamma


class LayerNorm2d(nn.LayerNorm):
    """ConvNeXt's."""

    def forward(self, x):
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class GroupNorm1(nn.GroupNorm):
    def __init__(self, size):
        super().__init__(1, size)

    def forward(self, x):
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class LayerNormAct2d(LayerNorm2d):
    def __init__(self, size):
        super().__init__(size)
        self.drop, self.act = nn.Identity(), nn.GELU()

    def forward(self, x):
        return self.act(self.drop(super().forward(x)))


class BatchNormAct2d(nn.BatchNorm2d):
    """BatchNorm, dropout and an activation in place, in one layer."""

    def __init__(self, size, drop=0.0):
        super().__init__(size)
        self.drop, self.act = nn.Dropout(drop), nn.ReLU(inplace=True)

    def forward(self, x):
        assert x.ndim == 4
        if self.training and self.track_running_stats:
            self.num_batches_tracked.add_(1)
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
        )
        return self.act(self.drop(x))


class StaysFrozen(nn.BatchNorm2d):
    """Stays in eval mode."""

    def train(self, mode=True):
        return super().train(False)


class FrozenBatchNorm2d(nn.Module):
    """Buffers instead of parameters."""

    def __init__(self, size):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, torch.rand(size) + 0.5)

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale[:, None, None] + (self.bias - self.running_mean * scale)[:, None, None]
