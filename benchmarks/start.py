"""Time of a command from the shell, as multiples of `python -c "import torch"` in the same rounds.

    OMP_NUM_THREADS=1 PYTHONPATH=tests/prediction python benchmarks/start.py [--out benchmarks/results/start-cpu.json]

- help: `normscope --help`, the aim being 0.3 s.
- preact-resnet18, resnet50: `normscope predict` of the network from its function to the last line, the aim being 2 s.

Seconds of the clock and of the processor, medians of rounds in which all take turns. Clock times are valid
on an idle machine only, so the load is stored beside them.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from normscope.results.environment import environment

FACTORIES = """
def preact_resnet18():
    import normscope as ns
    return ns.models.PreActResNet18(norm="batch")

def resnet50():
    from networks import ResNet50
    return ResNet50()
"""


def commands(file: Path) -> dict[str, list[str]]:
    normscope = [sys.executable, "-m", "normscope"]
    return {
        "import torch": [sys.executable, "-c", "import torch"],
        "help": [*normscope, "--help"],
        "preact-resnet18": [*normscope, "predict", f"{file}:preact_resnet18", "--input", "3,32,32"],
        "resnet50": [*normscope, "predict", f"{file}:resnet50", "--input", "3,224,224"],
    }


def seconds(command: list[str]) -> tuple[float, float]:
    """By the clock, and of the processor."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "nets.py"
        file.write_text(FACTORIES)
        runs = commands(file)
        for command in runs.values():
            seconds(command)
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
        for _ in range(args.rounds):
            for name, command in runs.items():
                times[name].append(seconds(command))
    results = {
        name: {
            "wall": statistics.median(wall for wall, _ in series),
            "fastest": min(wall for wall, _ in series),
            "processor": statistics.median(own for _, own in series),
        }
        for name, series in times.items()
    }
    for one in results.values():
        one["of_import_torch"] = one["processor"] / results["import torch"]["processor"]
    result = {"schema": 1, "environment": environment(), "load": load, "commands": results}
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if args.out is not None:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
