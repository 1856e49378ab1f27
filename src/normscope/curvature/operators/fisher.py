r"""The Fisher matrix of the outputs: exact where it is the loss's own second derivative, else sampled.

    F = sum_n w_n E_{y ~ p(.|f_n)} [ g_n g_n^T ],   g_n = grad_theta -log p(y | f_n) = J_n^T s_n(y)   =   J^T B J
    B_n = w_n E[s_n s_n^T],   sampled with K draws:  B_n = w_n / K sum_k s_n(y_k) s_n(y_k)^T

w_n is the weight of a term in the loss (1/N under a mean). With the loss as -log p:

    squared error       p normal          s = sqrt(h) noise, h the loss's second derivative     B = d^2 l/df^2
    cross-entropy       p = softmax(f)    s = p - onehot(y)                                     B = d^2 l/df^2
    binary, with logits p = sigmoid(f)    s = p - y                                             B = d^2 l/df^2
    nll_loss            p = exp(f)        s = -onehot(y)                                        B = w diag(p)

For the first three F is the generalized Gauss-Newton matrix. The nll_loss is linear in its outputs: its Gauss-Newton
matrix is zero, and F is that of cross-entropy before the log-softmax. Under batch statistics f_n depends on the whole
batch. The labels stay independent given the outputs, so the formula holds with J_n the derivative through them.

The largest eigenvalue of a sampled F is biased upwards (a maximum of a noisy matrix); its standard error is that of
v^T F v at the vector found. Sources: arXiv 1412.1193, Section 9; arXiv 1905.12558 for sampled against empirical.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.losses.known_losses import BINARY, LOG_LABELS, NORMAL, known_loss


def distribution(loss_fn: Callable[..., Any]) -> str | None:
    """The distribution of y if the loss is -log p(y | f); None where it is none known here (weights, smoothing).

    Example:
        >>> distribution(F.cross_entropy), distribution(torch.nn.CrossEntropyLoss(label_smoothing=0.1))
        ('labels', None)
    """
    facts = known_loss(loss_fn)
    weighted = any(getattr(loss_fn, name, None) is not None for name in ("weight", "pos_weight"))
    return None if facts is None or weighted or getattr(loss_fn, "label_smoothing", None) else facts.distribution


@dataclass(frozen=True)
class FisherOfOutputs:
    """The Fisher matrix B of the outputs, by scores of drawn labels or by its diagonal.

    Attributes:
        scores: the scores, of shape (K, *outputs) for K draws; None where B is exact.
        dims: dimensions of the scores that one term's inner product goes over.
        diagonal: the diagonal of an exact B, else None.
    """

    scores: Tensor | None
    dims: tuple[int, ...]
    diagonal: Tensor | None = None

    def product(self, t: Tensor) -> Tensor:
        if self.scores is None:
            assert self.diagonal is not None
            return self.diagonal * t
        return (self._components(t) * self.scores).mean(0)

    def _components(self, t: Tensor) -> Tensor:
        assert self.scores is not None
        terms = self.scores * t
        # An empty `dims` would sum over all of them.
        return terms.sum(self.dims, keepdim=True) if self.dims else terms

    def error(self, t: Tensor) -> float:
        """Standard error of t^T B t: 0 for an exact B, nan for a single draw."""
        if self.scores is None:
            return 0.0
        forms = self._components(t).square().flatten(1).sum(1, dtype=torch.float64)
        return float(forms.std() / math.sqrt(len(forms))) if len(forms) > 1 else math.nan


def fisher_of_outputs(
    loss_fn: Callable[..., Any], output: Tensor, target: Any, *, label_draws: int, seed: int
) -> FisherOfOutputs | None:
    """B at `output`, by `label_draws` labels for each term, or exact with 0; None where it is the output Hessian."""
    kind = distribution(loss_fn)
    if kind == LOG_LABELS and not label_draws:
        return FisherOfOutputs(None, (), _weights(loss_fn, output, target) * output.exp())
    if not label_draws:
        return None
    if label_draws < 0:
        raise ValueError(f"label_draws counts labels drawn for each term, 0 for the exact matrix; got {label_draws}.")
    if kind is None:
        raise ValueError(
            "A sampled Fisher matrix needs a distribution to draw from, and this loss is none known here: there is "
            "one for squared error, cross-entropy, binary cross-entropy with logits and nll_loss, without class "
            "weights or smoothing. Leave label_draws= out to go through the loss's own second derivative."
        )
    generator = torch.Generator(output.device).manual_seed(seed)
    if kind == NORMAL:
        noise = torch.randn((label_draws, *output.shape), generator=generator, device=output.device, dtype=output.dtype)
        return FisherOfOutputs(noise * _squared_rate(loss_fn, output) ** 0.5, tuple(range(2, output.ndim + 1)))
    root = _weights(loss_fn, output, target).sqrt()
    if kind == BINARY:
        p = output.sigmoid()
        drawn = torch.bernoulli(p.expand(label_draws, *p.shape), generator=generator)
        # Every output is a term of its own.
        return FisherOfOutputs((p - drawn) * root, ())
    p = output.exp() if kind == LOG_LABELS else output.softmax(1)
    rows = p.movedim(1, -1).reshape(-1, p.shape[1])
    labels = torch.multinomial(rows, label_draws, replacement=True, generator=generator)
    one_hot = F.one_hot(labels.T, p.shape[1]).to(p.dtype).view(label_draws, *p.movedim(1, -1).shape).movedim(-1, 2)
    return FisherOfOutputs(((0 if kind == LOG_LABELS else p) - one_hot) * root, (2,))


def _squared_rate(loss_fn: Callable[..., Any], output: Tensor) -> float:
    """The second derivative of a squared error by each output."""
    if getattr(loss_fn, "reduction", "mean") == "sum":
        return 2.0
    facts, samples = known_loss(loss_fn), len(output) if output.ndim else 1
    assert facts is not None
    assert facts.over_half_mse is not None
    return facts.over_half_mse(samples, output.numel() // samples) / samples


def _weights(loss_fn: Callable[..., Any], output: Tensor, target: Any) -> Tensor:
    """The weight of each term, shaped to broadcast against the outputs. Terms with an ignored target have weight 0."""
    if distribution(loss_fn) == BINARY:
        terms = torch.ones_like(output)
    else:
        terms = torch.ones_like(output[:, :1])
        if not target.is_floating_point():
            terms = (target != getattr(loss_fn, "ignore_index", -100)).to(output.dtype).view(terms.shape)
    return terms if getattr(loss_fn, "reduction", "mean") == "sum" else terms / terms.sum()
