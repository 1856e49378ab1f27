"""A sweep on a Ray cluster that this process has joined: its workers train, this process keeps the journal.

    pip install '.[ray]'          # in a clone of the repository
    python examples/sweep_ray.py --out runs                     # a Ray of two workers, here
    python examples/sweep_ray.py --out runs --address auto      # the cluster of this machine

Some half a minute on two cores. Run it again: nothing is trained twice.
"""

import argparse
from pathlib import Path

import ray

import normscope as ns
from normscope.sweeping import Plan, grid


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--address", default="local")
    args = parser.parse_args()

    plan = Plan(
        model="MLP",
        arguments={"d_in": 64, "width": 32, "depth": 3, "norm": "batch"},
        data="digits",
        data_options={"seed": 0},
        learning_rates=grid(count=5, log10_from=-3, log10_to=1),
        axis="gamma",
        values=(0.5, 1.0),
        seeds=(0,),
        momentum=0.9,
        epochs=1,
        threads=1,
    )
    room = {"num_cpus": 2, "include_dashboard": False} if args.address == "local" else {}
    ray.init(address=args.address, log_to_driver=False, **room)
    try:
        diagram = ns.sweep(plan, args.out, device="cpu", engine="ray", group=5, quiet=True)
    finally:
        ray.shutdown()
    for edge in diagram.boundary():
        print(f"gamma {edge.value:g}: survives {edge.survives:.3g}, diverges from {edge.diverges:.3g}")
    print(diagram.report(args.out / "phase.html"))


if __name__ == "__main__":
    main()
