"""VGG-16 on CIFAR-10 with and without BatchNorm, at the setting of "How Does Batch Normalization Help Optimization?".

    python examples/vgg_cifar10.py --out results/vgg16-cifar10.json

Plain SGD at lr 0.1, batch 128, 15,000 steps, no augmentation, Glorot weights. About four minutes on one large GPU;
`--width 0.25 --steps 1000` shows the same ordering on two CPU cores in four minutes too. Needs the data:
`normscope data fetch cifar10`.
"""

import argparse
import json
from pathlib import Path

import torch

import normscope as ns
from normscope.results import plain
from normscope.training import Training, accuracy


def run(norm: str, data: ns.data.Dataset, *, width: float, steps: int, seed: int) -> Training:
    model = ns.models.VGG(16, width=width, norm=norm, seed=seed).to(data.x_train.device)

    def evaluate(model: torch.nn.Module) -> dict[str, float]:
        return {
            "test_accuracy": accuracy(model, data.x_test, data.y_test),
            "train_accuracy": accuracy(model, data.x_train[:10_000], data.y_train[:10_000]),
        }

    return ns.train(
        model,
        ns.losses.cross_entropy,
        ns.data.batches(data.x_train, data.y_train, batch_size=128, seed=seed, steps=steps),
        torch.optim.SGD(model.parameters(), lr=0.1),
        seed=seed,
        evaluate=evaluate,
        every=1500,
        check_every=100,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--data-root", default=None)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    data = ns.data.cifar10(args.data_root).to("cuda" if torch.cuda.is_available() else "cpu")
    kept = []
    for seed in args.seeds:
        for norm in ("batch", "none"):
            training = run(norm, data, width=args.width, steps=args.steps, seed=seed)
            print(f"seed {seed}  {norm:>5}  {training.evaluations[-1]}  {training.seconds:.0f} s", flush=True)
            kept.append(
                {
                    "norm": norm,
                    "seed": seed,
                    "width": args.width,
                    "diverged_at": training.diverged_at,
                    "evaluations": training.evaluations,
                    "loss_every_100": training.losses[::100],
                    "settings": training.settings,
                    "environment": training.environment,
                }
            )
            args.out.write_text(json.dumps(plain({"kind": "trainings", "schema": 1, "runs": kept})) + "\n")


if __name__ == "__main__":
    main()
