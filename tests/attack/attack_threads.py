"""Two threads that measure at once: is one of them ever wrong?

python tests/attack/attack_threads.py --count 200
"""

import argparse
import random
import threading

from torch.nn import functional as F
from victims import VERBS, differences, networks, process_state, quiet

NAMES = ("batch", "frozen", "running")


def attack(count, seed=0):
    """Pairs, those in which a thread found another number than alone or raised, and whether the process was changed."""
    draw = random.Random(seed)
    pairs = [networks(), networks()]
    expected = {(n, i): VERBS[n](*victim, F.cross_entropy) for n in NAMES for i, victim in enumerate(pairs[0])}
    before, wrong = process_state(), []
    for _ in range(count):
        asked = [(draw.choice(NAMES), draw.randrange(3)) for _ in pairs]
        found = {}
        start = threading.Barrier(2)

        def work(number, name, which, start=start, found=found):
            start.wait()
            try:
                found[number] = VERBS[name](*pairs[number][which], F.cross_entropy)
            except Exception as error:
                found[number] = repr(error)

        threads = [threading.Thread(target=work, args=(i, *one), daemon=True) for i, one in enumerate(asked)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        if any(found.get(i) != expected[one] for i, one in enumerate(asked)):
            wrong.append((asked, found, [expected[one] for one in asked]))
    changed = differences(before, process_state())
    return {
        "pairs": count,
        "wrong": len(wrong) + len(changed),
        "first": [str(w) for w in wrong[:3]],
        "changed": changed,
    }


def _main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    quiet()
    found = attack(options.count, options.seed)
    print(f"pairs of threads: {found['pairs']}, wrong: {found['wrong']}")
    print(found)


if __name__ == "__main__":
    _main()
