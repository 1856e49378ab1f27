"""The Monitor's numbers in a Weights & Biases run, beside your own.

    pip install '.[wandb]'          # in a clone of the repository
    python examples/monitor_wandb.py                      # offline, below ./wandb; `wandb sync` sends it
    python examples/monitor_wandb.py --mode online        # once you are logged in

normscope's numbers have an axis of their own, normscope/step. A few seconds on a CPU.
"""

import argparse

import torch
import wandb
from torch.nn import functional as F

import normscope as ns
from normscope.monitor import WandB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mode", default="offline", choices=("offline", "online"))
    args = parser.parse_args()

    digits = ns.data.digits(seed=0)
    model = ns.models.MLP(64, 10, width=50, norm="batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with wandb.init(project="normscope", mode=args.mode) as run:
        monitor = ns.Monitor(model, F.cross_entropy, every=10, budget=None, sinks=[WandB(run)])
        for x, y in ns.data.batches(digits.x_train, digits.y_train, batch_size=128, seed=0, steps=30):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            monitor.step(x, y, optimizer)
            optimizer.step()
            run.log({"loss": loss.item()})
        monitor.close()
        print(run.dir)
    for verdict in monitor.verdicts:
        print("-", verdict)


if __name__ == "__main__":
    main()
