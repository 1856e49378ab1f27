"""NS116: a scale starts at zero where no skip connection carries the signal."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule


@rule("NS116", "zero-scale-without-skip", needs=("batches",))
def zero_scale_without_skip(look: Look) -> Iterator[Found]:
    """A scale starts at zero where no skip connection carries the signal.

    Residual networks set the last scale of each branch to zero, so that a block begins as the identity. Without a skip
    connection the block begins as zero.

    Why it hurts:
        The output does not depend on the input, and no gradient reaches the layers before: they do not train.

    Threshold:
        An error where a normalizer's scale is zero for all channels and the gradient of every weight before it is
        exactly zero.

    Switch off:
        Never.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        nn.init.zeros_(model[1].weight)
        setup = training(model)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    zero = [
        norm.name
        for norm in look.normalizers
        if norm.weight is not None and norm.weight.numel() and not bool(norm.weight.detach().any())
    ]
    if not zero:
        return
    order, gradients = look.start.trace.order, look.start.gradients
    cut = []
    for name in zero:
        if name not in order:
            continue
        earlier = set(order[: order.index(name)])
        norms = [gradients[key] for key in gradients if key.rpartition(".")[0] in earlier]
        if norms and not any(norms):
            cut.append(name)
    if cut:
        yield Found(
            "error",
            f"The scale of {layers_in_words(cut)} is zero and nothing leads around it: no gradient reaches the layers "
            "before.",
            Evidence("gradient norm of all weights before it", 0.0, limit=0.0),
            f"nn.init.ones_(model.{cut[0]}.weight)",
            cut,
            source="Goyal et al. 2017, section 5.1",
        )
