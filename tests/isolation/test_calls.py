"""Units whose forward is wrapped for a pass."""

import torch
from torch import nn

from normscope.isolation.module_calls import answering, units


def test_a_forward_that_was_put_on_the_module_itself_is_kept():
    """As accelerate does for mixed precision: it must run inside, and still be there for the next pass."""
    layer = nn.Linear(2, 2)
    plain = layer.forward

    def doubled(x):
        return 2 * plain(x)

    layer.forward = doubled
    x = torch.ones(1, 2)
    expected = layer(x)
    seen = []

    def answer(name, module, forward, args, kwargs):
        seen.append(name)
        return forward(*args, **kwargs)

    for _ in range(2):
        with answering(units(layer), answer):
            assert torch.equal(layer(x), expected)
        assert layer.forward is doubled
    assert seen == ["", ""]
