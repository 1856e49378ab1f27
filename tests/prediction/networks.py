"""Networks written by hand, as users write them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.models.initialization import initialize, seeded
from normscope.norms.kinds import make_norm


class _Bottleneck(nn.Module):
    def __init__(self, c_in: int, c: int, stride: int, project: bool) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c)
        self.conv3, self.bn3 = nn.Conv2d(c, 4 * c, 1, bias=False), nn.BatchNorm2d(4 * c)
        self.down = None
        if project:
            self.down = nn.Sequential(nn.Conv2d(c_in, 4 * c, 1, stride, bias=False), nn.BatchNorm2d(4 * c))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.bn3(self.conv3(y))
        y += x if self.down is None else self.down(x)
        return F.relu(y, inplace=True)


class ResNet50(nn.Module):
    def __init__(self, d_out: int = 1000) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, 1)
        blocks, c_in = [], 64
        for c, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for i in range(count):
                blocks.append(_Bottleneck(c_in, c, 1 if i else stride, i == 0))
                c_in = 4 * c
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(c_in, d_out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn(self.conv(x))))
        x = F.adaptive_avg_pool2d(self.blocks(x), (1, 1))
        return self.fc(torch.flatten(x, 1))


class _Basic(nn.Module):
    def __init__(self, c_in: int, c: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(c_in, c, 3, stride, 1, bias=False), nn.BatchNorm2d(c)
        self.conv2, self.bn2 = nn.Conv2d(c, c, 3, 1, 1, bias=False), nn.BatchNorm2d(c)
        self.down = None
        if stride > 1 or c_in != c:
            self.down = nn.Sequential(nn.Conv2d(c_in, c, 1, stride, bias=False), nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.down is None else self.down(x)))


class PostResNet(nn.Module):
    """ResNet-18 for small images: ReLU after each sum, no pooling but the last."""

    def __init__(self, seed: int, *, width: int, gamma: float = 1.0, d_out: int = 10) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        c_in = width
        for i in range(4):
            c = width * 2**i
            blocks += [_Basic(c_in, c, 2 if i else 1), _Basic(c, c, 1)]
            c_in = c
        self.blocks = nn.Sequential(*blocks)
        self.fc = nn.Linear(c_in, d_out)
        initialize(self, "mean_field", seed=seed, sigma_b2=0.0)
        for norm in self.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.constant_(norm.weight, gamma)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(F.relu(self.bn(self.conv(x)))).mean((2, 3)))


class _LinearBlock(nn.Module):
    def __init__(self, width: int, act: nn.Module) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
        self.second, self.last = nn.Linear(width, width, bias=False), nn.BatchNorm1d(width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(x + self.last(self.second(torch.relu(self.norm(self.first(x))))))


def residual_mlp(seed: int, *, width: int, blocks: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Blocks of two linear layers, the activation after each sum; 200 inputs, three outputs."""
    with seeded(seed):
        stem = [nn.Linear(200, width, bias=False), nn.BatchNorm1d(width), act()]
        return nn.Sequential(*stem, *[_LinearBlock(width, act()) for _ in range(blocks)], nn.Linear(width, 3))


class Dense(nn.Module):
    """Each convolution sees all maps before it."""

    def __init__(self, growth: int = 32, d_out: int = 10, seed: int = 0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, growth, 3, padding=1, bias=False)
        widths = [growth, 2 * growth, 3 * growth]
        self.norms = nn.ModuleList([nn.BatchNorm2d(w) for w in widths])
        self.convs = nn.ModuleList([nn.Conv2d(w, growth, 3, padding=1, bias=False) for w in widths])
        self.fc = nn.Linear(4 * growth, d_out)
        initialize(self, "mean_field", seed=seed, sigma_b2=0.0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for norm, conv in zip(self.norms, self.convs, strict=True):
            x = torch.cat([x, conv(torch.relu(norm(x)))], dim=1)
        return self.fc(x.mean((2, 3)))


class Twice(nn.Module):
    """One layer used two times."""

    def __init__(self, width: int = 200) -> None:
        super().__init__()
        self.first, self.again, self.last = nn.Linear(50, width), nn.Linear(width, width), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        h = torch.tanh(self.again(h))
        return self.last(torch.tanh(self.again(h)))


class _PreActBlock(nn.Module):
    def __init__(self, c_in: int, c: int, stride: int, norm: str, act: type[nn.Module]) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            make_norm(norm, c_in, dim=2), act(), nn.Conv2d(c_in, c, 3, stride, 1),
            make_norm(norm, c, dim=2), act(), nn.Conv2d(c, c, 3, 1, 1),
        )  # fmt: skip
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(c_in, c, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.short(x) + self.branch(x)


def preact_resnet(seed: int, *, width: int = 32, norm: str = "batch", act: type[nn.Module] = nn.Tanh) -> nn.Sequential:
    """Normalizer and activation before each convolution, four blocks, mean over the image, three outputs."""
    blocks = [_PreActBlock(width, width, 1, norm, act), _PreActBlock(width, 2 * width, 2, norm, act)]
    blocks += [_PreActBlock(2 * width, 2 * width, 1, norm, act), _PreActBlock(2 * width, 4 * width, 2, norm, act)]
    end = [make_norm(norm, 4 * width, dim=2), act(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 3)]
    net = nn.Sequential(nn.Conv2d(3, width, 3, 1, 1), *blocks, *end)
    initialize(net, "mean_field", seed=seed, sigma_b2=0.05)
    return net


def vgg_like(
    seed: int,
    *,
    width: int = 48,
    norm: str = "batch",
    gamma: float = 1.0,
    act: type[nn.Module] = nn.ReLU,
    d_out: int = 10,
) -> nn.Sequential:
    """Padded convolutions, average pooling, mean over the image."""
    layers: list[nn.Module] = []
    c = 3
    for i, out in enumerate((width, width, 2 * width, 2 * width)):
        layers += [nn.Conv2d(c, out, 3, padding=1), make_norm(norm, out, dim=2, gamma=gamma), act()]
        c = out
        if i % 2:
            layers.append(nn.AvgPool2d(2))
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, d_out))
    initialize(net, "mean_field", seed=seed, sigma_b2=0.05)
    return net


def with_activation(model: nn.Module, act: type[nn.Module]) -> nn.Module:
    for name, child in model.named_children():
        if isinstance(child, nn.ReLU):
            setattr(model, name, act())
    return model


class Forward(nn.Module):
    """Modules by name, and the forward as a function of them and x."""

    def __init__(self, forward, **modules) -> None:
        super().__init__()
        self.run = forward
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)
