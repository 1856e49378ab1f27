"""NS203: evaluation data of another distribution than the training data."""

from collections.abc import Iterator

from normscope.diagnosis.finding import Evidence
from normscope.diagnosis.look.costs import cost_of_shift
from normscope.diagnosis.look.inputs import input_shift
from normscope.diagnosis.look.look import Look
from normscope.diagnosis.registry import Found, rule

SHIFT = 0.3


@rule("NS203", "shifted-evaluation-data", needs=("batches", "eval_batches"))
def shifted_evaluation_data(look: Look) -> Iterator[Found]:
    """Evaluation data have another distribution than the training data whose statistics normalize them.

    It happens where the preprocessing of training and evaluation differs, and where the evaluation comes from another
    domain.

    Why it hurts:
        The running statistics of training do not center and scale the activations of evaluation data. A network
        without BatchNorm suffers too, by its weights.

    Threshold:
        The distance of two sets of inputs is the largest of the mean over channels of |difference of means| /
        deviation, of |logarithm of the ratio of deviations|, and of the mean over 4 x 4 blocks of places of images of
        |difference of means| / deviation beyond chance. A warning above 0.3. Channels are those of images; features are
        put together in four blocks, so that single features count little. In the development half of NormFaults, clean
        trainings have at most 0.05, faults at least 5. With a training_step the batches are not what the network sees,
        and the rule says nothing.

    Switch off:
        The evaluation is of another domain on purpose.

    Fails:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, eval_batches=[(16 * a, b) for a, b in batches[:4]])

    Passes:
        model = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))
        setup = training(model, eval_batches=batches[:4])
    """
    shift = input_shift(look)
    if shift is None:
        return
    look.saw("NS203", "distance of evaluation inputs to training inputs", [shift.distance], SHIFT)
    if shift.distance > SHIFT:
        yield Found(
            "warning",
            f"Evaluation inputs have mean {shift.mean_eval:.3g} and deviation {shift.deviation_eval:.3g}, training "
            f"inputs {shift.mean:.3g} and {shift.deviation:.3g}.",
            Evidence("distance of evaluation inputs to training inputs", shift.distance, limit=SHIFT),
            "eval_set.transform = train_set.transform  # the same preprocessing; or statistics of the new domain:\n"
            "ns.norms.use_population_statistics(model, eval_batches)",
            cost=cost_of_shift(look),
            source="Li et al. 2016, Adaptive Batch Normalization",
        )
