"""One model of the zoo in a process of its own: a line of JSON for each verb, on standard output.

Seconds are those of the processor, which a busy neighbour does not lengthen.

python benchmarks/zoo/one.py PACKAGE NAME SIZE [--verbs predict,measure]
"""

import argparse
import contextlib
import json
import os
import sys
import time
import warnings
from typing import Any

import stand_in
import torch

# Longest gradient, in seconds on one core, of a model that stays in the zoo.
SLOWEST = 1.5


def say(line: dict[str, Any]) -> None:
    from normscope.results import plain

    print(json.dumps(plain(line)), file=_OUT, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package")
    parser.add_argument("name")
    parser.add_argument("size")
    parser.add_argument("--verbs", default="predict,measure,monitor,swap,fold")
    args = parser.parse_args()
    if args.package not in ("transformers", "diffusers"):
        stand_in.install()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    from entries import Unavailable, entry
    from training import batches, loss_of, made
    from verbs import VERBS

    try:
        chosen = entry(args.package, args.name, args.size)
    except Unavailable as reason:
        say({"dropped": str(reason)})
        return
    model, batch = made(chosen), batches(chosen)[0]
    loss_of(chosen, model, batch).backward()
    started = time.process_time()
    loss_of(chosen, model, batch).backward()
    spent = time.process_time() - started
    parameters = sum(p.numel() for p in model.parameters())
    if spent > SLOWEST:
        say({"dropped": f"one gradient takes {spent:.1f} s on one core, more than {SLOWEST:g}"})
        return
    say({"parameters": parameters, "gradient": spent, "class": type(model).__name__})
    for verb in args.verbs.split(","):
        say({"begun": verb})
        started = time.process_time()
        found = VERBS[verb](chosen, args.package)
        say({"verb": verb, "found": found | {"seconds": time.process_time() - started}})
    say({"seconds": time.process_time()})


if __name__ == "__main__":
    # Output that models and libraries print goes to standard error.
    with os.fdopen(os.dup(1), "w") as _OUT, contextlib.redirect_stdout(sys.stderr):
        main()
