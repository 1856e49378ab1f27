"""Synthetic 1-d signals of six classes: a wave whose shape and frequency make the class, with phase and noise."""

import functools

import torch

from data import Split, split

LENGTH, CLASSES = 64, 6


@functools.cache
def signals(noise: float = 0.5) -> Split:
    """Signals (N, 1, 64): 3,000 to train on, 768 for validation, 768 for the judge."""
    generator = torch.Generator().manual_seed(7)
    count = 3000 + 2 * 768
    y = torch.randint(CLASSES, (count,), generator=generator)
    time = torch.linspace(0, 1, LENGTH)
    frequency = (3.0 + y // 2 + 0.3 * torch.randn(count, generator=generator))[:, None]
    phase = torch.rand(count, 1, generator=generator)
    angle = 2 * torch.pi * (frequency * time + phase)
    sine = torch.sin(angle)
    wave = torch.where((y % 2 == 0)[:, None], sine, sine.sign() * 0.7)
    x = wave + noise * torch.randn(count, LENGTH, generator=generator)
    return split(x[:, None], y, 3000, 768, 768)
