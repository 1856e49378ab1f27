"""Stored files of every kind, mutated and read: `python tests/attack/files.py --count 10000`.

Each mutated file goes to `report` (now and then with --figures), `cite`, or a resumed `sweep`, in this process. What
may come out is a page, or one message and exit status 2.
"""

import argparse
import copy
import json
import random
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(Path(__file__).parent), str(TESTS / "report")]

from calling import Arena, arena, summary  # noqa: E402

PLAN = """
model = "MLP"
data = "digits"
epochs = 1
batch_size = 512
learning_rates = [0.01, 0.1, 1e4]
values = [0.5, 1.0]
seeds = [0]
compile = "never"
[arguments]
d_in = 64
width = 8
depth = 2
norm = "batch"
[data_options]
seed = 0
"""
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**63, -(2**70), 10**400, 1e308, -1e308, 1e-320, 5e-324, 0.0, -0.0, "nan", "inf",
    "-inf", "", "x", "\0", "\ud800", "[/red]", "[bold]o", "$", "$\\frac$", "evilmod:build", "evilmod.py:build",
    "a" * 100_000, [], {}, [[]], [None], ["nan"] * 5, {"": 0}, {"lr": 0}, [0] * 1000, "9" * 400, "../../etc/passwd",
)  # fmt: skip

STARTS = (b"\x89PNG\r\n", b"SQLite format 3\0", b"PK\3\4", b"\xff\xfe", b"\xef\xbb\xbf", b"[")
SWAPS = ((b"0", b"9" * 30), (b":", b","), (b'"', b"'"), (b",", b"]"), (b".", b"e"))
CELLS = (
    "nan",
    None,
    0,
    -1,
    2**62,
    1e308,
    "",
    "[]",
    "[1",
    '["x"]',
    "{}",
    "evilmod:build",
    b"\0\1",
    "[" * 5000,
    "9" * 500,
)
LINES = (
    "1e400", "-1", "0", "true", '"[/red]"', "[]", "nan", "inf", "{ from = 1, to = 2, count = 1000000000 }",
    "[0.1, 0.1]", "9" * 400, '"' + "x" * 100_000 + '"', "{ a = 1 }", "1979-05-27", "[" * 2000,
)  # fmt: skip


def base_files(folder: Path) -> list[Path]:
    """A small real file of every kind; a sweep's folder holds its plan, journal, diagram and lines."""
    import numpy as np
    from report_results import demo, more, saved, snapshots, swept

    from normscope.report.sweep_folder import write_phase
    from normscope.sweeping.diagram import lines_file, save_lines

    results = TESTS.parent / "results"
    snapshots(folder / "monitor" / "monitor.jsonl", steps=3)
    demo(folder / "demo")
    found = swept(folder / "sweep")
    lines = {"measured": {0.5: 1.0, 1.0: 0.5}, "predicted": {0.5: 2.0, 1.0: 1.0}}
    save_lines(lines, lines_file(folder / "sweep", found.plan.hash))
    write_phase(found, lines, folder / "sweep")
    (folder / "sweep" / "plan.toml").write_text(PLAN)
    saved(folder)
    more(folder)
    run = json.loads((results / "landscape-dln.json").read_text())
    for one in run["runs"]:
        one["snapshots"] = {name: values[:4] for name, values in one["snapshots"].items()}
        one["layers"] = [row | {k: row[k][:4] for k in ("shift", "shift_cosine")} for row in one["layers"][:3]]
    (folder / "landscape.json").write_text(json.dumps(run | {"runs": run["runs"][:2]}))
    (folder / "reproduce").mkdir()
    for name in ("gradients", "amplification", "theorems", "rayleigh"):
        shutil.copy(results / "reproduce" / f"{name}.json", folder / "reproduce")
    np.savez(folder / "data.npz", x=np.ones((8, 4)), y=np.arange(8) % 2)
    (folder / "table.csv").write_text("a,b,y\n" + "\n".join(f"{i},{i * i % 7},{i % 2}" for i in range(12)) + "\n")
    unread = {".png", ".html", ".md", ".pdf", ".svg"}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix not in unread)


