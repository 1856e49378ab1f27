"""NS106: a normalizer right after a normalizer."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence, layers_in_words
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule


@rule("NS106", "normalizer-after-normalizer", needs=("batches",))
def normalizer_after_normalizer(look: Look) -> Iterator[Found]:
    """A normalizer follows a normalizer with no layer between them.

    Why it hurts:
        The second one undoes the scale of the first, so one of them only costs time. It is a note.

    Threshold:
        None: the input of the second is the output of the first, or it is not.

    Switch off:
        The two normalize over different dimensions on purpose.

    Fails:
        norms = nn.BatchNorm1d(32), nn.LayerNorm(32)
        setup = training(nn.Sequential(nn.Linear(64, 32), *norms, nn.ReLU(), nn.Linear(32, 10)))

    Passes:
        setup = training(nn.Sequential(nn.Linear(64, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 10)))
    """
    trace, names = look.start.trace, {norm.name for norm in look.normalizers}
    pairs = [(source, name) for name, source in trace.before.items() if name in names and source in names]
    if pairs:
        first, second = pairs[0]
        yield Found(
            "note",
            f"{layers_in_words([second])} normalizes the output of the normalizer {layers_in_words([first])}.",
            Evidence("pairs of normalizers", len(pairs)),
            f"model.{second} = nn.Identity()",
            [name for pair in pairs for name in pair],
        )
