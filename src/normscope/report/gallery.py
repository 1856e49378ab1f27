"""Evidence pages of the documentation: claims by paper with tables and pictures, and the exceptions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from normscope.papers.entry import IN_PART, NOT, OPEN, REPRODUCED, WRONG, Entry, JudgedStatement, fitting_curves, stored
from normscope.papers.paper_pages import OWN, PAPERS, Paper, paper_of
from normscope.papers.store import Store
from normscope.report.chart import Chart
from normscope.report.drawing import draw
from normscope.report.sections.claims import reduced, summary
from normscope.results.decoding import check_file
from normscope.results.saving import save_figure, save_text

FOLDER = "docs/evidence/reproductions"
IMAGES = "docs/images/reproduce"
EXCEPTIONS = "docs/evidence/sceptic.md"


def tables(chosen: Iterable[Entry], store: Store) -> dict[str, str]:
    """Tables in Markdown by the name of the entry, for entries that have a table and the curves for it."""
    written = {}
    for entry in chosen:
        for scale in ("paper", "small"):
            with fitting_curves(entry):
                rows = entry.table(stored(entry, store, scale))
            if rows:
                head, *rest = rows
                written[entry.name] = _table(head, rest)
                break
    return written


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(map(_row, (head, ["---"] * len(head), *rows)))


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def pages(
    chosen: Iterable[Entry], judged: Sequence[JudgedStatement], pictures: Iterable[str], shown: Mapping[str, str]
) -> dict[str, str]:
    """All evidence pages about claims, by their path below the project's folder.

    Args:
        chosen: the entries, in the order of the pages.
        judged: the verdicts of the entries' statements.
        pictures: names of the entries that have a picture.
        shown: tables in Markdown by the name of the entry.
    """
    entries, drawn = list(chosen), set(pictures)
    written = {f"{FOLDER}/index.md": index(entries, judged), EXCEPTIONS: exceptions(judged)}
    for paper in PAPERS:
        own = [one for one in judged if paper_of(one.entry) is paper]
        parts = [f"# {paper.title}", "", paper.introduction, "", f"{summary(own)}. {_MADE}", ""]
        parts += [
            _section(entry, [one for one in own if one.entry is entry], entry.name in drawn, shown.get(entry.name))
            for entry in entries
            if paper_of(entry) is paper
        ]
        written[f"{FOLDER}/{paper.file}.md"] = "\n".join(parts)
    return written


def _section(entry: Entry, judged: Sequence[JudgedStatement], picture: bool, table: str | None) -> str:
    lines = [f"## {entry.name}: {entry.title}", ""]
    lines += [f"Source: {_linked(entry.source, '../')}. Settings: {entry.origin}.", ""]
    if picture:
        lines += [f"![{entry.title}](../../images/reproduce/{entry.name}.png)", ""]
    if table:
        lines += [*_CAPTIONS.get(entry.name, ()), table, ""]
    if not judged and not picture:
        lines += ["Not yet run.", ""]
    for one in judged:
        count = str(one.n) if one.parts else f"{one.n} of {one.statement.n}"
        lines += [f"**{one.statement.key}**: {one.statement.words}", ""]
        lines += [f"- Rule: {one.statement.rule}", f"- Result: {one.came_out or 'nothing yet'}."]
        lines.append(f"- Verdict: **{one.verdict}** (n = {count}, {one.scale} scale)")
        if one.statement.means and one.parts:
            lines.append(f"- Explanation: {_linked(one.statement.means, '../')}")
        lines.append("")
    return "\n".join(lines)


def _linked(text: str, up: str) -> str:
    """The text with errata and other files of the documentation as links."""
    text = re.sub(r"docs/evidence/errata\.md, (E-[A-Z]+-\d+)", rf"[\1]({up}errata.md#\1)", text)
    return re.sub(r"docs/evidence/(\w+)\.md", rf"[\1]({up}\1.md)", text)


def index(chosen: Iterable[Entry], judged: Sequence[JudgedStatement]) -> str:
    """The first page: how to read the verdicts, their numbers by paper, and one line for each entry."""
    ours = [one for one in judged if paper_of(one.entry).file == OWN]
    sources = [one for one in judged if one not in ours]
    lines = [_INDEX.format(sources=summary(sources), ours=summary(ours)), "## Verdicts by paper", ""]
    lines += [_table(("paper", *_SHORT.values(), "statements"), [_counts(paper, judged) for paper in PAPERS]), ""]
    lines += ["## Entries", ""]
    rows = []
    for entry in chosen:
        own = [one for one in judged if one.entry is entry]
        counts = sorted({one.n for one in own})
        n = f"{counts[0]} to {counts[-1]}" if len(counts) > 1 else "".join(map(str, counts))
        link = f"[`{entry.name}`]({paper_of(entry).file}.md#{anchor(entry)})"
        rows.append((link, entry.title, _by_verdict(own) or "a picture only", n))
    return "\n".join([*lines, _table(("entry", "about", "verdicts", "n"), rows), ""])


def _counts(paper: Paper, judged: Sequence[JudgedStatement]) -> tuple[str, ...]:
    own = [one.verdict for one in judged if paper_of(one.entry) is paper]
    return (f"[{paper.title}]({paper.file}.md)", *(str(own.count(verdict)) for verdict in _SHORT), str(len(own)))


def _by_verdict(judged: Sequence[JudgedStatement]) -> str:
    by_verdict: dict[str, list[str]] = {}
    for one in judged:
        by_verdict.setdefault(one.verdict, []).append(one.statement.key + " (small scale)" * reduced(one))
    return "; ".join(f"**{verdict}**: {', '.join(keys)}" for verdict, keys in by_verdict.items())


def anchor(entry: Entry) -> str:
    """The name of an entry's heading in links, as Python-Markdown makes it."""
    kept = re.sub(r"[^\w\s-]", "", f"{entry.name}: {entry.title}").strip().lower()
    return re.sub(r"[-\s]+", "-", kept)


