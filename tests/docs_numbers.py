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

_MARKED = re.compile(r"(<!-- numbers: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


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
            "| answer | compared with | median error | worst | n | evidence |",
            "|---|---|---|---|---|---|",
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
        f"| predicted lambda_max | measured, on the kinds of network it was developed with "
        f"| {median(errors):.0%} | {max(errors):.0%} | {len(errors)} | {link} |"
    )
    yield (
        f"| predicted lambda_max | measured, on random networks ({seen} inside the stated range; "
        f"{len(random) - len(off)} more were refused) | {median(off):.0%} | {max(off):.0%} | {len(off)} | {link} |"
    )


def _of_boundaries():
    near = _distances("phase-mnist-mlp")["predicted"]
    far = _distances("phase-mnist-mlp-cross-entropy")["predicted"]
    link = "[reproductions](docs/evidence/reproductions/wei-2019.md)"
    for words, found in (("squared error", near), ("cross-entropy", far)):
        sizes = [abs(each) for each in found.by_value.values()]
        yield (
            f"| predicted eta\\* | where training an MLP on MNIST diverged, {words} "
            f"| {_times(median(sizes))} | {_times(max(sizes))} | {len(sizes)} gammas | {link} |"
        )


def _times(decades):
    """A distance in decades as a factor in two digits."""
    return f"{float(f'{10**decades:.2g}'):g}x"


def _of_first_guess(descent, words):
    n, middle, worst = COST[CROSS_ENTROPY, descent]
    return (
        f"| first guess of `measure` | test accuracy at the best rate of a grid, cross-entropy, {words} "
        f"| {middle:g} points | {worst:g} points | {n} tasks | [tasks](docs/evidence/reproductions/own-claims.md) |"
    )


def _of_watched_runs():
    models = _stored("benchmarks/results/zoo.json")["models"]
    runs = [model["verbs"]["monitor"] for model in models if "monitor" in model["verbs"]]
    answered = [run for run in runs if run["outcome"] == "answered"]
    differing = sum(not run["bit_exact"] for run in answered)
    assert differing == 0
    return (
        "| run with the Monitor | the same run without it, other people's models "
        f"| 0 bits | 0 bits | {len(answered)} | [models](docs/evidence/zoo.md) |"
    )


@cache
def _judged():
    store = Store(ROOT / "results/reproduce")
    return {one.name: one for entry in all_entries().values() for one in judge(entry, store)}


def papers():
    """How many statements of the papers were reproduced, and three results with their numbers."""
    return f"{_tally()} Each rule was written\ndown before its runs. Three findings:\n\n{_findings()}"


def _tally():
    counts = Counter(one.verdict for one in _judged().values())
    return (
        f"Of {counts.total()} statements, {counts['reproduced']} were reproduced, {counts['reproduced in part']} in "
        f"part, {counts['not reproduced']} were not, and {counts['the statement is wrong']} are wrong as printed."
    )


def _findings():
    names = ("fig-4/throughout", "fig-4/loss", "fig-6/dln-slow", "fig-6/dln-better")
    throughout, loss, slow, better = (_judged()[name] for name in names)
    assert (throughout.verdict, loss.verdict, better.verdict) == ("not reproduced", "reproduced", "reproduced")
    smoother, seeds = re.search(r"narrower with it in (\d+) of (\d+) seeds", throughout.came_out).groups()
    (wider,) = re.findall(r"the mean band (\S+) times", loss.came_out)
    shifts = [float(times) for times in re.findall(r"shift (\S+) times larger with", slow.came_out)]
    wrong = sum(one.verdict == "the statement is wrong" for one in _judged().values() if one.entry.name == "theorems")
    return (
        "- **Smoother, but not at first.** Over a whole run of VGG, the loss varies "
        f"{float(wider):.1f} times less along the gradient with\n  BatchNorm. In its first 1,500 steps it does so in "
        f"only {smoother} of {seeds} seeds.\n"
        "- **More covariate shift, better training.** In a deep linear network BatchNorm raises internal covariate "
        f"shift\n  {min(shifts):,.0f} to {max(shifts):,.0f} times (lr 1e-7), and ends at the lower loss in every seed "
        "(lr 1e-6).\n"
        f"- **{wrong} published statements about a BatchNorm layer are wrong as printed.** `ns.bounds` checks them on "
        "your own\n  layers, and the corrected ones, which all hold."
    )


PARTS = {"accuracy": accuracy, "papers": papers}


def filled(page):
    """The text of the page with every part as the stored results give it now."""
    # Links in PARTS lead from the root of the repository.
    up = "../" * (len(page.relative_to(ROOT).parts) - 2) if page.parent != ROOT else "docs/"
    text = page.read_text(encoding="utf-8")

    def now(match):
        return match[1] + PARTS[match[2]]().replace("](docs/", f"]({up}") + "\n" + match[4]

    return _MARKED.sub(now, text)


if __name__ == "__main__":
    for page in PAGES:
        if filled(page) != page.read_text(encoding="utf-8"):
            page.write_text(filled(page), encoding="utf-8")
