"""NS101: BatchNorm's momentum follows another framework's convention."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Cost, Evidence, layers_in_words
from normscope.diagnosis.look.costs import cost_of_statistics
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

WARNED, NOTED = 0.7, 0.5


@rule("NS101", "momentum-inverted")
def momentum_inverted(look: Look) -> Iterator[Found]:
    """BatchNorm's momentum is so large that the running statistics are those of the last batch.

    In torch, momentum is the weight of the new batch: `running = (1 - momentum) * running + momentum * batch`. Keras,
    TensorFlow and Flax call the weight of the old value momentum, so their 0.9 or 0.99 is torch's 0.1 or 0.01.

    Why it hurts:
        The running statistics average over (2 - momentum) / momentum batches: 1.2 at 0.9. Evaluation normalizes by the
        noise of the last training batch, and results change from one evaluation to the next.

    Threshold:
        A warning from 0.7 on, where fewer than two batches are averaged; a note from 0.5 on, three batches. Both are
        arithmetic. Layers whose statistics do not move in training are left out.

    Switch off:
        The statistics are computed again before every evaluation, by `ns.norms.use_population_statistics` for example.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.99), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32, momentum=0.01), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    moving = [norm for norm in look.over_batch if norm.tracks and norm.layer.training]
    large = [norm for norm in moving if norm.momentum is not None and norm.momentum >= NOTED]
    if not large:
        return
    worst = max(norm.momentum or 0.0 for norm in large)
    names = [norm.name for norm in large]
    severity = "warning" if worst >= WARNED else "note"
    yield Found(
        severity,
        f"The running statistics of {layers_in_words(names)} average over {(2 - worst) / worst:.1f} batches, since "
        f"momentum is the weight of the new batch and is {worst:g}.",
        Evidence("momentum", worst, limit=WARNED if severity == "warning" else NOTED),
        "for m in model.modules():\n    if isinstance(m, nn.modules.batchnorm._BatchNorm): m.momentum = 1 - m.momentum"
        + f"  # {max(1 - worst, 0.01):.2g}",
        names,
        cost_of_statistics(look) if severity == "warning" else Cost(),
        "https://github.com/Cadene/pretrained-models.pytorch/issues/5",
    )
