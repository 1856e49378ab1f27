"""NS204: batches that differ from one another by more than chance."""

import math
from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.between import APART, calls_differ, excess
from normscope.diagnosis.look.costs import cost_of_batch_statistics
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

# With fewer than eight samples in a batch, chance alone gives larger ratios.
EXCESS, EXCESS_OF_FEW, FEW = 5.0, 8.0, 8


@rule("NS204", "batches-differ", needs=("batches",))
def batches_differ(look: Look) -> Iterator[Found]:
    """Batches differ from one another by more than chance: sorted data, or one domain a batch.

    F is the variance between the means of the batches over the one that drawing at random would give. It is 1 for
    shuffled batches. The evidence shows F; the sentence of the finding names its square root, a ratio of deviations.
    Real and generated images in calls of their own differ in the same way.

    Why it hurts:
        BatchNorm subtracts what the samples of a batch have in common, such as their class. Training sees samples
        without it; evaluation, with statistics of all batches, sees them with it. And the running statistics are a
        mixture that fits no batch.

    Threshold:
        A warning from F = 5 on (8 in batches of fewer than eight samples), the largest over layers. In the development
        half of NormFaults, clean trainings have at most 2.1, sorted ones at least 12. For calls within a pass: 5 % of
        the variance between their means.

    Switch off:
        Evaluation has the same batches.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        order = y.argsort()
        parts = [order[64 * n : 64 * n + 64] for n in torch.randperm(20).tolist()]
        setup = training(model, batches=[(x[part], y[part]) for part in parts])

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model)
    """
    trace = look.start.trace
    values = {name: excess(calls) for name, calls in trace.inputs.items()}
    limit = EXCESS if look.batch_size >= FEW else EXCESS_OF_FEW
    look.saw("NS204", "variance between batches / chance", values.values(), limit)
    found = {name: value for name, value in values.items() if math.isfinite(value) and value > limit}
    fix = "DataLoader(dataset, batch_size, shuffle=True)  # all kinds of samples in every batch"
    source = "https://github.com/soumith/ganhacks"
    if found:
        worst = max(found.values())
        yield Found(
            "warning",
            f"The means of batches in {layers_in_words(list(found))} differ {math.sqrt(worst):.1f} times as much as "
            "those of batches drawn at random.",
            Evidence("variance between batches / chance", worst, limit=limit),
            fix,
            list(found),
            cost_of_batch_statistics(look),
            source,
        )
        return
    apart = {name: calls_differ(calls) for name, calls in trace.inputs.items()}
    apart = {name: value for name, value in apart.items() if value > APART}
    if apart and look.setup.training_step is not None:
        worst = max(apart.values())
        yield Found(
            "warning",
            f"{layers_in_words(list(apart))} is called on different data in turn within a step, and normalizes each by "
            "itself.",
            Evidence("variance between calls / variance", worst, limit=APART),
            "scores = model(torch.cat([real, fake]))  # one call for all samples of a step",
            list(apart),
            cost_of_batch_statistics(look),
            source,
        )
