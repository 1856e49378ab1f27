"""NS105: a bias right before a normalizer that subtracts the mean."""

from collections.abc import Iterator

from torch import nn

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.trace import WEIGHT_LAYERS
from normscope.diagnosis.registry import Found, rule


@rule("NS105", "bias-before-normalizer", needs=("batches",))
def bias_before_normalizer(look: Look) -> Iterator[Found]:
    """A bias right before a normalizer that subtracts the mean does nothing.

    Why it hurts:
        It takes memory and time, and its gradient is rounding noise, which Adam turns into steps of full size. The
        result is the same without it, so this is a note.

    Threshold:
        None: the bias is there or not. LayerNorm over channels keeps what differs between the biases, so only
        normalizers with a mean of each channel count.

    Switch off:
        The weights come from a checkpoint that has the bias.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    trace = look.start.trace
    useless = []
    for norm in look.over_batch:
        source = trace.before.get(norm.name)
        layer = look.setup.model.get_submodule(source) if source else None
        live = norm.layer.training or not norm.tracks
        if live and norm.centers and isinstance(layer, WEIGHT_LAYERS) and layer.bias is not None:
            useless.append(source or "")
    if not useless:
        return
    layer = look.setup.model.get_submodule(useless[0])
    made = "nn.Linear" if isinstance(layer, nn.Linear) else f"nn.{type(layer).__name__}"
    yield Found(
        "note",
        f"The bias of {layers_in_words(useless)} is subtracted again by the normalizer right behind it.",
        Evidence("biases without effect", len(useless)),
        f"{made}(..., bias=False)",
        useless,
        source="Ioffe and Szegedy 2015, section 3.2",
    )
