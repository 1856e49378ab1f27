"""docs/evidence/zoo.md from the stored run.

python benchmarks/zoo/page.py benchmarks/results/zoo.json > docs/evidence/zoo.md
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VERBS = ("predict", "measure", "monitor", "swap", "fold")
TITLES = {"predict": "predict", "measure": "measure", "monitor": "Monitor", "swap": "swap_norms", "fold": "fold_norms"}
Row = dict[str, Any]
_MADE = "Written by: python benchmarks/zoo/page.py benchmarks/results/zoo.json > docs/evidence/zoo.md"


class Notes:
    """Messages with their numbers; one number for messages that differ in names and numbers alone."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        self.said: list[tuple[str, str, list[str]]] = []

    def number(self, verb: str, model: str, message: str) -> int:
        key = (verb, message)
        if key not in self._numbers:
            self.said.append((TITLES[verb], message, []))
            self._numbers[key] = len(self.said)
        names = self.said[self._numbers[key] - 1][2]
        if model not in names:
            names.append(model)
        return self._numbers[key]


def kept(stored: Row) -> list[Row]:
    return [row for row in stored["models"] if "dropped" not in row]


def refused(found: Row) -> bool:
    return found["outcome"] in ("refused", "silent")


def failures(stored: Row) -> list[str]:
    """Failures: exceptions that are no refusals, models changed, runs moved, wrong swaps and folds."""
    return [f"{row['package']}/{row['name']}: {what}" for row in kept(stored) for what in _failures(row)]


def _failures(row: Row) -> Iterator[str]:
    if row.get("ended") or set(row["verbs"]) != set(VERBS):
        yield f"the run was not finished: {row.get('ended', '')}"
    for verb, found in row["verbs"].items():
        if found["outcome"] == "crash":
            yield f"{TITLES[verb]}: {found['type']}: {_short(found['message'])}"
        if found["outcome"] == "silent":
            yield f"{TITLES[verb]} refuses and names no way on: {_short(found['message'])}"
        if found["outcome"] == "answered" and found.get("raised", {}).get("outcome") == "silent":
            yield f"{TITLES[verb]} leaves out a part and names no way on: {_short(found['raised']['message'])}"
        if found.get("changed"):
            yield f"{TITLES[verb]} changed the model: {found['changed'][0]}"
    verbs = row["verbs"]
    yield from _training(verbs.get("measure", {}), verbs.get("monitor", {}))
    swap = verbs.get("swap", {})
    for to, found in swap.get("to", {}).items():
        yield from _swap(to, found)
    if swap.get("normalizers") and not swap.get("named", True):
        yield f"swap_norms refuses and names none of {swap['normalizers']} normalizers: {_short(swap['message'])}"
    fold = verbs.get("fold", {})
    if fold.get("equal") is False:
        yield f"fold_norms: outputs differ by {float(fold['outputs_off']):.1e}"


def _training(measure: Row, monitor: Row) -> Iterator[str]:
    if measure.get("then_trains_alike"):
        yield f"training after measure differs: {measure['then_trains_alike'][0]}"
    if monitor.get("detached"):
        yield f"Monitor detached {monitor['detached'][0]} from the optimizer"
    if monitor.get("bit_exact") is False:
        yield "the watched run is not the unwatched one bit for bit"
    witness = measure.get("witness", {})
    if "at_its_vector" in witness and not abs(float(witness["at_its_vector"]) - 1) < 1e-3:
        yield f"measure: v'Av is {float(witness['at_its_vector']):.4f} times lambda_max"
    if "power_iteration" in witness and float(witness["power_iteration"]) > 1.01:
        yield f"measure: a power iteration reached {float(witness['power_iteration']):.3f} times lambda_max"


def _swap(to: str, found: Row) -> Iterator[str]:
    if found["outcome"] in ("crash", "silent"):
        yield f"swap_norms to {to}: {found['outcome']}: {_short(found['message'])}"
    if found.get("wrong"):
        first, count = next(iter(found["wrong"])), len(found["wrong"])
        yield f"swap_norms to {to}: {count} layers compute something else, {first} first"
    if found.get("skipped_in_silence"):
        first, count = found["skipped_in_silence"][0], len(found["skipped_in_silence"])
        yield f"swap_norms to {to}: {count} normalizers skipped without a word, {first} first"
    if found.get("forward"):
        yield f"swap_norms to {to}: then the forward fails: {_short(found['forward'])}"
    if found.get("same_kind") and not found.get("equal", True):
        yield f"swap_norms to {to}, the model's own kind: outputs differ by {float(found['outputs_off']):.1e}"


def _short(message: str) -> str:
    line = message.splitlines()[0] if message else ""
    return line if len(line) <= 160 else line[:157] + "..."


def _cell(row: Row, verb: str, notes: Notes) -> str:
    found = row["verbs"].get(verb)
    if found is None:
        return "not run"
    if found["outcome"] == "crash":
        return f"**{found['type'] or 'ended'}**"
    if refused(found):
        return f"refused [{notes.number(verb, row['name'], found['message'])}]"
    said = _ANSWERED[verb](found)
    if verb == "predict" and (times := measured_times(row)):
        said += f"; here {times:.2g}"
    return said


def measured_times(row: Row) -> float:
    """The measured lambda_max over the predicted one, both for cross-entropy; 0 where one is missing."""
    predicted, measured = (row["verbs"].get(verb, {}) for verb in ("predict", "measure"))
    if predicted.get("loss") != "cross_entropy" or measured.get("loss_kind") != "cross_entropy":
        return 0.0
    if measured.get("matrix") != "ggn" or not float(predicted["lambda_max"]) > 0:
        return 0.0
    return float(measured["lambda_max"]) / float(predicted["lambda_max"])