def bytes_mutated(content: bytes, draw: random.Random) -> bytes:
    """Cut, flipped, repeated, with NULs or somebody else's start."""
    at = draw.randrange(len(content) + 1)
    way = draw.randrange(8)
    if way == 0:
        return content[:at]
    if way == 1:
        return content[:at] + bytes(draw.randrange(256) for _ in range(draw.randrange(1, 9))) + content[at + 4 :]
    if way == 2:
        return content[:at] + b"\0" * draw.randrange(1, 64) + content[at:]
    if way == 3:
        return content[:at] + content[max(0, at - 200) : at] + content[at:]
    if way == 4:
        return draw.choice(STARTS) + content
    if way == 5:
        return content.replace(*draw.choice(SWAPS))
    if way == 6:
        return content[:at] + (b"[" * 100_000 if draw.random() < 0.5 else b'{"a":' * 5000) + content[at:]
    flipped = bytearray(content)
    for _ in range(draw.randrange(1, 20)):
        if flipped:
            flipped[draw.randrange(len(flipped))] ^= 1 << draw.randrange(8)
    return bytes(flipped)


def value_mutated(value: Any, draw: random.Random) -> Any:
    """One place of a JSON value changed: a value swapped, a key missing or more, a list cut, everything deeper."""
    parent: Any = {"": value}
    here: Any = ""
    while isinstance(parent[here], (dict, list)) and parent[here] and draw.random() < 0.85:
        parent = parent[here]
        here = draw.choice(list(parent)) if isinstance(parent, dict) else draw.randrange(len(parent))
    root = value if parent is not None else parent
    way = draw.randrange(6)
    if here == "":
        return copy.deepcopy(draw.choice(VALUES))
    if way <= 2 and draw.random() < 0.5:
        parent[here] = alike(parent[here], draw)
    elif way <= 2:
        parent[here] = copy.deepcopy(draw.choice(VALUES))
    elif way == 3:
        del parent[here]
    elif way == 4 and isinstance(parent, dict):
        parent[draw.choice(("extra", "[/red]", "$x$", "", "lr"))] = copy.deepcopy(draw.choice(VALUES))
    elif way == 4:
        parent.insert(here, copy.deepcopy(draw.choice(VALUES)))
    else:
        for _ in range(draw.choice((1, 3, 70, 300))):
            parent[here] = [parent[here]]
    return root


def alike(value: Any, draw: random.Random) -> Any:
    """Another value of the same type, which a check of types lets through."""
    if isinstance(value, list) and value:
        return draw.choice((value[:1], value[:-1], value * 2, value[::-1], []))
    if isinstance(value, dict) and value:
        return dict(list(value.items())[: draw.randrange(len(value))])
    kind = (int, float) if isinstance(value, (int, float)) else type(value)
    return draw.choice([one for one in VALUES if isinstance(one, kind)] or [None])


def json_mutated(content: bytes, draw: random.Random) -> bytes:
    """A JSON file, or one line of a file of JSON lines."""
    lines = content.split(b"\n") if b'"kind": "run"' in content[:40] else [content]
    at = draw.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except ValueError:
        return bytes_mutated(content, draw)
    for _ in range(draw.choice((1, 1, 1, 2, 5))):
        value = value_mutated(value, draw)
    try:
        lines[at] = json.dumps(value).encode()
    except ValueError:
        # A value that was put into itself.
        return bytes_mutated(content, draw)
    return b"\n".join(lines)


