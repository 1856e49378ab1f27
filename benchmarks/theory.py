"""Time of a prediction: a ResNet-50 at 224x224 after import, and time against depth.

    OMP_NUM_THREADS=1 PYTHONPATH=tests/prediction python benchmarks/theory.py [--out benchmarks/results/theory-cpu.json]

- resnet50: seconds of a call after import, the first in the process and the median of later ones, in wall-clock and in
  processor time; the share of tracing; and as a multiple of one forward pass of one image through the same network.
- depth: seconds of LayerNorm MLPs of 2 to 2,000 layers, and the slope of log time against log depth from 20 on: 1 is
  linear.
- export: seconds where torch.fx cannot trace the network and torch.export reads it.
"""

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from networks import ResNet50
from torch import Tensor, fx, nn

import normscope as ns
from normscope.results.environment import environment

DEPTHS = (2, 20, 200, 2000)


class Asserting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = ns.models.MLP(20, 5, width=40, norm="batch")

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[0] > 0
        y: Tensor = self.inner(x)
        return y


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    wall, own = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - own


def resnet50(rounds: int) -> dict[str, float]:
    net = ResNet50()
    image = torch.randn(2, 3, 224, 224)
    predict = ns.predict
    first = seconds(lambda: predict(net, (3, 224, 224), "half_mse"))
    later = [seconds(lambda: predict(net, (3, 224, 224), "half_mse")) for _ in range(rounds)]
    with torch.no_grad():
        passes = [seconds(lambda: net(image))[0] / 2 for _ in range(3)]
    return {
        "first": first[0],
        "later": statistics.median(wall for wall, _ in later),
        "later_fastest": min(wall for wall, _ in later),
        "later_processor": statistics.median(own for _, own in later),
        "trace": statistics.median(seconds(lambda: fx.symbolic_trace(net))[0] for _ in range(rounds)),
        "forward_passes": statistics.median(wall for wall, _ in later) / statistics.median(passes),
    }


def depth(rounds: int) -> dict[str, object]:
    times = {}
    for layers in DEPTHS:
        net = ns.models.MLP(30, 5, width=30, depth=layers, norm="layer")
        times[layers] = min(seconds(lambda net=net: ns.predict(net, (30,), "half_mse"))[1] for _ in range(rounds))
    deep = [layers for layers in DEPTHS if layers >= 20]
    slope = statistics.linear_regression([math.log(n) for n in deep], [math.log(times[n]) for n in deep]).slope
    return {"seconds": {str(n): value for n, value in times.items()}, "slope": slope}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    result = {
        "schema": 1,
        "environment": environment(),
        "load": load,
        "resnet50": resnet50(args.rounds),
        "depth": depth(1),
        "export": seconds(lambda: ns.predict(Asserting(), (20,), "half_mse"))[0],
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
