"""The papers that have a page in the gallery, and the page of each entry.

To add a paper, add a `Paper` to `PAPERS`, and its page to `mkdocs.yml`.
"""

from dataclasses import dataclass

from normscope.papers.entry import Entry


@dataclass(frozen=True)
class Paper:
    """One page of the gallery.

    Attributes:
        file: the page's file name, without ".md".
        title: the page's heading.
        mark: an entry belongs on this page if its source has these words.
        introduction: the first sentences of the page.
    """

    file: str
    title: str
    mark: str
    introduction: str


# The page of claims that no source makes.
OWN = "own-claims"
PAPERS = (
    Paper(
        "santurkar-2018",
        "Santurkar et al. 2018",
        "How Does Batch Normalization Help Optimization?",
        'Figures and theorems of "How Does Batch Normalization Help Optimization?".',
    ),
    Paper(
        "wei-2019",
        "Wei et al. 2019",
        "Mean-field analysis of batch normalization",
        'Figures and formulas of "Mean-field analysis of batch normalization", and experiments of this project that '
        "explain what came out of them.",
    ),
    Paper(
        "encyclopedia",
        "The encyclopedia article",
        'Encyclopedia article "Batch normalization"',
        'Statements of the encyclopedia article "Batch normalization" and of the papers it quotes. The article states '
        "no settings; the settings are this project's.",
    ),
    Paper(
        OWN,
        "Claims of this project",
        "ours",
        "Claims that this project makes itself, judged in the same way: what a learning rate named before training "
        "costs.",
    ),
)


def paper_of(entry: Entry) -> Paper:
    """The page of an entry: the paper that its source names first."""
    named = [paper for paper in PAPERS if paper.mark in entry.source]
    if not named:
        raise ValueError(
            f"The source of the entry {entry.name!r} names no paper of papers/paper_pages.py; it is {entry.source!r}. "
            "Add a Paper to PAPERS there, or write the mark of a listed paper into the source: "
            f"{', '.join(paper.mark for paper in PAPERS)}."
        )
    return min(named, key=lambda paper: (paper.mark == "ours", entry.source.index(paper.mark)))
