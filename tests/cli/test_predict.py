"""`normscope predict`, and the result on its way to text and JSON."""

import json

import pytest
import torch
from typer.testing import CliRunner

import normscope as ns
from normscope.cli import app

NET = "import normscope as ns\n\ndef build():\n    return ns.models.MLP(20, 5, width=60, norm='batch')\n"


@pytest.fixture
def reference(tmp_path):
    (tmp_path / "predicted_net.py").write_text(NET)
    return f"{tmp_path / 'predicted_net.py'}:build"


def run(*arguments: str):
    return CliRunner().invoke(app, ["predict", *arguments])


def test_text(reference):
    found = run(reference, "--input", "20", "--momentum", "0.9", "--lr", "0.1", "--layers", "--loss", "half_mse")
    assert found.exit_code == 0, found.output
    for words in ("lambda_max = ", "with momentum 0.9 on half_mse", "qh_xy", "lr = 0.1 is"):
        assert words in found.output


def test_defaults_are_those_of_measure(reference, tmp_path):
    """The same question has the same answer: cross-entropy, no momentum."""
    predicted = json.loads(run(reference, "--input", "20", "--json").output)
    measured = ["measure", reference, "--data", f"{tmp_path / 'predicted_data.py'}:load", "--json"]
    (tmp_path / "predicted_data.py").write_text(
        "import torch\n\ndef load():\n    return torch.randn(64, 20), torch.randint(5, (64,))\n"
    )
    found = json.loads(CliRunner().invoke(app, measured).stdout)
    assert predicted["loss_kind"] == found["loss_kind"] == "cross_entropy"
    assert predicted["optimizer"] == found["optimizer"] == "gradient descent"
    by_function = ns.predict(ns.models.MLP(20, 5, width=60, norm="batch"), (20,))
    assert (by_function.loss, by_function.optimizer) == ("cross_entropy", "gradient descent")


def test_json_is_the_result(reference):
    found = run(reference, "--input", "20", "--json", "--loss", "cross_entropy")
    plain = json.loads(found.output)
    direct = ns.predict(ns.models.MLP(20, 5, width=60, norm="batch"), (20,), "cross_entropy")
    assert plain["lambda_max"] == direct.lambda_max
    assert plain["kind"] == "prediction"
    assert (
        "networks with BatchNorm survive far above eta*, "
        "but may learn badly from eta* on; those without may fail below it" in " ".join(plain["notes"])
    )


def test_a_shape_may_have_crosses(tmp_path):
    (tmp_path / "crossed_net.py").write_text(
        "import torch.nn as nn\nbuild = lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 3))"
    )
    with_crosses, with_commas = (
        run(f"{tmp_path / 'crossed_net.py'}:build", "--input", shape, "--json") for shape in ("2x10", "2,10")
    )
    assert json.loads(with_crosses.output)["input_shape"] == json.loads(with_commas.output)["input_shape"] == [2, 10]


def test_a_bad_shape(reference):
    found = run(reference, "--input", "a,b")
    assert isinstance(found.exception, ValueError)
    assert "shape of one sample" in str(found.exception)


def test_saved_results_are_plain_json(tmp_path):
    net = ns.models.MLP(20, 5, width=60, norm="batch")
    found = ns.predict(net, (20,), momentum=0.9, nesterov=True)
    found.save(tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["eta_star"] == found.eta_star
    assert found.eta_star == pytest.approx(2 * 1.9 / (2.8 * found.lambda_max))
    assert list(found.frame()["layer"]) == [row["layer"] for row in found.layers]


def test_verdicts_are_worded_for_the_loss():
    net = ns.models.MLP(20, 5, width=60, norm="batch")
    assert ns.predict(net, (20,), "half_mse").verdict(1e-6).good is True
    assert ns.predict(net, (20,), "half_mse").verdict(1e6).good is False
    assert ns.predict(net, (20,), "cross_entropy").verdict(1e6).good is None


def test_within_what_theory_was_seen_to_be_off_by_no_verdict_is_given():
    net = ns.models.MLP(20, 5, width=60, norm="batch", seed=0)
    found = ns.predict(net, (20,), "half_mse", batch_size=4)
    assert found.calibrated_range[1] == 30
    for times, good in ((0.02, True), (0.5, None), (1.05, None), (2, False)):
        verdict = found.verdict(times * found.eta_star)
        assert verdict.good is good
        assert ("theory does not tell: measure to be sure" in verdict.text) == (good is None)
    printed = ns.predict(ns.models.MLP(20, 5, width=60, norm="none", seed=0), (20,), "half_mse", theory="paper")
    assert printed.verdict(0.99 * printed.eta_star).good is True


def test_losses_scale_with_their_definitions():
    net = ns.models.MLP(20, 5, width=60, norm="batch")
    half, mean, total = (ns.predict(net, (20,), loss, 32).lambda_max for loss in ("half_mse", "mse", "half_sse"))
    assert mean == pytest.approx(half * 2 / 5)
    assert total == pytest.approx(half * 32)


def test_the_printed_theory_of_the_papers_network():
    pytest.importorskip("normscope.theory.printed")
    net = ns.models.MLP(norm="batch")
    found = ns.predict(net, (784,), "half_mse", theory="paper")
    assert found.lambda_max == pytest.approx(229.9, rel=0.03)
    assert found.mode == "mean"
    cnn = ns.predict(ns.models.CNN(1, 28), (1, 28, 28), "half_mse", theory="paper")
    assert cnn.lambda_max == pytest.approx(98669, rel=0.1)
    with pytest.raises(ValueError, match='Use theory="corrected"'):
        ns.predict(
            torch.nn.Sequential(torch.nn.Linear(20, 60), torch.nn.Tanh(), torch.nn.Linear(60, 5)),
            (20,),
            "half_mse",
            theory="paper",
        )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("nn.DataParallel(nn.Linear(20, 5))", "DataParallel cuts each batch"),
        ("torch.jit.script(nn.Linear(20, 5))", "TorchScript"),
        ("nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(100, 3))", "integer index"),
    ],
)
def test_models_that_cannot_be_read_are_one_message(tmp_path, made, words):
    (tmp_path / "wrapped_net.py").write_text(f"import torch\nfrom torch import nn\n\ndef build():\n    return {made}\n")
    found = run(f"{tmp_path / 'wrapped_net.py'}:build", "--input", "20")
    assert isinstance(found.exception, ValueError)
    assert words in str(found.exception)