def exceptions(judged: Sequence[JudgedStatement]) -> str:
    """One page for a sceptical reader: the entries with statements that were not reproduced in full."""
    differing: dict[Entry, list[JudgedStatement]] = {}
    for one in judged:
        if one.verdict not in (REPRODUCED, OPEN):
            differing.setdefault(one.entry, []).append(one)
    rows = []
    for entry, own in differing.items():
        link = f"[`{entry.name}`](reproductions/{paper_of(entry).file}.md#{anchor(entry)})"
        rows.append((link, *(", ".join(one.statement.key for one in own if one.verdict == v) for v in _DIFFER)))
    open_ones = ", ".join(f"`{one.name}`" for one in judged if one.verdict == OPEN)
    parts = [_EXCEPTIONS.format(summary=summary(judged)), _table(("entry", *_DIFFER), rows), ""]
    return "\n".join([*parts, f"Not yet run: {open_ones or 'nothing'}.", ""])


def write_gallery(
    root: Path,
    chosen: Iterable[Entry],
    judged: Sequence[JudgedStatement],
    charts: Mapping[str, Chart],
    shown: Mapping[str, str],
) -> list[Path]:
    """Write the evidence pages about claims and their pictures below `root`, the folder of the project."""
    # The pages are made first: nothing is written in a folder that is not the project's.
    check_file(root / "mkdocs.yml")
    texts = {root / name: text for name, text in pages(chosen, judged, charts, shown).items()}
    images = root / IMAGES
    images.mkdir(parents=True, exist_ok=True)
    written = []
    for name, chart in charts.items():
        written.append(images / f"{name}.png")
        save_figure(draw(chart), written[-1], dpi=80)
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_text(path, text)
    return [*written, *texts]


_SHORT = {REPRODUCED: "reproduced", IN_PART: "in part", NOT: "not reproduced", WRONG: "wrong", OPEN: "not yet run"}
_DIFFER = (IN_PART, NOT, WRONG)
_CAPTIONS = {
    "advice": (
        "A cell is the rate that an adviser names before training, a colon, and the points of test accuracy that the "
        "rate loses against the best rate of the grid (mean of seeds). The last column is what `measure` names today, "
        "by a rule that was made with these tasks known.",
        "",
    ),
    "advice-held-out": (
        "Cells as in `advice`, on tasks that had no part in the shares of the critical step, trained at the named "
        "rates themselves. The last five tasks had no part in anything that `measure` does; with the others known, "
        "half of eta* was added for squared error with momentum.",
        "",
    ),
}
_MADE = "Generated by `normscope reproduce --gallery .`; [how to read it](index.md)."

