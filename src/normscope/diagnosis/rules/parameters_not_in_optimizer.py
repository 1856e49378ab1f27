"""NS110: the optimizer does not hold parameters of normalizers."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule


@rule("NS110", "parameters-not-in-optimizer", needs=("optimizer",))
def parameters_not_in_optimizer(look: Look) -> Iterator[Found]:
    """The optimizer does not hold parameters of normalizers that are meant to train.

    It happens where the optimizer is built before normalizers are put in or replaced, and where groups of parameters
    are chosen by name or by rank and one kind is forgotten.

    Why it hurts:
        Scales and shifts stay at one and zero while their gradients are computed for nothing.

    Threshold:
        A warning where a parameter asks for a gradient, is not in the optimizer, and the weights beside it are. Where
        the weights beside it are not trained either, a part of the network was left out on purpose.

    Switch off:
        The parameters are trained by another optimizer.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.SGD([p for p in model.parameters() if p.ndim > 1], lr=0.1))

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    """
    forgotten, count, frozen = [], 0, []
    for norm in look.normalizers:
        beside = look.weights_beside(norm)
        trained = any(name in look.held and look.parameters[name].requires_grad for name in beside)
        own = norm.parameters
        left = [name for name, p in own.items() if p.requires_grad and name not in look.held]
        if left and trained:
            forgotten.append(norm.name)
            count += len(left)
        if trained and own and all(not p.requires_grad and name in look.held for name, p in own.items()):
            frozen.append(norm.name)
    fix = "optimizer = torch.optim.SGD(model.parameters(), lr=...)  # after the last change of the model"
    if forgotten:
        yield Found(
            "warning",
            f"The optimizer does not hold the parameters of {layers_in_words(forgotten)}, so they never train.",
            Evidence("parameters of normalizers outside the optimizer", count),
            fix,
            forgotten,
        )
    if frozen:
        yield Found(
            "note",
            f"The optimizer holds the parameters of {layers_in_words(frozen)}, which ask for no gradient.",
            Evidence("frozen normalizers in the optimizer", len(frozen)),
            "for p in layer.parameters(): p.requires_grad_(True)  # or leave them out of the optimizer",
            frozen,
        )
