"""On a GPU: which networks train as stacks, whether members equal networks trained alone, and what a full GPU does.

    python sweep_on_gpu.py           # or with words that are in the names of cases

Needs torch alone, no test runner; prints a line a case and fails at the end if one has failed. The tests call the
same functions.
"""

import sys
import tempfile
import time

import numpy as np
import sweep_plans
import torch

import normscope as ns
from normscope.sweeping.trainer import Trainer
from normscope.sweeping.unstacked import train_alone

SMALL = {"in_channels": 1, "size": 8, "channels": [6, 8], "padding": 1}
CASES = {
    "mlp": {},
    "cnn": {"model": "CNN", "arguments": SMALL | {"norm": "batch"}},
    "group": {"model": "CNN", "arguments": SMALL | {"norm": "group"}},
    "resnet": {"model": "PreActResNet18", "arguments": {"in_channels": 1, "width": 4, "norm": "batch"}},
    "vgg11": {"model": "sweep_plans:vgg", "arguments": {}},
    "dropout": {"model": "sweep_plans:with_dropout", "arguments": {"p": 0.3}, "axis": "weight_decay"},
}
COMPILED = ("mlp", "cnn")


def plan(name, **change):
    start = {"learning_rates": (1e-3, 3e-3), "values": (0.5, 1.0), "epochs": 1, "dtype": "float64"}
    return sweep_plans.plan(**start | CASES[name] | change)


def furthest(one, other):
    """Largest relative difference of the curves of outcomes, pair by pair."""
    curves = [[(*found.train_loss, *found.test_loss) for found in found_by] for found_by in (one, other)]
    mine, theirs = (np.array(found) for found in curves)
    assert (np.isnan(mine) == np.isnan(theirs)).all()
    return float(np.nanmax(np.abs(mine - theirs) / np.abs(theirs)))


def members_against_alone(name, device="cuda"):
    """Stacked, and equal to networks trained alone in float64."""
    trainer = Trainer(plan(name), device=device)
    assert (trainer.mode, trainer.note) == ("stacked", ""), f"{trainer.mode}: {trainer.note}"
    (stacked,) = trainer.train(trainer.plan.cells())
    apart = furthest(stacked, [train_alone(trainer, found.cell, "", lambda done: None) for found in stacked])
    assert apart < 1e-8, f"members differ from networks alone by {apart:g}"
    return f"stacked, {apart:.1e} from networks trained alone"


def compiled_against_eager(name, device="cuda"):
    """Equal in float64, with members that diverge."""
    change = {"learning_rates": (1e-3, 1e3)}
    eager, compiled = (
        next(iter(Trainer(one, device=device).train(one.cells())))
        for one in (plan(name, **change, compile=how) for how in ("never", "always"))
    )
    assert all(found.environment["compiled"] for found in compiled)
    assert [found.diverged_at for found in eager] == [found.diverged_at for found in compiled]
    assert {found.survived for found in eager} == {True, False}
    apart = furthest(compiled, eager)
    assert apart < 1e-7, f"compiled differ from eager members by {apart:g}"
    return f"compiled, {apart:.1e} from eager"


def with_little_memory():
    """Groups that the GPU's allocator refuses are halved; the sweep completes."""
    asked = 64
    wide = plan(
        "mlp",
        learning_rates=ns.sweeping.grid(count=16, log10_from=-4, log10_to=-2),
        dtype="float32",
        compile="never",
        arguments={"d_in": 64, "width": 1000, "depth": 4, "norm": "batch"},
    )
    whole = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, 1.5 * 2**30 / whole))
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = ns.sweep(wide, folder, device="cuda", group=asked, quiet=True)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    groups = sorted({one.environment["group"] for one in found.outcomes})
    assert len(found.outcomes) == len(wide.cells()) == asked
    assert max(groups) < asked, f"groups of {groups} in 1.5 GiB"
    return f"asked for {asked} members at once, trained in groups of {groups}"


def main():
    cases = [(f"{name} against alone", lambda name=name: members_against_alone(name)) for name in CASES]
    cases += [("out of memory", with_little_memory)]
    cases += [(f"{name} compiled", lambda name=name: compiled_against_eager(name)) for name in COMPILED]
    failed = 0
    for name, case in cases:
        if sys.argv[1:] and not any(word in name for word in sys.argv[1:]):
            continue
        started = time.perf_counter()
        try:
            said = case()
        except Exception as error:
            failed += 1
            said = f"FAILED {type(error).__name__}: {error}"
        print(f"{name:>22}: {said} ({time.perf_counter() - started:.1f} s)", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
