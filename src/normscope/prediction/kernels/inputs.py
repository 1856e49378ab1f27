"""The field of the inputs: independent standard values, or the overlaps of a real batch."""

import math

import torch
from torch import Tensor

from normscope.prediction.kernels.field import INPUTS, Field, FieldPart
from normscope.theory.site_pairs import SampleSites, Sites, image_sites


def input_field(
    shape: tuple[int, ...], batch_size: int, batch: Tensor | None, layers: int
) -> tuple[Field, Tensor | None]:
    """The field of the inputs, and for a real batch of images the images themselves, (m, C, H, W) in float64.

    layers: number of layers of the network, on which the form of the kernels depends. A real batch of vectors keeps the
    overlap of every pair of samples; a batch of images keeps means over pairs, by offset.
    """
    if batch is None:
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError(f"batch_size is a whole number of at least 1; got {batch_size!r}.")
        return _independent(shape, batch_size, layers), None
    if not isinstance(batch, Tensor):
        raise ValueError(
            f"batch is a tensor of samples, (m, {', '.join(map(str, shape))}); got {type(batch).__name__}."
        )
    if tuple(batch.shape[1:]) != shape or len(batch) < 2:
        raise ValueError(
            f"batch holds at least two samples of input_shape, (m, {', '.join(map(str, shape))}); got "
            f"{tuple(batch.shape)}."
        )
    if batch.is_complex():
        raise ValueError("batch holds complex values, and a network of real ones takes none.")
    x = batch.detach().double().cpu()
    if not bool(torch.isfinite(x).all()):
        raise ValueError("batch holds values that are not finite. Clean them first.")
    if len(shape) == 1:
        return vectors(x), None
    images = x.reshape(len(x), shape[0], *(1, *shape[1:])[-2:])
    return _overlaps(images, shape, layers), images


def vectors(x: Tensor) -> Field:
    """The field of a batch (m, features) in float64."""
    kernel = (x @ x.T / x.shape[1])[None]
    return _field(SampleSites(len(x)), kernel, tuple(x.shape[1:]))


def _field(sites: Sites, kernel: Tensor, shape: tuple[int, ...], length: float = 0.0) -> Field:
    mean, tangent = 0 * sites.diagonal(kernel), torch.zeros_like(sites.different_samples(kernel))
    return Field(sites, (FieldPart(shape[0], kernel, mean, tangent, length=length),), shape, False, frozenset({INPUTS}))


def _size(shape: tuple[int, ...]) -> tuple[int, int]:
    return (1, 1) if len(shape) == 1 else (1, shape[1]) if len(shape) == 2 else (shape[1], shape[2])


def _independent(shape: tuple[int, ...], m: int, layers: int) -> Field:
    height, width = _size(shape)
    sites = image_sites(height, width, m, layers)
    return _field(sites, sites.same(), shape, 2 / math.prod(shape))


def _overlaps(images: Tensor, shape: tuple[int, ...], layers: int) -> Field:
    """Means over pairs of samples, channels and positions, by offset (circular, like the torus they live on)."""
    m, channels, height, width = images.shape
    waves = torch.fft.fft2(images)
    power = (waves.abs() ** 2).sum((0, 1))
    together = (waves.sum(0).abs() ** 2).sum(0)
    scale = channels * height * width
    same = torch.fft.ifft2(power).real / (scale * m)
    other = torch.fft.ifft2(together - power).real / (scale * m * (m - 1))
    sites = image_sites(height, width, m, layers)
    squares = images.square().sum((1, 2, 3))
    length = float(squares.var() / squares.mean() ** 2) if bool(squares.any()) else 0.0
    return _field(sites, torch.stack([same, other]), shape, length)
