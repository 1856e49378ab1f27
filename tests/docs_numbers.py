"""Parts of the README and the site that come from stored results or stand on several pages, and their places.

    python tests/docs_numbers.py            writes them between the marks of each page

A part between `<!-- numbers: NAME -->` and `<!-- end -->` is what the function NAME of `PARTS` gives.
"""

import json
import re
from collections import Counter
from functools import cache

from docs_pages import PAGES, ROOT
from normscope.papers import Store, all_entries, judge
from normscope.papers.paper_pages import OWN, paper_of
from normscope.tuning.prior import MEASURED, RATES

_MARKED = re.compile(r"(<!-- numbers: ([\w-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def accuracy():
    """The summary of the accuracy page, which a test compares with the stored results."""
    page = (ROOT / "docs/evidence/accuracy.md").read_text(encoding="utf-8")
    return page.split("## In short\n\n")[1].split("\n\n")[0]


SHORT = (
    "networks drawn at random",
    "training, cross-entropy",
    "tasks its rule was not made with",
    "tasks it was developed on",
    "tasks written without it",
)


def accuracy_in_short():
    """Five rows of the summary."""
    head, rule, *rows = accuracy().splitlines()
    return "\n".join([head, rule, *(row for row in rows if any(words in row for words in SHORT))])


CALLS = {
    "Which learning rate do I train with?": ("tune", "tune", "5 % of the training, 10 % of a short one"),
    "Where does training turn unstable? Nothing has run yet.": ("predict", "predict", "under a second"),
    "The same on my data: which layer is largest?": ("measure", "measure", "seconds"),
    "What is wrong with my normalization?": ("diagnose", "diagnose", "seconds, at most 60"),
    "What is happening while I train?": ("Monitor", "monitor", "5 % of the training time, or what you allow"),
    "What really happens over learning rate, gamma, seed?": ("sweep", "sweep", "minutes to hours"),
    "Is another normalizer better here?": ("swap_norms", "", "a training for each"),
    "Does a claim of the papers hold?": ("reproduce", "reproduce", "seconds to hours"),
    "Do their theorems hold on my layer?": ("bounds", "bounds", "seconds"),
}
PAGE_OF = {"Monitor": "monitor", "swap_norms": "norms"}


def calls():
    """Which call answers which question: one table for the README, the home page and the reference."""
    lines = ["| question | call | in the shell | takes |", "|---|---|---|---|"]
    for question, (name, verb, takes) in CALLS.items():
        call, shell = (
            f"[`ns.{name}`](docs/reference/{PAGE_OF.get(name, name)}.md)",
            f"`normscope {verb}`" if verb else "-",
        )
        lines.append(f"| {question} | {call} | {shell} | {takes} |")
    return "\n".join(lines)


def models_of_others():
    """How many models of other libraries each verb answered for."""
    rows = json.loads((ROOT / "benchmarks/results/zoo.json").read_text(encoding="utf-8"))["models"]
    rows = [row["verbs"] for row in rows if "dropped" not in row]
    answered = {
        verb: sum(row[verb]["outcome"] == "answered" for row in rows) for verb in ("predict", "measure", "monitor")
    }
    return (
        "**[Does it fit my model, loss and optimizer?](docs/does-it-fit.md)** "
        "`measure`, `tune` and the Monitor work with\n"
        "[transformers](docs/how-to/hugging-face.md), AdamW and [LoRA](docs/how-to/fine-tuning.md); `predict` refuses "
        f"attention. Of\n[{len(rows)} models of other libraries](docs/evidence/zoo.md), `measure` answered for "
        f"{answered['measure']}, the Monitor for {answered['monitor']}, `predict` for {answered['predict']}."
    )


@cache
def _judged():
    store = Store(ROOT / "results/reproduce")
    return {one.name: one for entry in all_entries().values() for one in judge(entry, store)}


def papers():
    """How many statements of the papers were reproduced, and three results with their numbers."""
    counts = Counter(one.verdict for one in _judged().values() if paper_of(one.entry).file != OWN)
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


def usual_rates():
    """The rate at which `tune` begins its search, for each optimizer."""
    lines = ["| optimizer | usual rate | from |", "|---|---|---|"]
    for name, rate in RATES.items():
        measured = "tasks of 500 to 2,000 steps" if name in MEASURED else "the ratio of torch's defaults to Adam's"
        lines.append(f"| {name} | {rate:g} | {measured} |")
    return "\n".join(lines)


PARTS = {
    "accuracy": accuracy,
    "accuracy-in-short": accuracy_in_short,
    "calls": calls,
    "models-of-others": models_of_others,
    "papers": papers,
    "usual-rates": usual_rates,
}


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
