"""The plan of a sweep: a frozen description whose hash names its results.

The grid is learning rate x value of one argument x seed. The same description finds the same results in a journal; a
changed one has another hash, so its results never mix with the others. The data folder, the device, the group size and
the engine are not part of the plan: they change results by rounding only.
"""

import hashlib
import inspect
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from normscope.importing.named_functions import load
from normscope.messages import brief, quoted
from normscope.messages.choices import check_choice
from normscope.results.decoding import check_depth, check_file
from normscope.sweeping.checks import MOST_CELLS, PlanError, error_of, is_number, mistakes

OPTIMIZER_AXES = ("momentum", "weight_decay")


@dataclass(frozen=True, order=True)
class Cell:
    """One training of a sweep.

    Attributes:
        lr: its learning rate.
        value: its value on the other axis.
        seed: the seed of its initial network.
    """

    lr: float
    value: float
    seed: int


@dataclass(frozen=True)
class Plan:
    """A grid of trainings; learning rates, values and seeds are kept sorted.

    Args:
        model: a factory of networks: `package.module:name`, `path/to/file.py:name`, a bare name of `normscope.models`,
            or in Python the function itself. It is called with `arguments`, seed= and the axis, and returns the
            network in the mode it trains in.
        data: digits, gaussian, mnist, cifar10, or a user function that returns a `normscope.data.Dataset`.
        learning_rates: positive and finite.
        values: values of the axis.
        axis: the argument that takes the values: gamma; sigma_w (squared, as sigma_w2); momentum or weight_decay of
            the optimizer; or any other argument of the factory.
        seeds: seeds of the initial networks.
        arguments: further arguments of the factory.
        data_options: arguments of the data.
        loss: half_mse, half_sse or cross_entropy.
        momentum: SGD momentum.
        weight_decay: weight decay of SGD.
        batch_size: samples in a batch.
        epochs: passes over the data.
        explode: training has diverged if a batch loss is not finite, or above this multiple of a positive first one.
        stream_seed: seed of the stream of batches that all members see, and of the random numbers of their layers.
        threads: CPU threads; the order of sums depends on their number, so it is part of the plan.
        dtype: float32 or float64.
        tf32: whether float32 products on a GPU may use TensorFloat-32.
        compile: "auto" (if the estimated work repays compiling), "always" or "never".
        mode: "auto", "stacked" (many at once) or "looped" (one at a time).
        bisect: decades to which the boundary is refined between two learning rates of the grid; 0 trains only the grid.

    Raises:
        PlanError: with all mistakes in one message.

    Example:
        >>> plan = Plan("MLP", "digits", learning_rates=(0.1, 0.01), values=(0.5, 1.0), data_options={"seed": 0})
        >>> len(plan.cells()), len(plan.hash)
        (4, 64)
    """

    model: str
    data: str
    learning_rates: tuple[float, ...]
    values: tuple[float, ...] = (1.0,)
    axis: str = "gamma"
    seeds: tuple[int, ...] = (0,)
    arguments: dict[str, Any] = field(default_factory=dict)
    data_options: dict[str, Any] = field(default_factory=dict)
    loss: str = "half_mse"
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 128
    epochs: int = 5
    explode: float = 1e6
    stream_seed: int = 0
    threads: int = 1
    dtype: str = "float32"
    tf32: bool = True
    compile: str = "auto"
    mode: str = "auto"
    bisect: float = 0.0

    def __post_init__(self) -> None:
        for name in ("model", "data"):
            if callable(getattr(self, name)):
                object.__setattr__(self, name, reference(getattr(self, name)))
        for name in ("learning_rates", "values", "seeds"):
            if isinstance(getattr(self, name), (Sequence, np.ndarray)) and not isinstance(getattr(self, name), str):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        wrong = list(mistakes(self))
        if wrong:
            raise PlanError(wrong)
        # The same plan must have one form: 0 becomes 0.0, and grids are sorted.
        for name, number_type in (("learning_rates", float), ("values", float), ("seeds", int)):
            object.__setattr__(self, name, tuple(sorted(number_type(number) for number in getattr(self, name))))
        for name in ("momentum", "weight_decay", "explode", "bisect"):
            object.__setattr__(self, name, float(getattr(self, name)))
        for name in ("batch_size", "epochs", "threads", "stream_seed"):
            object.__setattr__(self, name, int(getattr(self, name)))
        for name in ("arguments", "data_options"):
            # A copy: the caller may change the dict afterwards.
            object.__setattr__(self, name, json.loads(json.dumps(getattr(self, name))))

    @classmethod
    def from_dict(cls, description: Mapping[str, Any]) -> "Plan":
        """The plan with these keys, as in a TOML file; grids may be tables (see `grid`). Unknown keys are mistakes."""
        keys, wrong = dict(description), list[str]()
        known = [f.name for f in fields(cls)]
        for key in [key for key in keys if key not in known]:
            del keys[key]
            wrong += error_of(partial(check_choice, "a plan's key", key, known))
        # Stand-ins for missing keys, so that the other mistakes are found, too.
        for key, stand_in in (("model", "MLP"), ("data", "digits"), ("learning_rates", (1.0,))):
            if key not in keys:
                wrong.append(f"{key} is missing: every plan names its model, data and learning_rates.")
                keys[key] = stand_in
        for key in ("learning_rates", "values"):
            if isinstance(keys.get(key), Mapping):
                try:
                    keys[key] = grid(**keys[key])
                except (TypeError, ValueError) as error:
                    wrong.append(f"{key}: {brief(str(error))}")
                    keys[key] = (1.0,)
        try:
            plan = cls(**keys)
        except PlanError as error:
            raise PlanError([*wrong, *error.mistakes]) from None
        if wrong:
            raise PlanError(wrong)
        return plan

    @classmethod
    def as_it_ran(cls, description: Mapping[str, Any], hash: str) -> "Plan":
        """A stored plan with the hash it ran with; the model and the data it names are not imported, read or run."""
        plan = cls.from_dict({key: value for key, value in description.items() if key != "sources"})
        plan.__dict__["hash"] = hash
        return plan

    @classmethod
    def from_toml(cls, path: str | Path) -> "Plan":
        """The plan in a TOML file with the same keys.

        Args:
            path: the file.
        """
        if not Path(path).exists():
            raise PlanError([f"there is no file {path}; name a TOML file such as examples/sweep_digits.toml."])
        try:
            check_file(path)
            description = tomllib.loads(Path(path).read_text(encoding="utf-8"))
            check_depth(description)
        except RecursionError as error:
            raise PlanError([f"{path} is nested too deep."]) from error
        except ValueError as error:
            raise PlanError([f"{path} is not a TOML file of a plan: {brief(str(error))}."]) from error
        return cls.from_dict(description)

    def canonical(self) -> str:
        """The text that is hashed: JSON with sorted keys, and digests of the files of the user's own factories."""
        sources = {name: _source(getattr(self, name)) for name in ("model", "data")}
        described = asdict(self) | {"sources": {name: text for name, text in sources.items() if text}}
        return json.dumps(described, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @cached_property
    def hash(self) -> str:
        """The SHA-256 of `canonical()`, which names the plan's results."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def cells(self) -> list[Cell]:
        """The cells of the grid, sorted by lr value^2, the most unstable first.

        Cells that are likely to diverge together are then in one group, and a group ends once all members have
        diverged. Curvature grows with the square of a scale such as gamma or sigma_w, hence lr value^2.
        """
        cells = [Cell(*point) for point in product(self.learning_rates, self.values, self.seeds)]
        return sorted(cells, key=lambda cell: (-cell.lr * cell.value**2, -cell.lr, cell.value, cell.seed))

    def factory(self) -> Callable[..., Any]:
        """The function that builds a network."""
        return load(self.model if ":" in self.model else f"normscope.models:{self.model}")

    def member_arguments(self, value: float, seed: int) -> dict[str, Any]:
        """The arguments of the factory for this value and seed."""
        keywords = self.arguments | {"seed": seed}
        if self.axis == "sigma_w":
            return keywords | {"sigma_w2": value**2}
        return keywords if self.axis in OPTIMIZER_AXES else keywords | {self.axis: value}

    def optimizer(self, cell: Cell) -> tuple[float, float, float]:
        """The learning rate, momentum and weight decay of a cell."""
        momentum = cell.value if self.axis == "momentum" else self.momentum
        decay = cell.value if self.axis == "weight_decay" else self.weight_decay
        return cell.lr, momentum, decay


def grid(
    *,
    count: int,
    log10_from: float | None = None,
    log10_to: float | None = None,
    **ends: float,
) -> tuple[float, ...]:
    """A grid of `count` numbers, evenly spaced in their logarithms.

    Args:
        count: how many numbers.
        log10_from: logarithm of the first number.
        log10_to: logarithm of the last number.
        ends: `from` and `to`, the first and the last number, instead of their logarithms.

    Returns:
        The numbers, in rising order.

    Raises:
        ValueError: ends that are not positive numbers, or a count out of range.

    Example:
        >>> grid(count=3, log10_from=-2, log10_to=0)
        (0.01, 0.1, 1.0)
    """
    ends_given = {"log10_from": log10_from, "log10_to": log10_to, **ends}
    wrong = [f"{name}={quoted(x)}" for name, x in ends_given.items() if x is not None and not is_number(x)]
    if wrong or not is_number(count, integer=True):
        got = brief(", ".join([*wrong, f"count={quoted(count)}"]))
        raise ValueError(f"a grid's ends are numbers and its count an integer; got {got}.")
    if set(ends) == {"from", "to"} and log10_from is None and log10_to is None:
        if not (ends["from"] > 0 and ends["to"] > 0):
            raise ValueError(f"a grid's ends are positive; got from={ends['from']} and to={ends['to']}.")
        log10_from, log10_to = math.log10(ends["from"]), math.log10(ends["to"])
    elif ends or log10_from is None or log10_to is None:
        raise ValueError("a grid is {from, to, count} or {log10_from, log10_to, count}.")
    if not 1 <= count <= MOST_CELLS:
        raise ValueError(f"a grid holds at least one number and at most {MOST_CELLS:,}; got count={quoted(count)}.")
    if not max(abs(log10_from), abs(log10_to)) < 300:
        raise ValueError(f"a grid lies between 1e-300 and 1e300; got 1e{log10_from:g} to 1e{log10_to:g}.")
    step = (log10_to - log10_from) / max(count - 1, 1)
    # Rounded to twelve digits, so that rounding of the logarithm does not change the number.
    return tuple(float(f"{10 ** (log10_from + i * step):.12g}") for i in range(count))


def reference(factory: Callable[..., Any]) -> str:
    """The name `module:function` of a factory, by which it can be imported again, also on another machine.

    Raises:
        PlanError: the function is not at the top level of an importable module.
    """
    name = getattr(factory, "__qualname__", "")
    if factory.__module__ == "__main__" or not name.isidentifier():
        raise PlanError(
            [
                f"a factory must be importable, so that a resumed sweep and other machines find it; got {factory!r}. "
                "Put it at the top level of a module, or name it as path/to/file.py:name."
            ]
        )
    return f"{factory.__module__}:{name}"


def _source(name: str) -> str:
    """The digest of the file of a user's factory; "" for normscope's own names, or if there is no file."""
    if ":" not in name or name.startswith("normscope."):
        return ""
    where = name.rpartition(":")[0]
    if not where.endswith(".py"):
        return _imported_source(name)
    return _digest(Path(where))


@cache
def _imported_source(name: str) -> str:
    """The digest of the factory's file when it was first imported: later changes of the file do not take effect."""
    try:
        return _digest(Path(inspect.getsourcefile(load(name)) or ""))
    except Exception:
        # The error of the import is reported later, when the factory is called.
        return ""


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
