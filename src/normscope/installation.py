"""Check an installation: each part is tried, not only looked up."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from typing import Any


@dataclass(frozen=True)
class Check:
    """One part of the installation.

    attempt: tries the part, and returns a text on the result. brings: the package to install for an optional part; ""
    for a required one.
    """

    name: str
    attempt: Callable[[], str]
    brings: str = ""


@dataclass(frozen=True)
class Finding:
    """The result of a check; state: "works", "fails", or "absent" for an extra that is not installed."""

    name: str
    state: str
    says: str
    seconds: float


def examine(check: Check) -> Finding:
    """The finding of a check; never raises, since a failure of any kind is a finding."""
    started = time.perf_counter()
    try:
        state, says = "works", check.attempt()
    except PackageNotFoundError:
        state, says = "absent", f"bring it with: pip install '{check.brings}'"
        if not check.brings:
            state, says = "fails", "not installed; install normscope again"
    except Exception as error:
        state, says = "fails", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return Finding(check.name, state, says, time.perf_counter() - started)


def _python() -> str:
    import platform

    from normscope._version import __version__

    return f"normscope {__version__}, Python {platform.python_version()} on {platform.system()} {platform.machine()}"


def _torch() -> str:
    import torch

    _check_product(torch.ones(8, 8))
    return f"{torch.__version__}, {torch.get_num_threads()} threads"


def _check_product(x: Any) -> None:
    total = float((x @ x).sum())
    if total != 512.0:
        raise ArithmeticError(f"a product of matrices of ones sums to {total:g}, not 512")


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu only; no CUDA device found"
    _check_product(torch.ones(8, 8, device="cuda"))
    free, total = torch.cuda.mem_get_info()
    return f"{torch.cuda.get_device_name()}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"


def _eigenvalues() -> str:
    """lambda_max of a network of two layers, predicted and measured."""
    import torch

    from normscope import curvature, losses, models, prediction

    model = models.MLP(8, 3, width=16, depth=2, norm="batch", seed=0)
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(32, 8, generator=generator), torch.randn(32, 3, generator=generator)
    predicted = prediction.predict(model, (8,), "half_mse", 32).lambda_max
    measured = curvature.measure(model, losses.half_mse, batch).lambda_max
    return f"lambda_max of a small network: {predicted:.3g} predicted, {measured:.3g} measured"


def _figures() -> str:
    from pathlib import Path

    from matplotlib.figure import Figure

    with TemporaryDirectory() as folder:
        figure = Figure()
        figure.subplots().plot([0, 1])
        figure.savefig(Path(folder) / "try.png")
    return f"matplotlib {version('matplotlib')} draws"


def _installed(package: str, module: str) -> Callable[[], str]:
    def attempt() -> str:
        installed = version(package)
        import_module(module)
        return f"{package} {installed}"

    return attempt


CHECKS = (
    Check("normscope", _python),
    Check("torch", _torch),
    Check("device", _device),
    *(
        Check(name, _installed(name, module))
        for name, module in (("numpy", "numpy"), ("scipy", "scipy"), ("scikit-learn", "sklearn"), ("pandas", "pandas"))
    ),
    Check("predict, measure", _eigenvalues),
    Check("figures", _figures),
    Check("downloads", _installed("pooch", "pooch"), "pooch"),
    *(
        Check(name, _installed(name, module), f"normscope[{name}]")
        for name, module in (
            ("lightning", "lightning.pytorch"),
            ("transformers", "transformers"),
            ("tensorboard", "torch.utils.tensorboard"),
            ("wandb", "wandb"),
            ("ray", "ray"),
        )
    ),
)
