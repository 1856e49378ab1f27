"""TensorBoard and Weights & Biases as they really are: what they wrote is read back and compared."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from normscope.monitor import Monitor, TensorBoard, WandB
from wandb_files import finished


def _watched(sinks, *, on_step=lambda: None, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"every": 1, "measure": "full", "budget": None, "on_error": "raise"}
    with Monitor(model, loss_fn, sinks=sinks, **options) as monitor:
        for _ in range(steps):
            x, y = torch.randn(8, 4), torch.randint(3, (8,))
            optimizer.zero_grad()
            loss_fn(model(x), y).backward()
            monitor.step(x, y, optimizer)
            optimizer.step()
            on_step()
    return monitor


@pytest.mark.slow
def test_tensorboard_holds_every_value_and_histogram(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monitor = _watched([TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path), size_guidance={"histograms": 0}).Reload()
    tags = events.Tags()
    frame, layers = monitor.frame(), monitor.layers()
    names = {f"normscope/{name}" for name in frame.columns if name != "step"}
    names |= {
        f"normscope/{row['layer']}/{name}"
        for _, row in layers.iterrows()
        for name in monitor.records[0].by_layer()[row["layer"]]
    }
    assert set(tags["scalars"]) == names
    for name in ("loss", "beta", "critical_step", "shift_max", "mean_drift"):
        found = events.Scalars(f"normscope/{name}")
        assert [event.step for event in found] == [0, 1, 2]
        assert [event.value for event in found] == pytest.approx(list(frame[name]), rel=1e-6, nan_ok=True)
    shift = layers.query("layer == '2'")["shift"]
    assert [e.value for e in events.Scalars("normscope/2/shift")] == pytest.approx(list(shift), rel=1e-6)
    assert set(tags["histograms"]) == {f"normscope/{layer}/activation" for layer in "012"}
    for record, event in zip(monitor.records, events.Histograms("normscope/1/activation"), strict=True):
        seen = record.results["activations"]
        (low, high), counts = seen.edges[1], seen.counts[1]
        histogram = event.histogram_value
        assert (event.step, histogram.min, histogram.max, histogram.num) == (record.step, low, high, 8)
        assert sum(histogram.bucket) == sum(counts) == 8
        width = (high - low) / len(counts)
        limits = [low + width * (i + 1) for i, count in enumerate(counts) if count]
        buckets = zip(histogram.bucket_limit, histogram.bucket, strict=True)
        assert [limit for limit, count in buckets if count] == pytest.approx(limits)
        assert [count for count in histogram.bucket if count] == [count for count in counts if count]


@pytest.mark.slow
def test_wandb_holds_every_value_and_its_step_counter_is_the_users(tmp_path):
    import wandb

    run = wandb.init(mode="offline", dir=tmp_path, settings=wandb.Settings(silent=True))
    steps = []

    def log():
        steps.append(run.step)
        run.log({"mine": len(steps)})

    try:
        monitor = _watched([WandB()], on_step=log)
        assert steps == [0, 1, 2]
    finally:
        run.finish()
    rows, config = [], {}
    for record in finished(tmp_path):
        kind = record.WhichOneof("record_type")
        if kind == "history":
            rows.append({item.key or item.nested_key[0]: item.value_json for item in record.history.item})
        elif kind == "config":
            config |= {item.key: item.value_json for item in record.config.update}
    values = [{key: json.loads(value) for key, value in row.items()} for row in rows]
    assert [row["mine"] for row in values] == [1, 2, 3]
    assert [row["_step"] for row in values] == [0, 1, 2]
    assert [row["normscope/step"] for row in values] == [0, 1, 2]
    frame = monitor.frame()
    for name in ("loss", "beta", "critical_step", "shift_max"):
        assert [float(row[f"normscope/{name}"]) for row in values] == pytest.approx(list(frame[name]))
    assert json.loads(config["normscope"])["measure"] == monitor.settings()["measure"]


def test_wandb_without_a_run_is_one_message():
    pytest.importorskip("wandb")
    with pytest.raises(ValueError, match=r"no active Weights & Biases run.* wandb.init\(\)"):
        WandB()


def test_an_absent_library_is_one_message_with_its_install():
    code = """if True:
        import sys
        from importlib import import_module
        from normscope.monitor import TensorBoard, WandB
        uses = {
            "tensorboard": lambda: TensorBoard("x"),
            "wandb": WandB,
            "lightning": lambda: import_module("normscope.monitor.integrations.lightning"),
            "transformers": lambda: import_module("normscope.monitor.integrations.transformers"),
        }
        for library, use in uses.items():
            assert library not in sys.modules
            sys.modules[library] = None
            try:
                use()
            except ImportError as error:
                print(error)
    """
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert not found.stderr
    assert found.stdout.splitlines() == [
        f"{name} is not installed. Bring it with: pip install 'normscope[{name}]'"
        for name in ("tensorboard", "wandb", "lightning", "transformers")
    ]
