"""Check an installation: each part is tried, not only looked up."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from tempfile import TemporaryDirectory
from typing import Any


class Missing(Exception):
    """Raised by a check of something that normscope can do without; its text names what to do instead."""


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
class CheckResult:
    """The result of a check; state: "works", "fails", or "absent" for something that normscope does without."""

    name: str
    state: str
    says: str
    seconds: float


def examine(check: Check) -> CheckResult:
    """The finding of a check; never raises, since a failure of any kind is a finding."""
    started = time.perf_counter()
    try:
        state, says = "works", check.attempt()
    except PackageNotFoundError:
        state, says = "absent", f"bring it with: pip install '{check.brings}'"
        if not check.brings:
            state, says = "fails", "not installed; install normscope again"
    except Missing as error:
        state, says = "absent", str(error)
    except Exception as error:
        state, says = "fails", f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    return CheckResult(check.name, state, says, time.perf_counter() - started)


def _python() -> str:
    import platform

    from normscope._version import __version__

    python = platform.python_version()
    if sys.version_info < (3, 11, 4):
        raise RuntimeError(
            f"Python {python} is too old; normscope needs 3.11.4 or newer. Make an environment with that."
        )
    untested = "; tested with 3.11 to 3.13" if sys.version_info >= (3, 14) else ""
    return f"normscope {__version__}, Python {python}{untested}"


def _system() -> str:
    import platform

    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    return f"{system} {platform.machine()}" + ("" if system == "Linux" else "; the tests run on Linux alone")


def _compiler() -> str:
    """Runs a compiled graph; without a compiler everything works, some of it slower."""
    from normscope.compiling import why_not_compiled

    if reason := why_not_compiled():
        raise Missing(f"the code runs eager, which is slower in places; torch.compile says {reason}")
    return "torch.compile works"


def _make() -> str:
    from shutil import which

    found = which("make")
    if found is None:
        raise Missing("use `normscope demo` for `make demo`, and `python -m pytest` for `make test`")
    return found


def _proxy() -> str:
    """The proxy for downloads. An address may hold a password, so only its host is named."""
    from urllib.parse import urlsplit
    from urllib.request import getproxies

    proxy = getproxies().get("https", "")
    host = urlsplit(proxy).hostname if "://" in proxy else proxy.rpartition("@")[2]
    return f"downloads go through {host}" if host else "none is set; behind one, set HTTPS_PROXY for pip and downloads"


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
    Check("system", _system),
    Check("torch", _torch),
    Check("device", _device),
    Check("compiler", _compiler),
    *(
        Check(name, _installed(name, module))
        for name, module in (("numpy", "numpy"), ("scipy", "scipy"), ("scikit-learn", "sklearn"), ("pandas", "pandas"))
    ),
    Check("predict, measure", _eigenvalues),
    Check("figures", _figures),
    Check("downloads", _installed("pooch", "pooch"), "pooch"),
    Check("proxy", _proxy),
    Check("make", _make),
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