def journal_mutated(path: Path, draw: random.Random) -> None:
    """One cell of the database, or a row of it, as another program might write it."""
    with sqlite3.connect(path) as db:
        db.execute("pragma ignore_check_constraints = on")
        table = draw.choice(("rows", "rows", "rows", "plans", "starts"))
        names = [row[1] for row in db.execute(f"pragma table_info({table})")]
        value = draw.choice(CELLS)
        if table == "plans" and draw.random() < 0.7:
            (text,) = db.execute("select description from plans").fetchone()
            value = json_mutated(text.encode(), draw).decode(errors="replace")
            names = ["description"]
        try:
            limit = "" if draw.random() < 0.3 else f"where rowid = (select min(rowid) from {table})"
            column = draw.choice(names)
            db.execute(f"update {table} set {column} = ? {limit}", (value,))
        except (sqlite3.Error, OverflowError, UnicodeEncodeError):
            db.execute(f"delete from {table}")
    db.close()


def toml_mutated(content: bytes, draw: random.Random) -> bytes:
    """A line of the plan with another value."""
    lines = content.decode().splitlines()
    at = draw.randrange(len(lines))
    lines[at] = f"{lines[at].partition('=')[0].strip() or 'axis'} = {draw.choice(LINES)}"
    return "\n".join(lines).encode()


def attack(count: int, seed: int, folder: Path, *, progress: bool = False) -> Arena:
    """`count` mutated files read; what each reading ended with."""
    draw = random.Random(seed)
    with arena(folder) as held:
        (folder / "net.py").write_text("from torch import nn\ndef build(): return nn.Linear(4, 2)\n")
        files = base_files(folder / "base")
        for number in range(count):
            source = files[number % len(files)]
            one(held, source, folder / "try", draw)
            if progress and number % 1000 == 999:
                print(number + 1, dict(held.counts), file=sys.stderr, flush=True)
        return held


def one(held: Arena, source: Path, place: Path, draw: random.Random) -> None:
    """Copies the source's folder, mutates the file there, and reads it."""
    shutil.rmtree(place, ignore_errors=True)
    whole = source.parent.name in ("sweep", "reproduce", "demo", "monitor")
    if whole:
        shutil.copytree(source.parent, place)
    else:
        place.mkdir()
        shutil.copy(source, place)
    target = place / source.name
    mutated(target, draw)
    for arguments in ways(source, target, place if whole else target, draw):
        held.call(*arguments)


def mutated(target: Path, draw: random.Random) -> None:
    ways: dict[str, Callable[[bytes, random.Random], bytes]] = {
        ".json": json_mutated,
        ".jsonl": json_mutated,
        ".toml": toml_mutated,
    }
    if target.suffix == ".sqlite" and draw.random() < 0.7:
        return journal_mutated(target, draw)
    change = ways.get(target.suffix, bytes_mutated) if draw.random() < 0.75 else bytes_mutated
    target.write_bytes(change(target.read_bytes(), draw))
    return None


def ways(source: Path, target: Path, reading: Path, draw: random.Random) -> list[tuple[str, ...]]:
    """The command lines that read this file."""
    if source.suffix == ".npz":
        return [("measure", "net.py:build", "--data", str(target), "--batch-size", "8")]
    if source.suffix == ".csv":
        return [("solve", str(target), "--target", "y", "--max-iter", "3", "--method", "gd", "--out", "solved")]
    if source.suffix == ".toml" or (source.parent.name == "sweep" and draw.random() < 0.1):
        plan = str(target.with_name("plan.toml"))
        return [("sweep", plan, "--out", str(target.parent), "--quiet", "--device", "cpu", "--no-lines")]
    if draw.random() < 0.15:
        return [("cite", str(reading))]
    if source.parent.name == "reproduce" and draw.random() < 0.2:
        return [("reproduce", "--list", "--out", str(target.parent))]
    figures = ("--figures", "drawn") if draw.random() < 0.01 else ()
    return [("report", str(draw.choice((reading, target))), "--out", "page.html", *figures)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--show", type=int, default=20, help="failures to print")
    given = parser.parse_args()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        held = attack(given.count, given.seed, Path(folder), progress=True)
    print("\n\n".join(held.failures[: given.show]))
    print(summary("mutated files", held.counts, held.slowest, time.monotonic() - started))
    sys.exit(bool(held.failures))


if __name__ == "__main__":
    main()
