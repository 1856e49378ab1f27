"""The two data sets that need no files: a random linear regression, and scikit-learn's digits."""

import numpy as np
import torch

from normscope.data.dataset import Dataset, Standardize, check_standardize, standardized


def gaussian(
    n: int = 1000, d_in: int = 10, d_out: int = 10, *, seed: int, dtype: torch.dtype = torch.float64
) -> Dataset:
    """A linear regression on Gaussian inputs: the task of the deep linear network.

        A ~ N(0, 1)^(d_out x d_in),   X ~ N(0, 1)^(n x d_in),   Y = X A^T

    There is no noise, so a linear network can reach loss 0. The test part has n further inputs and the same A. One seed
    determines all numbers. A is drawn first, so that it does not depend on n. Draws are made in float64 and then
    rounded, so that every dtype holds the same data.

    Source: Santurkar et al. 2018, "How Does Batch Normalization Help Optimization?", appendix A.1
    (n = 1000, d_in = d_out = 10).

    Args:
        n: number of training samples, and of test samples.
        d_in: number of inputs.
        d_out: number of outputs.
        seed: seed of A, X and the test inputs.
        dtype: floating-point type of all tensors.

    Returns:
        The data set, with its training and test part.

    Example:
        >>> data = gaussian(50, 4, 3, seed=0)
        >>> A = torch.linalg.lstsq(data.x_train, data.y_train).solution.T
        >>> torch.allclose(data.x_test @ A.T, data.y_test)
        True
    """
    generator = torch.Generator().manual_seed(seed)
    A, x_train, x_test = (torch.randn(rows, d_in, generator=generator, dtype=torch.float64) for rows in (d_out, n, n))
    return Dataset("gaussian", x_train, x_train @ A.T, x_test, x_test @ A.T, None).to(dtype=dtype)


def digits(*, test_fraction: float = 0.2, seed: int, standardize: Standardize = "pixel") -> Dataset:
    """The 1797 handwritten digits that ship with scikit-learn, as (n, 1, 8, 8) float32 in 10 classes.

    Args:
        test_fraction: share of the images in the test set, in (0, 1).
        seed: seed of the split, and so of the training statistics.
        standardize: "channel", "pixel", "global" or None (pixels in [0, 1]).

    Returns:
        The data set, with its training and test part.

    Example:
        >>> digits(seed=0)
        Dataset('digits', x (1, 8, 8), 10 classes, 1438 train + 359 test, float32 on cpu)
    """
    from sklearn.datasets import load_digits

    check_standardize(standardize)
    pixels, labels = load_digits(return_X_y=True)
    n = len(labels)
    n_test = round(n * test_fraction)
    if not 0 < n_test < n:
        raise ValueError(
            f"test_fraction must leave images on both sides of the split; got {test_fraction!r} "
            f"of {n} images. Choose a value between 0 and 1, such as 0.2."
        )
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed)).numpy()
    images = pixels.astype(np.uint8).reshape(n, 1, 8, 8)[order]
    y = torch.from_numpy(labels[order].astype(np.int64))
    x_train, x_test = standardized(images[n_test:], images[:n_test], standardize, white=16)
    return Dataset("digits", x_train, y[n_test:], x_test, y[:n_test], 10)
