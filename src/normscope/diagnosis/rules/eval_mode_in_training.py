"""NS111: BatchNorm trains its scales in eval mode."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.costs import cost_of_moving, is_dear
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.rise import rise_of
from normscope.diagnosis.registry import Found, rule


@rule("NS111", "eval-mode-in-training")
def eval_mode_in_training(look: Look) -> Iterator[Found]:
    """BatchNorm is in eval mode in training, and its scales train.

    It happens where `model.eval()` is called before an evaluation and `model.train()` is not called after it, or where
    a frozen backbone is put in eval mode and its scales are forgotten.

    Why it hurts:
        Nothing normalizes while the weights move: activations drift away from the running statistics, which stay what
        they were. The layer is a scale and a shift, and the rate that a normalized network bears may be too large.

    Threshold:
        A warning where a layer with running statistics is in eval mode in training, asks for a gradient and is in the
        optimizer. An error where the loss rises besides, or where the moved scales cost at least 10 % of the metric or
        of the first loss. Eval mode with frozen scales is the proper way to freeze, and is clean.

    Switch off:
        Eval mode with trained scales is wanted.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        model[1].eval()
        setup = training(model)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        model[1].eval().requires_grad_(False)
        setup = training(model)
    """
    if look.setup.optimizer is None:
        return
    names, fresh = [], False
    for norm in look.over_batch:
        held = any(p.requires_grad and name in look.held for name, p in norm.parameters.items())
        if norm.tracks and held and look.rests_in_training(norm):
            names.append(norm.name)
            fresh = fresh or norm.fresh
    if not names:
        return
    first = " Its statistics are the first ones, mean 0 and variance 1, so nothing is normalized." if fresh else ""
    rise = rise_of(look) if look.batches else None
    risen = "" if rise is None else f" {rise.text}"
    cost = cost_of_moving(look, names) if rise is None else rise.price
    yield Found(
        "error" if rise is not None or is_dear(cost) else "warning",
        f"{layers_in_words(names)} is in eval mode in training while its scale and shift train.{first}{risen}",
        Evidence("layers in eval mode that train", len(names)),
        "model.train()  # before each epoch; or, to freeze: layer.eval().requires_grad_(False)",
        names,
        cost,
        "https://github.com/Lightning-AI/pytorch-lightning/issues/15062",
    )
