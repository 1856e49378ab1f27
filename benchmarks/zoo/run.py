"""The zoo: every verb on the models of drawn.json, each model in a process of its own.

    OMP_NUM_THREADS=1 PYTHONPATH=src zoo-env/bin/python benchmarks/zoo/run.py --out benchmarks/results/zoo.json

The file is written after every model; an interrupted run continues with the missing models (--anew starts
again). A verb that is not finished after --limit seconds of its model is stored as such, as is one at which the process
died. A model is dropped where a limit of resources forbids it (`entries`, `one.SLOWEST`); the file keeps it with the
reason.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
VERBS = ("predict", "measure", "monitor", "swap", "fold")


def one(model: dict[str, Any], limit: float, verbs: str) -> dict[str, Any]:
    """The row of a model, from the lines that its process printed."""
    command = [sys.executable, str(HERE / "one.py"), model["package"], model["name"], model["size"], "--verbs", verbs]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        printed, said = ran.stdout, ran.stderr
        ended = f"ended with status {ran.returncode}" if ran.returncode else ""
    except subprocess.TimeoutExpired as expired:
        printed, said = (
            part.decode() if isinstance(part, bytes) else part or "" for part in (expired.stdout, expired.stderr)
        )
        ended = f"not finished after {limit:g} s"
    row: dict[str, Any] = {key: model[key] for key in ("package", "name", "size", "why")} | {"verbs": {}}
    begun = ""
    for line in printed.splitlines():
        found = json.loads(line)
        begun = found.get("begun", begun)
        if "verb" in found:
            row["verbs"][found["verb"]] = found["found"]
            begun = ""
        elif "begun" not in found:
            row |= found
    if ended:
        row["ended"] = ended
        row["said"] = said.splitlines()[-3:]
        if begun:
            row["verbs"][begun] = {"outcome": "crash", "type": "", "message": ended, "where": "", "ours": ""}
    return row


def short(row: dict[str, Any]) -> str:
    if "dropped" in row:
        return f"dropped: {row['dropped']}"
    return " ".join(
        f"{verb}:{found['outcome']}({found.get('seconds', 0):.0f}s)" for verb, found in row["verbs"].items()
    )


def main() -> None:
    from normscope.results.environment import environment

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a model")
    parser.add_argument("--only", default="", help="models whose package/name contains this")
    parser.add_argument("--verbs", default=",".join(VERBS))
    parser.add_argument("--anew", action="store_true")
    args = parser.parse_args()
    drawn = json.loads((HERE / "drawn.json").read_text())
    stored = json.loads(args.out.read_text())["models"] if args.out.exists() and not args.anew else []
    rows = {(row["package"], row["name"]): row for row in stored}
    for number, model in enumerate(drawn["models"], 1):
        key = (model["package"], model["name"])
        if args.only not in "/".join(key) or (key in rows and not args.only):
            continue
        row = one(model, args.limit, args.verbs)
        if key in rows and len(args.verbs.split(",")) < len(VERBS):
            row["verbs"] = rows[key]["verbs"] | row["verbs"]
        rows[key] = row
        print(f"{number}/{len(drawn['models'])} {'/'.join(key)} {row.get('seconds', 0):.0f}s {short(row)}", flush=True)
        ordered = [rows[k] for k in ((m["package"], m["name"]) for m in drawn["models"]) if k in rows]
        found = {"schema": 1, "environment": environment("cpu"), "versions": drawn["versions"], "models": ordered}
        beside = args.out.with_suffix(".tmp")
        beside.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        beside.replace(args.out)


if __name__ == "__main__":
    main()
