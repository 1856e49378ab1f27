"""Verbs as processes: signals end them with one message, Python without docstrings runs them."""

import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import time

import pytest

from normscope.cli.stopping import Terminated, stopping

ENV = os.environ | {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}
TRAINING = '{"kind": "training", "schema": 1, "losses": [2.0, 1.0], "evaluations": [], "diverged_at": null, '
TRAINING += '"seconds": 0.1, "settings": {}, "environment": {}}'
NETWORKS = """
import pathlib, time
from torch import nn

def build():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))

def waits():
    pathlib.Path("waits").touch()
    time.sleep(60)
"""


def started(*arguments, cwd, python=()):
    # A suite started in the background hands down an ignored SIGINT.
    command = ["env", "--default-signal=INT,TERM,HUP", sys.executable, *python, "-m", "normscope", *arguments]
    return subprocess.Popen(command, cwd=cwd, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def _until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize(
    "asked",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
    ],
)
def test_every_signal_ends_a_verb_with_one_message(asked, tmp_path):
    (tmp_path / "net.py").write_text(NETWORKS)
    running = started("predict", "net.py:waits", "--input", "4", cwd=tmp_path)
    _until((tmp_path / "waits").exists)
    running.send_signal(asked)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out) == (1, "")
    assert err.strip().endswith("normscope: interrupted. The same command starts from the beginning.")
    assert "Traceback" not in err


def test_a_served_page_ends_on_sigterm_and_a_reader_that_hangs_up_is_no_news(tmp_path):
    (tmp_path / "training.json").write_text(TRAINING)
    running = started("report", "training.json", "--serve", "--port", "0", cwd=tmp_path)
    port = int(running.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", port)) as reader:
            # Closed with a reset, before the answer is read.
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
    other = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    other.request("GET", "/state")
    assert other.getresponse().status == 200
    running.send_signal(signal.SIGTERM)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 0
    assert err.splitlines() == [
        "Follows the runs as rows arrive; Ctrl-C ends it.",
        "Stopped. The same command without --serve writes the page to a file.",
    ]


def test_handlers_are_as_they_were_and_an_ignored_signal_stays_ignored():
    before = signal.getsignal(signal.SIGTERM)
    hangup = signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def ask():
        with stopping():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(Terminated):
            ask()
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "net.py:build", "--input", "4"),
        pytest.param(("report", "training.json"), marks=pytest.mark.slow),
        pytest.param(("--help",), marks=pytest.mark.slow),
        pytest.param(("measure", "net.py:build", "--data", "data.npz"), marks=pytest.mark.slow),
        pytest.param(("cite",), marks=pytest.mark.slow),
        pytest.param(("doctor",), marks=pytest.mark.slow),
        pytest.param(("reproduce", "--list"), marks=pytest.mark.slow),
        pytest.param(("bounds", "net.py:build", "--data", "data.npz"), marks=pytest.mark.slow),
        pytest.param(("solve", "table.csv", "--target", "y"), marks=pytest.mark.slow),
        pytest.param(("monitor", "net.py:setup", "--steps", "2"), marks=pytest.mark.slow),
        pytest.param(("sweep", "plan.toml", "--quiet"), marks=pytest.mark.slow),
    ],
    ids=lambda arguments: arguments[0],
)
def test_verbs_run_without_docstrings_and_asserts(arguments, tmp_path):
    import numpy as np

    (tmp_path / "net.py").write_text(
        NETWORKS + "def setup():\n"
        "    import torch\n"
        "    model = build()\n"
        "    batches = [(torch.randn(8, 4), torch.randint(2, (8,)))] * 3\n"
        "    return model, nn.CrossEntropyLoss(), batches, torch.optim.SGD(model.parameters(), lr=0.1)\n"
    )
    (tmp_path / "training.json").write_text(TRAINING)
    (tmp_path / "table.csv").write_text("a,y\n1,0\n2,1\n3,0\n5,1\n")
    (tmp_path / "plan.toml").write_text(
        'model = "MLP"\ndata = "digits"\nlearning_rates = [0.1]\nepochs = 1\n[arguments]\nd_in = 64\nwidth = 8\n'
        "[data_options]\nseed = 0\n"
    )
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(64, 4)), y=np.arange(64) % 2)
    running = started(*arguments, cwd=tmp_path, python=("-OO",))
    out, err = running.communicate(timeout=300)
    assert running.returncode == 0, err
    assert "Traceback" not in err
    assert out
