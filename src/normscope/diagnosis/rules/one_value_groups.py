"""NS108: statistics over one value."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.look.normalizers import values_per_statistic
from normscope.diagnosis.registry import Found, rule


@rule("NS108", "one-value-groups", needs=("batches",))
def one_value_groups(look: Look) -> Iterator[Found]:
    """A normalizer takes statistics over one value, so its output does not depend on its input.

    GroupNorm with as many groups as channels, InstanceNorm and LayerNorm of one channel do so where nothing is left of
    space. The value is its own mean, and the output is the shift.

    Why it hurts:
        No signal passes, forward or backward. With two values only the sign of their difference passes.

    Threshold:
        An error at one value, a note at two, for normalizers that subtract the mean. It is arithmetic.

    Switch off:
        Never.

    Fails:
        setup = training(nn.Sequential(nn.Linear(64, 32), nn.GroupNorm(32, 32), nn.ReLU(), nn.Linear(32, 10)))

    Passes:
        setup = training(nn.Sequential(nn.Linear(64, 32), nn.GroupNorm(4, 32), nn.ReLU(), nn.Linear(32, 10)))
    """
    shapes = look.start.trace.shapes
    for count, severity in ((1, "error"), (2, "note")):
        few = []
        for norm in look.normalizers:
            # A batch of one is the concern of other rules.
            shape = shapes.get(norm.name)
            if shape and not norm.over_batch and norm.centers and values_per_statistic(norm, shape) == count:
                few.append(norm.name)
        if few:
            left = "so its output is constant" if count == 1 else "so only the sign of their difference is left"
            yield Found(
                severity,
                f"{layers_in_words(few)} takes mean and variance over {count} value{'s' * (count > 1)}, {left}.",
                Evidence("values per statistic", count, limit=count),
                "nn.GroupNorm(num_groups=1, num_channels=C)  # or LayerNorm: statistics over more values",
                few,
                source="Wu and He 2018, Group Normalization",
            )
