"""Generated command lines, all verbs and odd values: `python tests/attack/command_lines.py --count 5000 --jobs 16`.

Each is run in this process, in a folder with small files of every kind, with bounds on time and memory. What may come
out is a result, or one message and exit status 1 or 2.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

from calling import Arena, arena, summary  # noqa: E402
from files import base_files  # noqa: E402

MODULES = """
import sys
import torch
from torch import nn

def build(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
def small(): return nn.Linear(4, 2)
def parallel(): return nn.DataParallel(small())
def scripted(): return torch.jit.script(small())
def fails(): raise RuntimeError("[/red] of $mine$")
def leaves(): sys.exit(0)
def asks(width): return small()
def nothing(): return None
def data(): return torch.randn(16, 4), torch.randint(2, (16,))
def batches(): return [data()] * 3
def empty(): return []
def setup():
    model = small()
    return model, nn.CrossEntropyLoss(), batches(), torch.optim.SGD(model.parameters(), lr=0.1)
def two(): return small(), batches()
number = 3
"""
ODD = (
    "", "0", "-1", "1", "7", "1e-3", "nan", "inf", "-inf", "1e400", "9" * 400, "0x10", "1_000", "x", "X" * 5000,
    "[/red]", "[bold]o", "$x$", ":bug:", "\u202e", "\U0001f4a5", "\udcff", "a b", "-", "--", "--help", "-x", "=", ",",
    "net.py", "1,2,3", "3x32x32", "None", "true", "auto", "none", "log", "evilmod", ".a:b", "a:b:c", ":", "net.py:",
)  # fmt: skip
PLACES = (
    "nowhere", "nowhere/at/all", "here", "table.csv", "data.npz", "pipe", "/dev/null", "/dev/zero", "..", ".", "empty",
    "net.py", "sweep", "sweep/plan.toml", "monitor", "monitor/monitor.jsonl", "demo", "reproduce", "prediction.json",
    "o" * 300, "[/red]", "$x$.html", "new-\udcff", "link",
)  # fmt: skip
IN_NET = (
    "build", "small", "parallel", "scripted", "fails", "leaves", "asks", "nothing", "data", "batches", "empty", "setup",
    "two", "number", "nowhere",
)  # fmt: skip
ELSEWHERE = ("broken.py:build", "exits.py:build", "here/net.py:build", "normscope.models:MLP", "os:getcwd", "nowhere:b")
FUNCTIONS = (*(f"net.py:{name}" for name in IN_NET), *ELSEWHERE)
DATA = (
    "digits",
    "gaussian",
    "mnist",
    "data.npz",
    "table.csv",
    "nowhere.npz",
    "pipe.npz",
    "net.py:data",
    "net.py:batches",
)
NUMBER, FUNCTION, SETUP, WORD = object(), object(), object(), object()
TABLES, PLANS = (*("table.csv",) * 40, *PLACES), (*("sweep/plan.toml",) * 40, *PLACES)
RESULTS = (
    *("sweep", "monitor", "demo", "reproduce", "prediction.json", "sweep/sweep.sqlite", "table.csv") * 4,
    *PLACES,
)
FRESH = (*("made", "made/deep", "page.html") * 10, *PLACES)
LOSSES = ("half_mse", "cross_entropy", "cross_entropy")
# Verb: its arguments, then its options with what they take; None is a flag.
VERBS: dict[str, tuple[tuple[object, ...], dict[str, object]]] = {
    "bounds": (
        (FUNCTION,),
        {
            "--data": DATA, "--loss": LOSSES, "--batch-size": NUMBER, "--units": NUMBER, "--train": ("0", "2", "-1"),
            "--lr": NUMBER, "--seed": NUMBER, "--json": None,
        },
    ),
    "cite": ((RESULTS,), {"--json": None}),
    "data fetch": ((("mnist", "cifar10", "mnits"),), {"--data-root": FRESH, "--json": None}),
    "demo": ((), {"--out": ("table.csv", "pipe", "/dev/null"), "--seed": NUMBER, "--json": None}),
    "measure": (
        (FUNCTION,),
        {
            "--data": DATA, "--lr": NUMBER, "--loss": LOSSES, "--momentum": NUMBER, "--nesterov": None,
            "--batch-size": ("8", "8", "1", "0", "10000000000"), "--batches": NUMBER, "--seed": NUMBER,
            "--stats": ("batch", "frozen", "running"), "--matrix": ("ggn", "hessian", "fisher"), "--layers": None,
            "--device": ("cpu", "cpu", "cpu", "cuda", "nasty", "meta"), "--json": None,
            "--max-memory": ("1e9", "1", "0", "nan"), "--hessian": None,
        },
    ),
    "monitor": (
        (SETUP,),
        {
            "--steps": ("1", "3", "0"), "--every": ("1", "log", "0,2", "x"), "--measure": ("light", "full"),
            "--budget": ("none", "0.05", "nan", "-1"), "--out": FRESH, "--json": None,
        },
    ),
    "predict": (
        (FUNCTION,),
        {
            "--input": ("4", "64", "64", "4", "1,8,8", "-4", "0", "1e9", "99999999999"), "--lr": NUMBER,
            "--loss": LOSSES, "--batch-size": NUMBER, "--momentum": NUMBER, "--nesterov": None, "--layers": None,
            "--stats": ("batch", "frozen"), "--theory": ("corrected", "paper"), "--json": None,
        },
    ),
    "tune": (
        (SETUP,),
        {
            "--steps": ("40", "40", "60", "20", "19", "0"), "--schedule": ("constant", "cosine", "linear", "cosin"),
            "--budget": ("0.1", "0.5", "1", "nan", "-1", "1e-9", "2"), "--engine": ("local", "local", "rya"),
            "--address": WORD, "--store": FRESH, "--seed": NUMBER, "--out": FRESH, "--json": None,
        },
    ),
    "report": (
        (RESULTS, RESULTS),
        {"--out": FRESH, "--figures": FRESH, "--serve": None, "--port": ("0", "8765", "70000"), "--json": None},
    ),
    "reproduce": (
        (("fig-9", "decoupling", "theorems/4.1", "nothing"),),
        {
            "--list": None, "--scale": ("small", "paper"), "--seeds": NUMBER, "--device": ("cpu", "nasty"),
            "--root": FRESH, "--out": ("reproduce", *FRESH), "--jobs": ("1", "0"), "--gallery": FRESH, "--json": None,
            "--minutes": ("nan", "-1", "0", "1e-9"),
        },
    ),
    "solve": (
        (TABLES,),
        {
            "--target": ("y", "y", "a", "nothing"), "--method": ("gd", "gdnp", "x"), "--loss": ("auto", "squared"),
            "--alpha": NUMBER, "--max-iter": ("1", "5", "0"), "--tol": NUMBER, "--gap": NUMBER, "--out": FRESH,
            "--json": None,
        },
    ),
    "sweep": (
        (PLANS,),
        {
            "--out": ("sweep", *FRESH), "--device": ("cpu", "cpu", "nasty", "cuda:9"), "--engine": ("local", "rya"),
            "--address": WORD, "--root": FRESH, "--group": NUMBER, "--no-lines": None, "--quiet": None, "--json": None,
        },
    ),
}  # fmt: skip
NEEDED = {"bounds": "--data", "measure": "--data", "predict": "--input", "solve": "--target", "tune": "--steps"}


def furnished(folder: Path) -> None:
    """Files of every kind, a pipe, a link in a circle, an empty folder."""
    base_files(folder)
    (folder / "net.py").write_text(MODULES)
    (folder / "broken.py").write_text("def build(:\n")
    (folder / "exits.py").write_text("raise SystemExit(0)\n")
    (folder / "empty").mkdir()
    os.symlink("link", folder / "link")
    for name in ("pipe", "pipe.npz"):
        os.mkfifo(folder / name)


def drawn(verb: str, draw: random.Random) -> list[str]:
    """The words of a command line: mostly plausible, now and then odd."""
    arguments, options = VERBS[verb]
    words = verb.split()
    for kind in arguments:
        if draw.random() < 0.96:
            words.append(value(kind, draw))
    chosen = [name for name in options if draw.random() < 0.2]
    if verb in NEEDED and draw.random() < 0.95 and NEEDED[verb] not in chosen:
        chosen.append(NEEDED[verb])
    if verb == "demo" and "--out" not in chosen:
        chosen.append("--out")
    for name in chosen:
        words.append(name)
        if options[name] is not None and draw.random() < 0.98:
            words.append(value(options[name], draw))
    if draw.random() < 0.03:
        words.insert(draw.randrange(len(words) + 1), draw.choice(ODD))
    return words


def value(kind: object, draw: random.Random) -> str:
    odd = draw.random() < 0.05
    if isinstance(kind, tuple) and not odd:
        return str(draw.choice(kind))
    if kind is NUMBER and not odd:
        return draw.choice(("1", "2", "0.5", "2", "3", "0"))
    if kind in (FUNCTION, SETUP) and not odd:
        usual = {FUNCTION: "net.py:build", SETUP: "net.py:setup"}
        return draw.choice((usual[kind], draw.choice(FUNCTIONS)))
    return draw.choice(ODD)


def trains(words: list[str]) -> bool:
    """Whether a line would run an experiment or a demo, which take as long as they take."""
    if words[:1] == ["reproduce"]:
        return not {"--list", "--minutes", "--gallery"} & set(words)
    return words[:1] == ["demo"] and not {"table.csv", "pipe", "/dev/null"} & set(words)


def attack(count: int, seed: int, folder: Path, *, progress: bool = False, minutes: float = float("inf")) -> Arena:
    """`count` command lines; what each ended with. No line is started after so many minutes."""
    end = time.monotonic() + 60 * minutes
    draw = random.Random(seed)
    base, place = folder / "base", folder / "arena" / "here"
    base.mkdir(parents=True)
    # No download leaves this machine, and nobody waits for one.
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9")
    before = {name: os.environ.get(name) for name in (*proxies, "NORMSCOPE_DATA", "COLUMNS")}
    os.environ |= proxies | {"NORMSCOPE_DATA": str(folder / "data"), "COLUMNS": "100"}
    try:
        furnished(base)
        with arena(place) as held:
            for number in range(count):
                if time.monotonic() > end:
                    break
                if number % 100 == 0:
                    _fresh(base, place)
                words = drawn(draw.choice(list(VERBS)), draw)
                while trains(words):
                    words = drawn(draw.choice(list(VERBS)), draw)
                with serving_ends(words):
                    held.call(*words, may_import=any(word.startswith("evilmod") for word in words))
                if progress and number % 500 == 499:
                    print(number + 1, dict(held.counts), file=sys.stderr, flush=True)
            return held
    finally:
        for name, old in before.items():
            os.environ.pop(name) if old is None else os.environ.update({name: old})


def _fresh(base: Path, place: Path) -> None:
    """The files anew, what earlier lines have left removed."""
    for one in place.iterdir():
        if one.name != "evilmod.py":
            shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
    for one in base.iterdir():
        if one.is_dir():
            shutil.copytree(one, place / one.name)
        elif one.is_fifo():
            os.mkfifo(place / one.name)
        else:
            shutil.copy(one, place / one.name, follow_symlinks=False)


@contextlib.contextmanager
def serving_ends(words: list[str]) -> Iterator[None]:
    """A page that is served ends with Ctrl-C, soon."""
    ended = threading.Event()

    def interrupt() -> None:
        # Again and again: Python drops one that arrives while an object is being destroyed.
        while not ended.wait(1.5):
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt, daemon=True)
    if "--serve" in words:
        thread.start()
    try:
        yield
    finally:
        ended.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=20, help="failures to print")
    parser.add_argument(
        "--jobs", type=int, default=1, help="processes, each pinned to one core, with seeds from --seed on"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no line after so long")
    parser.add_argument("--store", type=Path, help="write the counts to this file")
    given = parser.parse_args()
    started = time.monotonic()
    if given.jobs > 1:
        counts, failures, slowest = spread(given.count, given.seed, given.jobs, given.minutes)
    else:
        with tempfile.TemporaryDirectory() as folder:
            held = attack(given.count, given.seed, Path(folder), progress=True, minutes=given.minutes)
        counts, failures, slowest = held.counts, held.failures, held.slowest
    if given.store:
        given.store.write_text(json.dumps([counts, failures, slowest]))
    print("\n\n".join(failures[: given.show]))
    print(summary("command lines", counts, slowest, time.monotonic() - started))
    sys.exit(bool(failures))


def spread(count: int, seed: int, jobs: int, minutes: float) -> tuple[Counter[str], list[str], tuple[float, str]]:
    """The same in several processes at a time: counts, failures and the slowest line of all."""
    cores = sorted(os.sched_getaffinity(0))
    shares = [count // jobs + (job < count % jobs) for job in range(jobs)]
    counts: Counter[str] = Counter()
    failures: list[str] = []
    slowest = (0.0, "")
    with tempfile.TemporaryDirectory() as folder:
        stores = [Path(folder) / f"{job}.json" for job in range(jobs)]
        running = []
        for job, (share, store) in enumerate(zip(shares, stores, strict=True)):
            command = [sys.executable, __file__, "--count", str(share), "--seed", str(seed + job)]
            command += ["--minutes", str(minutes), "--store", str(store)]
            core = cores[job % len(cores)]
            running.append(
                subprocess.Popen(
                    command,
                    stdout=subprocess.DEVNULL,
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    preexec_fn=lambda core=core: os.sched_setaffinity(0, {core}),
                )
            )
        for process, store in zip(running, stores, strict=True):
            status = process.wait()
            if not store.exists():
                failures.append(f"a process of the attack ended with status {status} and stored nothing")
                continue
            these, said, slow = json.loads(store.read_text())
            counts.update(these)
            failures += said
            slowest = max(slowest, tuple(slow))
    return counts, failures, slowest


if __name__ == "__main__":
    main()