_INDEX = """# Do the papers hold?

Every figure and claim about training with BatchNorm in three sources, run again and judged by rules that were written
before the runs.

- The sources. {sources}.
- Claims of this project. {ours}.

## How to read a verdict

- A statement of a source stands in our words, with the rule that decides about it.
- *Reproduced*: every part of the rule holds. *Reproduced in part*: some parts hold. *Not reproduced*:
  none holds. *The statement is wrong*: mathematics with a counterexample. *Not yet run*: fewer seeds than the rule asks
  for.
- *Paper scale*: the source's own settings where it states any. The encyclopedia article states none; the settings there
  are this project's, and a verdict on a small network of digits speaks of that network.
- Bands in pictures are the smallest and the largest of the seeds, lines are their median; a title with a seed shows
  that one alone.

Verdicts, numbers and pictures are computed from the curves in [results/reproduce](../../../results/reproduce) and the
landscapes in [results](../../../results). A test compares these pages with what the stored curves give.

```
normscope reproduce --list                   # every statement with its verdict
normscope reproduce fig-9 --scale small      # one entry, on a laptop
normscope reproduce fig-2 --scale paper      # the paper's settings, one GPU
normscope reproduce --check                  # compute every verdict again
```

## Rules that were not blind

Most rules were written before anything was run. These were not:

- `results/landscape-*.json` and `results/vgg16-cifar10.json` were there earlier. What `fig-4`, `fig-6`, `fig-9` and the
  accuracies of `fig-1` say about them was known when their rules were written, and so was the outcome of
  `fig-9/gradient-average` and `fig-10/dln-typical`.
- The bounds for VGG and the deep linear network were chosen after pilot runs, one to three seeds that are not stored;
  so were those of `mf-onset`, `every-norm` and the shares of eta* in `advice`.
- The sweep behind `mf-fig-2-mlp-mnist` (`results/phase-mnist-mlp.json`) was there before its rules, with its distances
  from measured and corrected eta*. The same rules stood before the other panels.
- `mf-modes` explains what came out of one panel; its rules were written with that panel and two of its own seeds known.
  The same holds for `mf-affine`, which explains two more panels (with a shorter pilot of seed 0), and for
  `mf-modes/convolutional`, `mf-scaling/mean-mode` and `mf-scaling/onset` (with the sweeps and the theory of seed 0).
- The corrected lines are those of the theory as it is now. Parts of the theory were derived after the panels of
  `mf-fig-2` and the curvature measured for them were known (BatchNorm by a batch's own directions, on CIFAR-10). No
  constant of the theory was fitted to them, and the rules are as they were.
"""

_EXCEPTIONS = """# For a sceptical reader

What was *not* reproduced in full. Each entry of the table leads to its rule, the numbers that came out, and an
explanation.

{summary}.

Three things explain most of what looks odd at first:

- **Effective beta saturates at 2/lr.** At the edge of stability, gradient descent oscillates. One step
  turns the gradient round, so |g' - g|/(lr |g|) is 2/lr for every network. Averages of beta say how large the learning
  rate is.
  Only spikes above 2/lr belong to the network, and with BatchNorm they are rarer and lower.
- **The deep linear network's average band is wider with BatchNorm.** Its peaks are lower, early in training and in
  some seeds by orders of magnitude (`fig-9/loss-peaks` lists them). Later its loss is much smaller than the plain
  network's, and 30 times the learning rate is far for it.
- **The first 1,500 steps of VGG are the other way round.** Without BatchNorm the network is at a flat place where
  neither gradient nor loss changes; the loss is smooth there because the network does not learn yet. `fig-4/throughout`
  says in how many seeds.

Most rules were fixed before the runs ([exceptions](reproductions/index.md#rules-that-were-not-blind)). A rule that
turned out too strict stays, with its verdict. What is wrong in the sources themselves is in [errata](errata.md).
"""
