"""Signals at random instants of a measurement, whose handler raises: how many leave a trace?

python tests/attack/attack_signals.py --count 20000
"""

import argparse
import json
import random
import signal
import time
from collections import Counter

from torch.nn import functional as F
from victims import VERBS, differences, model_state, networks, process_state, quiet

# A full look and bounds take ten times as long as the others.
SHARES = {"light": 10, "batch": 4, "frozen": 4, "running": 3, "full": 1, "bounds": 1}


class Struck(BaseException):
    """Raised by the handler."""


def _strike(number, frame):
    raise Struck


def attack(count, seed=0, seconds=1e9):
    """Signals that arrived inside, those that left a trace, and in what."""
    draw = random.Random(seed)
    found = networks()
    taken = dict.fromkeys(VERBS, 0.0)
    for name, verb in VERBS.items():
        for again in range(3):
            for number, victim in enumerate(found):
                started = time.perf_counter()
                verb(*victim, F.cross_entropy)
                if again:
                    taken[name, number] = min(taken.get((name, number), 1e9), time.perf_counter() - started)
    signal.signal(signal.SIGALRM, _strike)
    struck, kinds, traces = 0, Counter(), []
    names = [name for name, share in SHARES.items() for _ in range(share)]
    models = [model_state(model, optimizer) for model, _, optimizer in found]
    end = time.monotonic() + seconds
    while struck < count and time.monotonic() < end:
        name, number = draw.choice(names), draw.randrange(len(found))
        before = process_state()
        arrived = False
        try:
            signal.setitimer(signal.ITIMER_REAL, max(draw.uniform(0, 1.3 * taken[name, number]), 1e-5))
            VERBS[name](*found[number], F.cross_entropy)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except Struck:
            arrived = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not arrived:
            continue
        struck += 1
        kinds[name] += 1
        wrong = differences(before, process_state())
        if model_state(found[number][0], found[number][2]) != models[number]:
            wrong.append("model")
        if wrong:
            traces.append((name, number, wrong))
            if len(traces) > 20:
                break
    return {"signals": struck, "traces": len(traces), "verbs": dict(kinds), "first": traces[:5]}


def _main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="Stop after this time.")
    options = parser.parse_args()
    quiet()
    found = attack(options.count, options.seed, options.seconds)
    print(f"signals: {found['signals']}, traces: {found['traces']}")
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
