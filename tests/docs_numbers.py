"""Numbers of the README and the site that come from stored results, and the places where they stand.

    python tests/docs_numbers.py            writes them between the marks of each page

A part between `<!-- numbers: NAME -->` and `<!-- end -->` is what the function NAME of `PARTS` gives.
"""

import re
from collections import Counter
from functools import cache

from docs_pages import PAGES, ROOT
from normscope.papers import Store, all_entries, judge

_MARKED = re.compile(r"(<!-- numbers: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def accuracy():
    """The summary of the accuracy page, which a test compares with the stored results."""
    page = (ROOT / "docs/evidence/accuracy.md").read_text(encoding="utf-8")
    return page.split("## In short\n\n")[1].split("\n\n")[0]


@cache
def _judged():
    store = Store(ROOT / "results/reproduce")
    return {one.name: one for entry in all_entries().values() for one in judge(entry, store)}


def papers():
    """How many statements of the papers were reproduced, and three results with their numbers."""
    counts = Counter(one.verdict for one in _judged().values())
    total, part, wrong = counts.total(), counts["reproduced in part"], counts["the statement is wrong"]
    return (
        "Every figure and claim about BatchNorm of Santurkar et al. 2018, of Wei et al. 2019 and of an encyclopedia "
        f"article was\nrun again. Of {total} statements, {counts['reproduced']} were reproduced, {part} in part, "
        f"{counts['not reproduced']} were not, and {wrong} are wrong as printed.\n"
        "Rules were written before the runs, with exceptions that are named. Three findings:\n\n"
        f"{_findings()}"
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
