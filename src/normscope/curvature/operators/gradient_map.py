r"""The gradient as a linear map of the loss's slope by the outputs, so that one pass gives J^T u and J v both.

    dL/dtheta = J^T u  at  u = dl/df,      J v = d<J^T u, v>/du

The graph of u -> J^T u has no output of the forward in it, nor a normalizer that went into weights (`convolutions.py`),
which forward mode would make again for each product: in eval mode 16 ms for 29 (CNN at batch 256, two cores).
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normscope.curvature.autograd.user_functions import functions_of
from normscope.curvature.operators.statistics import over_the_batch

Gradients = Sequence[Tensor | None]


def goes_into_weights(model: nn.Module, stats: str) -> bool:
    """Whether each batch normalization of `model`, and there is one, is a scale and a shift in this reading.

    Of those with statistics of the batch the second derivative takes more passes than forward mode.
    """
    normed = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())
    return normed and not over_the_batch(model, stats)


def gradients_by_slope(
    loss: Tensor, output: Tensor, leaves: Sequence[Tensor]
) -> tuple[Gradients, Tensor | None] | None:
    """The loss's gradients by the leaves with their graph in u, and u: None where the loss does not read the output.

    None at all where the user has a say in the graph: a Function whose second derivative is zero for an output takes it
    out of J v and of B J v alike, and <J v, B J v> = <v, J^T B J v> all the same. And where a hook of the user's takes
    no graph, as one in numpy; what else is wrong, the plain pass says.
    """
    if functions_of(output.grad_fn):
        return None
    seen: list[Tensor] = []

    def cut(slope: Tensor) -> Tensor:
        seen.append(slope.detach().requires_grad_())
        return seen[-1]

    handle = output.register_hook(cut)
    try:
        found = torch.autograd.grad(loss, leaves, create_graph=True, allow_unused=True)
    except Exception:
        return None
    finally:
        handle.remove()
    return found, seen[0] if seen else None
