"""NS114: scales that train in a backbone that is frozen otherwise."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words, names_as_code
from normscope.diagnosis.look.costs import cost_of_moving, is_dear
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule


@rule("NS114", "scales-train-in-frozen-backbone", needs=("optimizer",))
def scales_train_in_frozen_backbone(look: Look) -> Iterator[Found]:
    """The normalizers of a backbone that is frozen otherwise still train their scales.

    It happens where the weights are frozen by their class or their rank: `isinstance(m, nn.Conv2d)`, `p.ndim > 1`.

    Why it hurts:
        The frozen weights no longer get the inputs for which they were trained, and the backbone is not the one that
        was meant to be kept.

    Threshold:
        A warning, or an error where it costs at least 10 % of the metric or of the first loss, where a normalizer's
        parameters train, those of the weights beside it do not, and other weights do. It is a note where normalizers
        are all that trains: that is a method of its own.

    Switch off:
        Training the scales beside a new head is wanted.

    Fails:
        backbone = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU())
        backbone[0].requires_grad_(False)
        setup = training(nn.Sequential(backbone, nn.Linear(32, 10)))

    Passes:
        backbone = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU()).requires_grad_(False)
        backbone.eval()
        setup = training(nn.Sequential(backbone, nn.Linear(32, 10)))
    """
    own = {name for norm in look.normalizers for name in norm.parameters}
    names = []
    for norm in look.normalizers:
        beside = look.weights_beside(norm)
        trains = any(p.requires_grad and name in look.held for name, p in norm.parameters.items())
        if trains and beside and all(look.is_frozen(name) for name in beside):
            names.append(norm.name)
    if names:
        cost = cost_of_moving(look, names)
        others = any(name not in own and not look.is_frozen(name) for name in look.parameters)
        yield Found(
            "note" if not others else "error" if is_dear(cost) else "warning",
            f"{layers_in_words(names)} trains its scale and shift between frozen weights.",
            Evidence("training normalizers between frozen weights", len(names)),
            f"for name in {names_as_code(names)}:\n    model.get_submodule(name).eval().requires_grad_(False)",
            names,
            cost,
            source="https://github.com/keras-team/keras/pull/9965",
        )
