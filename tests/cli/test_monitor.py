"""`normscope monitor` as a person meets it."""

import os
import signal
import subprocess
import sys
import time

import pytest
from test_cli import run

from normscope.cli import main
from normscope.monitor import frame_of, records_of

SETUP = """
import torch
import normscope as ns
import helper

def setup(lr=0.5, norm="batch", steps=40):
    digits = ns.data.digits(seed=0)
    model = ns.models.MLP(64, 10, width=20, depth=4, norm=norm, init="glorot")
    batches = ns.data.batches(digits.x_train, digits.y_train, batch_size=64, seed=0, steps=steps)
    return model, helper.loss, batches, torch.optim.SGD(model.parameters(), lr=lr)

def diverging():
    return setup(lr=1e4, norm="none")

def in_a_dict():
    model, loss, batches, optimizer = setup()
    pairs = [{"x": x, "y": y} for x, y in batches]
    forward = lambda model, batch: loss(model(batch["x"]), batch["y"])
    return {"model": model, "batches": pairs, "optimizer": optimizer, "forward": forward, "autocast": torch.bfloat16}

def endless():
    return setup(steps=None)

def nothing():
    pass

def three():
    return 1, 2, 3

def unknown_key():
    return {"model": None, "lossfn": None}

def swapped():
    model, loss, batches, optimizer = setup()
    return model, loss, optimizer, batches

def another_shape():
    _, loss, batches, _ = setup()
    model = torch.nn.Sequential(torch.nn.Linear(60, 10))
    return model, loss, batches, torch.optim.SGD(model.parameters(), lr=0.1)

def another_target():
    model, loss, batches, optimizer = setup()
    pairs = list(batches)
    return model, loss, [*pairs[:3], (pairs[3][0], pairs[3][1][:5])], optimizer

def in_a_library():
    import random
    model, loss, batches, optimizer = setup()
    def some():
        yield next(batches)
        random.sample([1], 2)
    return model, loss, some(), optimizer

def not_a_number():
    model, loss, batches, optimizer = setup()
    return model, loss, [(x * float("nan"), y) for x, y in batches], optimizer

def one_sample():
    _, loss, batches, _ = setup()
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10), torch.nn.BatchNorm1d(10))
    return model, loss, [(x[:1], y[:1]) for x, y in batches], torch.optim.SGD(model.parameters(), lr=0.1)

def another_model():
    return *setup()[:3], setup()[3]

def at_rest():
    return setup(lr=0.0)

def no_batches():
    return setup(steps=0)

def no_labels():
    model, loss, batches, optimizer = setup()
    return model, loss, [x for x, _ in batches], optimizer

def breaks():
    raise KeyError("a mistake in the user's own code")

number = 3
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/train.py").write_text(SETUP)
    (tmp_path / "work/helper.py").write_text("from torch.nn.functional import cross_entropy as loss\n")
    return tmp_path


@pytest.fixture
def here(folder, monkeypatch, capsys):
    """The command in this process, which has torch already: gives exit status and what was said."""

    def command(*arguments):
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", ["normscope", "monitor", *arguments])
        monkeypatch.setattr(sys, "path", list(sys.path))
        for name in ("train", "helper"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        return ended.value.code, said.out, said.err

    return command


def test_it_trains_measures_writes_and_says_what_it_means(folder, here):
    options = ["--steps", "30", "--every", "10", "--measure", "full", "--budget", "none", "--out", "seen"]
    status, said, errors = here("work/train.py:setup", *options)
    assert status == 0, errors
    written = sorted(path.name for path in (folder / "seen").iterdir())
    figures = ["activations.png", "landscape.png", "shift.png"]
    assert written == sorted(["snapshots.csv", "monitor.jsonl", "summary.md", *figures])
    frame = frame_of(records_of(folder / "seen/monitor.jsonl"))
    assert list(frame.dropna(subset="beta")["step"]) == [0, 10, 20]
    assert said.startswith("- 30 steps, 6 snapshots.\n")
    assert "The coming update does not raise this batch's loss" in said
    status, said, errors = here("work/train.py:setup", "--out", "seen")
    assert (status, said, errors) == (2, "", "normscope: seen holds a run already. Choose another --out.\n")


@pytest.mark.slow
def test_a_module_a_dict_a_forward_and_mixed_precision(folder):
    options = ["--every", "0,5", "--measure", "light", "--out", "../seen"]
    found = run("monitor", "train:in_a_dict", *options, cwd=folder / "work")
    assert found.returncode == 0, found.stderr
    assert records_of(folder / "seen/monitor.jsonl")[0].step == 0
    assert "40 steps" in found.stdout


@pytest.mark.slow
def test_divergence_is_a_result(folder):
    found = run("monitor", "work/train.py:diverging", "--every", "1", "--budget", "none", cwd=folder)
    assert found.returncode == 0, found.stderr
    assert "; the run diverged at step " in found.stdout.splitlines()[0]
    assert "; the run diverged at step " in (folder / "normscope-monitor/summary.md").read_text()


@pytest.mark.slow
def test_ctrl_c_leaves_what_was_measured_and_says_so(folder):
    # A suite started in the background hands down an ignored SIGINT.
    command = [
        "env",
        "--default-signal=INT",
        sys.executable,
        "-m",
        "normscope",
        "monitor",
        "work/train.py:endless",
        "--every",
        "1",
        "--budget",
        "none",
    ]
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = folder / "normscope-monitor/monitor.jsonl"
    deadline = time.monotonic() + 120
    while not (lines.exists() and lines.read_bytes().count(b"\n") > 3):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "Traceback" not in errors
    assert "interrupted after" in errors.splitlines()[-1]
    assert errors.splitlines()[-1].endswith("is in normscope-monitor.")
    assert "; interrupted." in said.splitlines()[0]
    looks = len(records_of(lines))
    assert looks >= 3
    assert f", {looks} snapshots;" in said
    assert (folder / "normscope-monitor/landscape.png").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["work/trian.py:setup"], "There is no file work/trian.py. Did you mean work/train.py?"),
        (["work/train.py:setpu"], "got 'setpu'. Did you mean 'setup'?"),
        (["work/train.py:number"], "work/train.py:number is not a function but of type int."),
        (["work/helper.py:losses"], "work/helper.py has no function of that name, nor any of its own."),
        (["work/train.py"], "Name a function as path/to/file.py:name or package.module:name; got 'work/train.py'."),
        (["no.such.module:setup"], "There is no module no.such.module here or installed."),
        (
            ["work/train.py:nothing"],
            "return an ns.Setup, a dict of its fields, or a tuple (model, loss_fn, batches, optimizer, eval_batches)",
        ),
        (["work/train.py:three"], "model must be a torch.nn.Module; got int."),
        (["work/train.py:no_batches"], "The batches of work/train.py:no_batches are empty"),
        (["work/train.py:another_shape"], "another_shape failed at step 0: RuntimeError: mat1 and mat2"),
        (["work/train.py:one_sample"], "a batch of one sample at step 0, and BatchNorm's statistics need two or more."),
        (["work/train.py:no_labels"], "a batch is a pair (x, y) or a mapping with labels; got a tensor of shape"),
        (["work/train.py:setup", "--out", "work/train.py"], "names a folder, and work/train.py is a file"),
        (["work/train.py:unknown_key"], "got 'lossfn'. Did you mean 'loss_fn'?"),
        (["work/train.py:another_model"], "the optimizer: it was made for another model"),
        (["work/train.py:swapped"], "optimizer must be a torch.optim.Optimizer; got islice."),
        (["work/train.py:setup", "--every", "often"], "every is a number of steps"),
        (
            ["work/train.py:setup", "--budget", "much"],
            "is a share of the training's cost such as 0.05, or 'none'; got 'much'.",
        ),
        (["work/train.py:setup", "--measure", "ful"], "Did you mean 'full'?"),
    ],
)
def test_mistakes_are_one_message(folder, here, arguments, message):
    status, said, errors = here(*arguments)
    assert (status, said) == (2, "")
    assert message in errors
    assert errors.strip().startswith("normscope: ")
    assert errors.strip().count("\n") == 0
    assert not (folder / "normscope-monitor").exists()


def test_a_batch_that_does_not_fit_keeps_what_was_seen_before(folder, here):
    status, _, errors = here("work/train.py:another_target", "--every", "1", "--budget", "none")
    assert status == 2
    assert "another_target failed at step 3: ValueError: Expected input batch_size (64)" in errors
    assert "What was measured in the 3 steps before is in normscope-monitor." in errors
    assert len(records_of(folder / "normscope-monitor/monitor.jsonl")) == 3


def test_a_mistake_is_placed_in_ones_own_file_and_not_in_pythons(folder, here):
    status, _, errors = here("work/train.py:in_a_library", "--every", "1", "--budget", "none")
    line = next(i for i, text in enumerate(SETUP.splitlines(), 1) if "random.sample" in text)
    assert status == 2
    assert f"Sample larger than population or is negative (train.py, line {line})." in errors
    assert "What was measured in the step before is in normscope-monitor." in errors


def test_a_run_that_diverges_before_its_first_look_is_no_success(folder, here):
    status, said, errors = here("work/train.py:not_a_number")
    assert status == 1
    assert "0 snapshots; the run diverged at step 0." in said
    assert "nothing was measured" in errors


@pytest.mark.filterwarnings("ignore:normscope. nothing was measured")
def test_a_run_of_which_nothing_was_measured_is_no_success(folder, here):
    status, _, errors = here("work/train.py:at_rest", "--measure", "light")
    assert status == 1
    assert "nothing was measured; normscope-monitor/summary.md says why." in errors
    assert "learning rate is 0" in (folder / "normscope-monitor/summary.md").read_text()


@pytest.mark.slow
def test_a_mistake_in_ones_own_setup_is_one_message_with_its_line(folder):
    found = run("monitor", "work/train.py:breaks", cwd=folder)
    assert found.returncode == 2
    assert 'KeyError: "a mistake in the user\'s own code"' in found.stderr
    assert "(train.py, line " in found.stderr
    assert "Traceback" not in found.stderr
