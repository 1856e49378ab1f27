"""Train a copy of a setup for some steps, with the batch statistics of its BatchNorm layers on the way."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

from normscope.diagnosis.batch_statistics import Record, recording, tracking_layers
from normscope.diagnosis.look.passes import trained
from normscope.setup import Setup

# A loss above this multiple of the first one ends the training, as in `normscope.train`.
_EXPLODES = 1e6


def advance(copy: Setup, batches: Sequence[Any], steps: int) -> Record:
    """Train a copy of a setup in place for `steps` steps; returns the batch statistics of all calls in these steps.

    Layers of a training model that are in eval mode, as a frozen BatchNorm, stay there.

    Args:
        copy: a setup with an optimizer; its model and optimizer move.
        batches: training batches; they come again where they end.
    """
    if not copy.model.training:
        copy.model.train()
    with recording(tracking_layers(copy.model)) as record:
        trained(copy, itertools.cycle(batches), steps, deadline=math.inf, explode=_EXPLODES)
    return record
