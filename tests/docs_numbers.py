"""Numbers of the README and the site that come from stored results, and the places where they stand.

    python tests/docs_numbers.py            writes them between the marks of each page

A part between `<!-- numbers: NAME -->` and `<!-- end -->` is what the function NAME of `PARTS` gives.
"""

import json
import re
from collections import Counter
from functools import cache
from statistics import median

from docs_pages import PAGES, ROOT
from normscope.loss_kinds import CROSS_ENTROPY
from normscope.papers import Store, all_entries, judge
from normscope.stability.first_guess import ADAM, COST, MOMENTUM
from normscope.sweeping import PhaseDiagram
from normscope.sweeping.diagram import stored_lines

_MARKED = re.compile(r"(<!-- numbers: ([\w-]+) -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)


@cache
def _stored(path):
    return json.loads((ROOT / path).read_text(encoding="utf-8"))


@cache
def _distances(name):
    """Distances in decades from eta* to the boundary of divergence, by the line they are of."""
    path = ROOT / f"results/{name}.json"
    return PhaseDiagram.load(path).agreement(stored_lines(path))


def accuracy():
    """How far off each answer was: one row for each comparison that is stored."""
    return "\n".join(
        [
            "| answer | compared with | median error | worst | n |",
            "|---|---|---|---|---|",
            *_of_predictions(),
            *_of_boundaries(),
            _of_first_guess(ADAM, "Adam"),
            _of_first_guess(MOMENTUM, "SGD with momentum"),
            _of_watched_runs(),
        ]
    )


def _of_predictions():
    errors = [abs(row["error"]) for row in _stored("results/theory-lambda.json")["rows"] if row["stats"] == "batch"]
    random = _stored("benchmarks/results/calibration.json")["rows"]
    off = [max(row["ratio"], 1 / row["ratio"]) - 1 for row in random if not row["refused"]]
    seen = sum(row["inside"] for row in random if not row["refused"])
    link = "[theory](docs/evidence/theory.md)"
    yield (
        f"| lambda_max, predicted | measured, architectures used to develop the theory ({link}) "
        f"| {median(errors):.0%} | {max(errors):.0%} | {len(errors)} |"
    )
    yield (
        f"| lambda_max, predicted | measured, networks drawn at random; {len(random) - len(off)} more were refused; "
        f"{seen} of {len(off)} inside the stated range ({link}) | {median(off):.0%} | {max(off):.0%} | {len(off)} |"
    )


def _of_boundaries():
    near = _distances("phase-mnist-mlp")["predicted"]
    far = _distances("phase-mnist-mlp-cross-entropy")["predicted"]
    link = "[reproductions](docs/evidence/reproductions/wei-2019.md)"
    for words, found in (("squared error", near), ("cross-entropy", far)):
        sizes = [abs(each) for each in found.by_value.values()]
        yield (
            f"| eta\\*, predicted | where training of an MLP diverged, {words} ({link}) "
            f"| {_times(median(sizes))} | {_times(max(sizes))} | {len(sizes)} |"
        )


def _times(decades):
    """A distance in decades as a factor in two digits."""
    return f"{float(f'{10**decades:.2g}'):g}x"


def _of_first_guess(descent, words):
    n, middle, worst = COST[CROSS_ENTROPY, descent]
    return (
        f"| first guess, {words} | best rate of a grid, test accuracy "
        f"([tasks](docs/evidence/reproductions/own-claims.md)) | {middle:g} points | {worst:g} points | {n} |"
    )


def _of_watched_runs():
    models = _stored("benchmarks/results/zoo.json")["models"]
    runs = [model["verbs"]["monitor"] for model in models if "monitor" in model["verbs"]]
    answered = [run for run in runs if run["outcome"] == "answered"]
    differing = sum(not run["bit_exact"] for run in answered)
    assert differing == 0
    return (
        "| a run with the Monitor | the same run without, models of 13 packages "
        f"([list](docs/evidence/zoo.md)) | 0 bits | 0 bits | {len(answered)} |"
    )


@cache
def _verdicts():
    store = Store(ROOT / "results/reproduce")
    return Counter(one.verdict for entry in all_entries().values() for one in judge(entry, store))


def tally():
    """How many statements of the papers were reproduced."""
    counts = _verdicts()
    return (
        f"Of {counts.total()} statements, {counts['reproduced']} were reproduced, {counts['reproduced in part']} in "
        f"part, {counts['not reproduced']} were not, and {counts['the statement is wrong']} are wrong as printed."
    )


PARTS = {"accuracy": accuracy, "tally": tally}


def filled(page):
    """The text of the page with every part as the stored results give it now."""
    # Links in PARTS lead from the root of the repository.
    up = "../" * (len(page.relative_to(ROOT).parts) - 2) if page.parent != ROOT else "docs/"
    text = page.read_text(encoding="utf-8")
    return _MARKED.sub(lambda match: match[1] + PARTS[match[2]]().replace("](docs/", f"]({up}") + match[4], text)


if __name__ == "__main__":
    for page in PAGES:
        if filled(page) != page.read_text(encoding="utf-8"):
            page.write_text(filled(page), encoding="utf-8")
