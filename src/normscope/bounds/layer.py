"""`check`: the theorems on a linear layer and its BatchNorm, in float64 on copies."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from numbers import Real

import torch
from torch import Tensor, nn

from normscope.bounds.derivatives import LayerDerivatives
from normscope.bounds.normalized_layer import NormalizedLayer
from normscope.bounds.result import Bounds, StatementRow
from normscope.bounds.statements import lemma_rows, unit_rows
from normscope.isolation.generators import Generators
from normscope.isolation.lending import untouched
from normscope.isolation.one_at_a_time import in_turn
from normscope.results.environment import environment

# Above this many values a unit, Hessians are checked through products alone.
FULL = 256


@in_turn
def check(
    linear: nn.Module,
    norm: nn.Module,
    x: Tensor,
    downstream: Callable[[Tensor], Tensor],
    *,
    w0: Tensor | None = None,
    w_star: Tensor | None = None,
    lam: float | None = None,
    units: int | Sequence[int] = 8,
) -> Bounds:
    r"""Theorems 4.1, 4.2, 4.4, C.1, Lemma 4.5, Observation 4.3, Facts C.1 and C.2 on a linear layer and its BatchNorm.

    eps is 0 on the copy, as in the theorems, and the batch's own statistics are used whatever the mode of `norm`.

    Args:
        linear: nn.Linear or nn.Conv2d; a convolution's units are channels, with m = samples times positions.
        norm: the BatchNorm after it, torch's or normscope's.
        x: input of `linear`, one batch.
        downstream: the rest of the network, from the output of `norm` to the loss, a scalar; takes float64. A module is
            lent float64 copies and left as it was. Inside a function only the random generators are protected, not the
            running statistics of a BatchNorm that it calls. Random numbers must be the same at every call.
        w0: initial weights of `linear`, for Lemma 4.5.
        w_star: trained weights of `linear`, for Lemma 4.5; by default the present ones.
        lam: bound on the spectral norm of the inputs in Theorems 4.4 and C.1; the norm of this batch unless given.
        units: how many outputs to check, spread evenly; or a list of them.

    Returns:
        A `Bounds`: rows with left, right, slack and verdict, for the printed and the corrected form of each statement.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> bounds = check(nn.Linear(4, 2), nn.BatchNorm1d(2), torch.randn(8, 4), lambda z: z.pow(3).sum())
        >>> bounds.holds
        True
        >>> bounds.summary().query("statement == 'Theorem 4.1'")[["form", "holds", "units"]].values.tolist()
        [['printed', 0, 2], ['corrected', 2, 2]]
    """
    if w_star is not None and w0 is None:
        raise ValueError("Lemma 4.5 compares two weights: w_star came without w0. Hand in the initial weights too.")
    with torch.inference_mode(False), torch.enable_grad(), _lent(downstream):
        layer = NormalizedLayer(linear, norm, x)
        chosen, notes = layer.choose(units)
        derivatives = LayerDerivatives(layer, downstream)
        largest = layer.input_norm()
        lam = largest if lam is None else _positive(lam)
        if lam < largest:
            notes.append(f"lam = {lam:.4g} is below the norm {largest:.4g} of these inputs, which it should bound.")
        full = layer.m <= FULL
        if not full:
            notes.append(
                f"{layer.m} values a unit: the Hessian is checked times g; entry by entry, and (58), only up to {FULL}."
            )
        rows: list[StatementRow] = []
        for unit in chosen:
            rows += unit_rows(derivatives, unit, lam, full, bounded=lam >= largest)
        if w0 is not None:
            rows += lemma_rows(derivatives, w0, linear.weight if w_star is None else w_star)  # type: ignore[arg-type]
    return Bounds(tuple(rows), layer.m, lam, tuple(chosen), tuple(notes), environment(layer.x.device))


@contextmanager
def _lent(downstream: Callable[[Tensor], Tensor]) -> Iterator[None]:
    if isinstance(downstream, nn.Module):
        with untouched(downstream, dtype=torch.float64):
            yield
        return
    generators = Generators()
    generators.save()
    try:
        yield
    finally:
        generators.restore()


def _positive(lam: object) -> float:
    if not isinstance(lam, Real) or not 0 < float(lam) < float("inf"):
        raise ValueError(f"lam bounds the norm of the inputs and is a positive number; got {lam}.")
    return float(lam)
