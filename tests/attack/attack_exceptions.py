"""Exceptions from what is the user's (forwards, hooks, losses, backward hooks) at random calls: any trace?

python tests/attack/attack_exceptions.py --count 20000
"""

import argparse
import json
import random
import time
from collections import Counter

from torch.nn import functional as F
from victims import VERBS, differences, model_state, networks, process_state, quiet

SHARES = {"light": 10, "batch": 4, "frozen": 4, "running": 3, "full": 1, "bounds": 1}
KINDS = (ValueError, RuntimeError, NotImplementedError, AttributeError, KeyboardInterrupt, SystemExit, GeneratorExit)


class Planted:
    """Raises at the call of a number drawn before, whoever calls it."""

    left, kind, fired = 0, ValueError, False

    def __call__(self, *_):
        self.left -= 1
        if self.left == 0:
            self.fired = True
            raise self.kind("planted")


def attack(count, seed=0, seconds=1e9):
    draw, planted = random.Random(seed), Planted()
    found = networks()
    for model, _, _ in found:
        for module in model.modules():
            module.register_forward_pre_hook(lambda module, args: planted())
            module.register_forward_hook(_watching(planted))
    models = [model_state(model, optimizer) for model, _, optimizer in found]

    def loss(output, target):
        planted()
        value = F.cross_entropy(output, target)
        planted()
        return value

    calls = {}
    for name, verb in VERBS.items():
        for number, victim in enumerate(found):
            planted.left = 0
            verb(*victim, loss)
            calls[name, number] = -planted.left
    raised, kinds, traces = 0, Counter(), []
    names = [name for name, share in SHARES.items() for _ in range(share)]
    end = time.monotonic() + seconds
    while raised < count and time.monotonic() < end:
        name, number = draw.choice(names), draw.randrange(len(found))
        before = process_state()
        planted.left, planted.kind, planted.fired = draw.randint(1, calls[name, number]), draw.choice(KINDS), False
        try:
            VERBS[name](*found[number], loss)
        except BaseException as error:
            if not planted.fired:
                raise RuntimeError("not the planted one") from error
        raised += planted.fired
        kinds[name] += planted.fired
        wrong = differences(before, process_state())
        if model_state(found[number][0], found[number][2]) != models[number]:
            wrong.append("model")
        if wrong:
            traces.append((name, number, planted.kind.__name__, wrong))
            if len(traces) > 20:
                break
    return {"exceptions": raised, "traces": len(traces), "verbs": dict(kinds), "first": traces[:5]}


def _watching(planted):
    def hook(module, args, output):
        planted()
        if output.requires_grad:
            output.register_hook(lambda gradient: planted())

    return hook


def _main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="Stop after this time.")
    options = parser.parse_args()
    quiet()
    found = attack(options.count, options.seed, options.seconds)
    print(f"exceptions: {found['exceptions']}, traces: {found['traces']}")
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
