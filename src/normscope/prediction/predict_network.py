r"""`predict`: lambda_max and eta* from the network's graph, without data, training or random numbers.

    lambda_max = loss factor x max(mean mode, data modes)         eta* = factor / lambda_max

Kernels (second moments) of all tensors go forward through the graph, kernels of the gradient come back, and every
trained tensor adds its part to lambda_max. `theory/` has the maps, docs/evidence/theory.md derives them. Two calls
give the same bits.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from normscope.isolation.one_at_a_time import in_turn
from normscope.isolation.unwrapping import unwrapped
from normscope.loss_kinds import CROSS_ENTROPY
from normscope.losses.known_losses import PREDICTED_LOSSES, loss_named
from normscope.messages.choices import check_choice
from normscope.prediction.calibrated_range import widen_range
from normscope.prediction.from_setup import FromSetup, from_setup, named_loss
from normscope.prediction.graph.evaluate import walk_through
from normscope.prediction.graph.side_effects import restored
from normscope.prediction.kernels.field import Field
from normscope.prediction.kernels.inputs import input_field
from normscope.prediction.loss_factor import loss_factor, note_cross_entropy
from normscope.prediction.mode_eigenvalues import ModeEigenvalues, mode_eigenvalues
from normscope.prediction.printed_formulas import as_printed
from normscope.prediction.refusals import check_model, check_wrapper
from normscope.prediction.result import Prediction
from normscope.prediction.rules.reshaping import reshape
from normscope.prediction.walk import Walk
from normscope.prediction.warnings_and_notes import common, explosion, lengths
from normscope.results.environment import environment
from normscope.setup import Setup
from normscope.stability.optimizer_limits import momentum_limit

THEORIES = ("corrected", "paper")
STATISTICS = ("batch", "frozen")


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Switch the garbage collector off: the walk holds everything that it makes, so that a collection frees nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# One call at a time: while torch.fx traces, it patches the class of all modules.
@in_turn
@_without_collecting()
def predict(
    model: nn.Module | Setup,
    input_shape: tuple[int, ...],
    loss: str | Callable[..., Any] | None = None,
    batch_size: int = 128,
    *,
    momentum: float | None = None,
    nesterov: bool | None = None,
    theory: str = "corrected",
    stats: str = "batch",
    batch: Tensor | None = None,
    parameters: Callable[[str, nn.Parameter], bool] | None = None,
) -> Prediction:
    """Predict lambda_max and eta* of a model at initialization by mean-field theory; the model is not run on data.

    Variances are read off the model as it stands: sigma_w^2 = fan_in mean(W^2), sigma_b^2 = mean(b^2), gamma and beta
    from the normalizers. Weights are taken as independent. A trained network's are not: its prediction is that of a
    random network with the same variances.

    Args:
        model: the network, in the mode in which it trains. Its forward takes one tensor of samples and gives
            (N, outputs) or (N,). Or an `ns.Setup`, which gives the loss and SGD's momentum where they are not handed
            in; its batches are not read.
        input_shape: shape of one sample, without the batch dimension. Inputs are taken as independent standard values.
        loss: "cross_entropy" (default without a Setup), or squared error: "half_mse" (1/2 sum over outputs, mean over
            samples), "half_sse" or "mse" (torch.nn.MSELoss); or a function loss(outputs, targets) with the Hessian of
            one of these, as torch.nn.CrossEntropyLoss(). With cross-entropy eta* is the limit of the local
            quadratic at initialization; networks with BatchNorm survive far above it.
        batch_size: number of samples m; the data modes and BatchNorm's statistics depend on it.
        momentum: momentum of gradient descent, by default 0 or the setup's.
        nesterov: whether the momentum is Nesterov's, by default not, or as in the setup.
        theory: "corrected" (default), or "paper" for the formulas as printed by Wei et al. 2019, for MLPs and CNNs of
            their form.
        stats: "batch" (default): BatchNorm's statistics are differentiated through, as in training; "frozen": they are
            held constant.
        batch: real inputs (m, *input_shape), whose overlaps replace those of independent values; sets batch_size.
        parameters: function (name, parameter) -> whether the parameter is trained; by default all that require
            gradients.

    Returns:
        The prediction, with the two modes, one row for each layer, warnings and notes.

    Raises:
        UnknownOperation: the model has an operation that the theory has no map for; the message names it.
        ValueError: an argument does not fit, or the prediction is not a finite number.

    Example:
        One linear layer on d independent inputs has lambda = (1 + sqrt(d / m))^2 up to its last digits.

        >>> found = predict(nn.Linear(50, 1, bias=False), (50,), "half_mse", batch_size=200)
        >>> round(found.lambda_max, 2), found.mode
        (2.25, 'data')
    """
    check_choice("theory", theory, THEORIES)
    check_choice("stats", stats, STATISTICS)
    if callable(loss):
        loss = named_loss(loss)
    elif loss is not None:
        check_choice("loss", loss, PREDICTED_LOSSES)
    if isinstance(model, Setup):
        given = from_setup(model, loss)
    else:
        given = FromSetup(model, loss or "cross_entropy", 0.0, False, "")
    model, loss = given.model, given.loss
    momentum = given.momentum if momentum is None else momentum
    nesterov = given.nesterov if nesterov is None else nesterov
    if isinstance(momentum, bool) or not isinstance(momentum, (int, float)):
        raise ValueError(f"momentum is a number; got {momentum!r}.")
    limit = momentum_limit(momentum, nesterov=nesterov)
    check_wrapper(model)
    inner, _, convention = unwrapped(model)
    check_model(inner)
    shape = _shape(input_shape)
    named = list(inner.named_parameters())
    trained = {name for name, p in named if p.requires_grad and (not parameters or parameters(name, p))}
    if not trained:
        raise ValueError(
            "The model has no trainable parameters, or parameters= selects none: there is no curvature to predict. Set "
            "requires_grad=True on some, or change parameters=."
        )
    x, images = input_field(shape, batch_size, batch, sum(p.ndim > 1 for _, p in named))
    # Tracing calls the model's forward, on copies of its tensors; the walk goes through the copies too.
    with restored(inner):
        chosen = {p for name, p in inner.named_parameters() if name in trained}
        walk = Walk(x.sites.batch, stats == "batch", lambda tensor: tensor is not None and tensor in chosen)
        for note in filter(None, (convention, given.note)):
            walk.remarks.note(note)
        out = walk_through(inner, x, walk, images if theory == "corrected" else None)
        out = reshape(walk, out, (1,)) if not out.shape else out
        _check_output(walk, out)
        scale = loss_factor(walk, loss, out)
        eigenvalues = as_printed(walk, x) if theory == "paper" else mode_eigenvalues(walk, x, out, images)
    walk.tape.forget()
    _check_finite(eigenvalues)
    common(walk, eigenvalues, out.shape[0], given=batch is not None, pairs=out.sites.each_sample)
    if images is not None and not out.sites.each_sample:
        lengths(walk, x.parts[0].length)
    if theory == "corrected":
        explosion(walk)
        widen_range(walk, eigenvalues)
    if theory == "paper":
        walk.remarks.note("The formulas as printed name no learning rate to start training with.")
    if loss_named(loss).kind == CROSS_ENTROPY:
        note_cross_entropy(walk, out, scale)
    top = scale * max(eigenvalues.mean, eigenvalues.data)
    if not top > 0:
        walk.remarks.warn(
            "No trained parameter changes the output: weights or gammas of zero lie in between. lambda_max is 0 and "
            "eta* infinite until these weights change. Measure again after some steps."
        )
    plain_name = f"gradient descent with momentum {momentum:g}" if momentum else "gradient descent"
    return Prediction(
        lambda_max=top,
        eta_star=limit.factor / top if top > 0 else math.inf,
        mode="mean" if eigenvalues.mean >= eigenvalues.data else "data",
        lambda_infinite=scale * max(eigenvalues.mean_infinite, eigenvalues.data_infinite),
        calibrated_range=walk.remarks.calibrated_range,
        mean_mode=scale * eigenvalues.mean,
        data_mode=scale * eigenvalues.data,
        rule=limit.rule,
        optimizer=plain_name + (" (Nesterov)" if nesterov else ""),
        loss=loss,
        loss_kind=loss_named(loss).kind,
        stats=stats,
        theory=theory,
        batch_size=x.sites.batch,
        outputs=out.shape[0],
        input_shape=shape,
        layers=_layers(walk, eigenvalues, scale),
        warnings=tuple(walk.remarks.warnings),
        notes=walk.remarks.all_notes(),
        settings={"momentum": momentum, "nesterov": nesterov, "batch": "given" if batch is not None else "independent"},
        environment=environment(),
        outside=walk.remarks.outside,
    )


def _shape(input_shape: Any) -> tuple[int, ...]:
    shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
    if not shape or not all(isinstance(n, int) and n > 0 for n in shape):
        raise ValueError(f"input_shape is that of one sample, of positive whole numbers; got {input_shape!r}.")
    if len(shape) > 3:
        raise ValueError(
            f"input_shape is (features,), (C, L) or (C, H, W), without the batch dimension; got {shape}. For inputs of "
            "other forms measure this network instead (ns.measure)."
        )
    return shape


def _check_finite(eigenvalues: ModeEigenvalues) -> None:
    numbers = (eigenvalues.mean, eigenvalues.mean_infinite, eigenvalues.data, eigenvalues.data_infinite)
    # Minus infinity stands for data modes that do not exist.
    if not all(math.isfinite(n) or n == -math.inf for n in numbers):
        raise ValueError(
            "The prediction is not a finite number: the signals or their gradients leave the range of double precision "
            "on the way through the layers. This happens in stacks of about 1,000 BatchNorm layers without skip "
            "connections. Predict fewer of the layers."
        )


def _check_output(walk: Walk, out: Field) -> None:
    if not walk.rows:
        raise ValueError("The model has no layer with parameters on the way from input to output.")
    if operation := walk.tape.nonlinear_after_weights(out):
        raise ValueError(
            f"The output comes out of {operation}, not out of a linear map. The theory assumes the same gradient at "
            f"the output for every sample. Predict the network without {operation}, or measure it with ns.measure."
        )
    if len(out.parts) > 1:
        raise ValueError(
            f"The output concatenates {len(out.parts)} tensors with different variances; predict needs a single linear "
            "map at the end. Predict a network that ends in one of these tensors, or measure it with ns.measure."
        )
    if not out.flat or out.sites.count > 1:
        raise ValueError(
            "predict needs one output vector a sample, (N, outputs); the model gives (N, "
            f"{', '.join(map(str, out.shape))}). Predict the part of the model that ends in a linear map, or measure "
            "the model with ns.measure."
        )


def _layers(walk: Walk, eigenvalues: ModeEigenvalues, scale: float) -> tuple[dict[str, float | str], ...]:
    rows: list[dict[str, float | str]] = []
    for row in walk.rows:
        mean, data = eigenvalues.shares.get(row, (0.0, 0.0))
        rows.append(
            {"layer": row.layer, "type": row.layer_type, **row.numbers, "mean": scale * mean, "data": scale * data}
        )
    return tuple(rows)
