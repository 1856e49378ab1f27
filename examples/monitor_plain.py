"""The Monitor in a plain loop: a network on the digits, with 20 snapshots that leave no trace.

    python examples/monitor_plain.py --out monitor.jsonl

Prints one row for each snapshot and the verdicts; the file keeps every snapshot, also if the run is killed. A few
seconds on a CPU.
"""

import argparse
from pathlib import Path

import torch
from torch.nn import functional as F

import normscope as ns
from normscope.monitor import JSONL, frame_of, records_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("monitor.jsonl"))
    parser.add_argument("--norm", default="batch", help="batch, none, layer, ...")
    parser.add_argument("--lr", type=float, default=0.5)
    args = parser.parse_args()

    digits = ns.data.digits(seed=0)
    model = ns.models.MLP(64, 10, width=100, depth=6, norm=args.norm, init="glorot")
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    batches = ns.data.batches(digits.x_train, digits.y_train, batch_size=128, seed=0, steps=200)

    with ns.Monitor(model, F.cross_entropy, every=10, budget=None, sinks=[JSONL(args.out)]) as monitor:
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            monitor.step(x, y, optimizer)
            optimizer.step()

    columns = ["step", "loss", "loss_min", "loss_max", "beta", "beta_limit", "critical_step"]
    print(frame_of(records_of(args.out))[columns].to_string(index=False, float_format="%.3g"))
    for verdict in monitor.verdicts:
        print("-", verdict)


if __name__ == "__main__":
    main()
