"""NS113: running statistics that move between frozen parameters."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words, names_as_code
from normscope.diagnosis.look.costs import cost_of_moving, is_dear
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.normalizers import Normalizer
from normscope.diagnosis.look.passes import NotLooked
from normscope.diagnosis.registry import Found, rule


@rule("NS113", "statistics-move-in-frozen-backbone", needs=("optimizer",))
def statistics_move_in_frozen_backbone(look: Look) -> Iterator[Found]:
    """Parameters are frozen, and the running statistics between them still follow the new data.

    `requires_grad_(False)` freezes parameters, not buffers. A BatchNorm in train mode normalizes by the new batches and
    moves its statistics towards them.

    Why it hurts:
        The backbone computes another function than the one that was frozen, and another task that uses it breaks.

    Threshold:
        A warning where a layer in train mode with running statistics lies between weights that are frozen, and has no
        trained parameter itself. That is so where all weights of the module around it are frozen, or where its scales
        and all parameters that are called before it are frozen, as in the first layers of a flat network. An error
        where that costs at least 10 % of the metric or of the first loss. Weights count as frozen if they ask for no
        gradient or are not in the optimizer, and did not move in a short training: a momentum encoder moves. The rule
        follows from the definition of frozen; the 10 % are a choice.

    Switch off:
        The statistics are to follow the new data, as in adaptation to another domain.

    Fails:
        backbone = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()).requires_grad_(False)
        setup = training(nn.Sequential(backbone, nn.Linear(32, 10)))

    Passes:
        backbone = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()).requires_grad_(False)
        backbone.eval()
        setup = training(nn.Sequential(backbone, nn.Linear(32, 10)))
    """
    if not any(parameter.requires_grad for parameter in look.parameters.values()):
        return
    names = []
    for norm in look.over_batch:
        if norm.tracks and not look.rests_in_training(norm) and _is_frozen(look, norm):
            names.append(norm.name)
    if names:
        cost = cost_of_moving(look, names)
        yield Found(
            "error" if is_dear(cost) else "warning",
            f"The running statistics of {layers_in_words(names)} move in training, and the parameters around are "
            "frozen.",
            Evidence("moving normalizers between frozen weights", len(names)),
            f"for name in {names_as_code(names)}:\n    model.get_submodule(name).eval()  # after every model.train()",
            names,
            cost,
            source="https://github.com/Lightning-AI/pytorch-lightning/issues/15062",
        )


def _is_frozen(look: Look, norm: Normalizer) -> bool:
    """Whether a normalizer and the weights around it, or all parameters that are called before it, are frozen."""
    if not all(look.is_frozen(name) for name in norm.parameters):
        return False
    beside = look.weights_beside(norm)
    if beside and all(look.is_frozen(name) for name in beside):
        return True
    try:
        order = look.start.trace.order
    except NotLooked:
        return False
    earlier = order[: order.index(norm.name)] if norm.name in order else []
    before = [name for name in look.parameters if name.rpartition(".")[0] in earlier]
    return bool(norm.parameters and before) and all(look.is_frozen(name) for name in before)
