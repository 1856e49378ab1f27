"""NS209: channels that give zero for every sample, and scales of zero."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.registry import Found, rule

SCALES, SILENT = 0.3, 0.7


@rule("NS209", "dead-channels", needs=("batches",))
def dead_channels(look: Look) -> Iterator[Found]:
    """Channels give zero for every sample, or have a scale of zero that cannot grow.

    Why it hurts:
        The network is narrower than it looks: a channel behind a ReLU that is zero for every sample gets no gradient
        and never comes back.

    Threshold:
        A warning where a normalizer has at least 30 % of its scales at zero but not all: zero for all channels is the
        start of a residual branch. Also where at least 70 % of the inputs of a layer are zero for every sample after a
        short training. In the development half of NormFaults, clean trainings have at most 10 %, the fault 98 %.

    Switch off:
        The network was pruned on purpose.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        with torch.no_grad():
            model[1].weight[4:] = 0
            model[1].bias[4:] = -0.1
        setup = training(model)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    scales = {}
    for norm in look.normalizers:
        if norm.weight is not None and norm.weight.numel() > 1:
            share = float((norm.weight.detach() == 0).double().mean())
            if SCALES <= share < 1:
                scales[norm.name] = share
    if scales:
        worst = max(scales.values())
        yield Found(
            "warning",
            f"{worst:.0%} of the scales of {layers_in_words(list(scales))} are zero.",
            Evidence("share of scales that are zero", worst, limit=SCALES),
            "for m in model.modules():\n    if 'Norm' in type(m).__name__: m.reset_parameters()",
            list(scales),
        )
        return
    try:
        silent = look.trained.trace.silent
    except NotLooked:
        silent = look.start.trace.silent
    shares = {name: float(zero.double().mean()) for name, zero in list(silent.items())[1:]}
    dead = {name: share for name, share in shares.items() if share >= SILENT}
    if dead:
        worst = max(dead.values())
        yield Found(
            "warning",
            f"{worst:.0%} of the inputs of {layers_in_words(list(dead))} are zero for every sample.",
            Evidence("share of inputs that are always zero", worst, limit=SILENT),
            "optimizer.param_groups[0]['lr'] /= 10  # and start anew, with normalizers before the activations",
            list(dead),
        )