def _predict(found: Row) -> str:
    low, high = (float(one) for one in found["range"])
    return f"{float(found['lambda_max']):.3g}, {low:.2g} to {high:.3g} times"


def _measure(found: Row) -> str:
    doubt = "" if found["converged"] else ", not converged"
    kind = {"ggn": "", "hessian": " (Hessian)"}.get(found["matrix"], f" ({found['matrix']})")
    return f"{float(found['lambda_max']):.3g}{kind}{doubt}"


def _monitor(found: Row) -> str:
    some = f" but for {', '.join(sorted(found['errors']))}" if found["errors"] else ""
    return f"{'bit-exact' if found['bit_exact'] else '**not bit-exact**'}{some}"


def _swapped(found: Row) -> str:
    own = found["to"][found["own"]]
    left = f", {len(own['left'])} left" if own["left"] else ""
    return f"{own['swapped']} ({found['own']}){left}"


def _folded(found: Row) -> str:
    if not found["batch_norms"]:
        return "no BatchNorm"
    off = f", off by {float(found.get('in_float64', found['outputs_off'])):.0e}" if found["folded"] else ""
    off += " in float64" if "in_float64" in found else ""
    off += ", with example=" if "first_refused" in found else ""
    return f"{found['folded']} of {found['batch_norms']}{off}"


_ANSWERED = {"predict": _predict, "measure": _measure, "monitor": _monitor, "swap": _swapped, "fold": _folded}


def _totals(rows: list[Row]) -> list[str]:
    lines = ["| | answered | refused by name | failed |", "|---|---|---|---|"]
    for verb in VERBS:
        outcomes = Counter(row["verbs"].get(verb, {"outcome": "crash"})["outcome"] for row in rows)
        failed = outcomes["crash"] + outcomes["silent"]
        lines.append(f"| {TITLES[verb]} | {outcomes['answered']} | {outcomes['refused']} | {failed} |")
    return lines


_LEGEND = """\
- predict: lambda_max; which multiples of such predictions are measured; which one was here, for the same loss.
- measure: lambda_max of the generalized Gauss-Newton matrix, or of the Hessian where it says so.
- Monitor: whether the watched run equals the unwatched one bit for bit, and what could not be measured.
- swap_norms: layers exchanged for new ones, the kind that most of them are, and layers left with a reason.
- fold_norms: BatchNorms folded, the largest relative difference of the outputs, and whether it asked for example=.
- Numbers in brackets lead to the messages below the table."""


def _head(stored: Row, rows: list[Row]) -> list[str]:
    why = Counter(row["why"] for row in stored["models"])
    packages = {row["package"] for row in rows}
    made = stored["environment"]
    exact = sum(bool(row["verbs"].get("monitor", {}).get("bit_exact")) for row in rows)
    witnesses = [row["verbs"].get("measure", {}).get("witness", {}) for row in rows]
    seen = [abs(float(one["at_its_vector"]) - 1) for one in witnesses if "at_its_vector" in one]
    failed = failures(stored)
    return [
        f"All verbs on {len(rows)} models from {len(packages)} packages that are not ours, with the weights that their",
        "constructors give. [A seeded rule](../../benchmarks/zoo/draw.py)",
        f"drew {why['drawn']} models by package and size before the first run;",
        f"{why['named']} more had shown faults before. Only a limit of resources drops a model:",
        f"{len(stored['models']) - len(rows)} were dropped ([list](#dropped)).",
        f"[All numbers](../../benchmarks/results/zoo.json): torch {made['torch']}, {made['device']}, one thread.",
        "",
        *_totals(rows),
        "",
        f"- The watched run of {exact} of {len(rows)} equals an unwatched one bit for bit: parameters, buffers",
        "  and optimizer state; the optimizer holds the very objects that are the model's parameters.",
        "- After each verb the model was compared with what it was before, object for object and bit for bit.",
        f"- For {len(seen)} models a second program confirmed the eigenvector: v'Av equals lambda_max up to a relative",
        f"  difference of {max(seen, default=0.0):.0e}, and no power iteration from a random start went beyond it.",
        "- After a swap each new layer was compared with the formula of its kind, on its input in the model.",
        f"- Cases of what must not be: {len(failed) or 'none'}.",
        *[f"    - {_plain(one)}" for one in failed],
    ]


def page(stored: Row) -> str:
    rows, notes = kept(stored), Notes()
    table = ["| model | parameters | " + " | ".join(TITLES[v] for v in VERBS) + " |", "|---" * 7 + "|"]
    for package in sorted({row["package"] for row in rows}):
        table.append(f"| **{package} {stored['versions'][package]}** | | | | | | |")
        for row in (one for one in rows if one["package"] == package):
            cells = " | ".join(_cell(row, verb, notes) for verb in VERBS)
            table.append(f"| {row['name']} | {row['parameters']:,} | {cells} |")
    said = [f"{i}. {verb} ({', '.join(names)}): {_plain(text)}" for i, (verb, text, names) in enumerate(notes.said, 1)]
    dropped = [row for row in stored["models"] if "dropped" in row]
    lines = ["# Other people's models", "", f"<!-- {_MADE} -->", "", *_head(stored, rows), ""]
    lines += ["## Models", "", _LEGEND, "", *table, "", "## Refusals", "", *(said or ["None."]), ""]
    lines += ["## Dropped", ""]
    lines += [f"- {row['package']} {row['name']}: {_plain(row['dropped'])}." for row in dropped] or ["None."]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """On one line, without what Markdown or HTML would take for its own."""
    line = " ".join(text.split())
    for sign in "\\`*_[]<>|":
        line = line.replace(sign, f"\\{sign}")
    return line


if __name__ == "__main__":
    print(page(json.loads(Path(sys.argv[1]).read_text())), end="")
