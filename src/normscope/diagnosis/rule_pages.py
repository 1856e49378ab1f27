"""The documentation page of a rule, from the docstring of its function.

The docstring's first line names the fault; then follow any paragraphs and the sections of `SECTIONS`, each a heading
with a colon and indented text. "Fails" and "Passes" hold code that makes `setup`, after the lines of `PREAMBLE`.

    python -m normscope.diagnosis.rule_pages docs/reference/rules      writes all pages
"""

import inspect
import re
import sys
from pathlib import Path

from normscope.diagnosis.registry import Rule, rules

SECTIONS = ("Why it hurts", "Threshold", "Switch off", "Fails", "Passes")
PREAMBLE = """\
import copy

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
digits = ns.data.digits(seed=0)
x, y = digits.x_train.flatten(1), digits.y_train
batches = list(zip(x[:1280].split(64), y[:1280].split(64)))


def training(model, optimizer=None, batches=batches, **fields):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return ns.Setup(model, nn.CrossEntropyLoss(), batches, optimizer, **fields)
"""


def parts(rule: Rule) -> dict[str, str]:
    """The docstring's sections by heading; "" has all that comes before the first one."""
    text = inspect.getdoc(rule.check) or ""
    pattern = rf"^({'|'.join(SECTIONS)}):$"
    pieces = re.split(pattern, text, flags=re.MULTILINE)
    found = {"": pieces[0].strip()}
    for heading, body in zip(pieces[1::2], pieces[2::2], strict=True):
        found[heading] = inspect.cleandoc(body).strip()
    return found


def example(rule: Rule, heading: str) -> str:
    """The code of an example, with the lines before it; "" if the rule lacks that section."""
    code = parts(rule).get(heading, "")
    return f"{PREAMBLE}\n\n{code}\n" if code else ""


def page(rule: Rule) -> str:
    """The page in Markdown."""
    found = parts(rule)
    first, _, rest = found[""].partition("\n\n")
    lines = [f"# {rule.id} {rule.name}", "", first, ""]
    lines += [rest, ""] if rest else []
    for heading in SECTIONS[:3]:
        lines += [f"## {heading}", "", found[heading], ""]
    for heading, said in (("Fails", "This training has the fault:"), ("Passes", "This one does not:")):
        if heading in found:
            print_it = f'print([str(finding) for finding in ns.diagnose(setup, rules="{rule.id}").findings])'
            lines += [f"## {heading}", "", said, "", "```python", f"{example(rule, heading)}{print_it}", "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def index() -> str:
    """The page that lists all rules."""
    rows = [
        f"| [{each.id}]({file_name(each)}) | {each.name} | {parts(each)[''].partition(chr(10) * 2)[0]} |"
        for each in rules().values()
    ]
    head = [
        "# Rules of diagnose",
        "",
        "NS1xx are about configuration, NS2xx about statistics and data, NS3xx about training and rates. A finding is "
        "an `error`, a",
        "`warning` or a `note`; a note costs nothing.",
        "",
        "| id | name | finds |",
        "|---|---|---|",
    ]
    return "\n".join([*head, *rows]) + "\n"


def file_name(rule: Rule) -> str:
    """The name of the rule's page.

    Example:
        >>> from normscope.diagnosis.registry import chosen
        >>> file_name(chosen("NS101")[0])
        'NS101-momentum-inverted.md'
    """
    return f"{rule.id}-{rule.name}.md"


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.md").write_text(index(), encoding="utf-8")
    for each in rules().values():
        (folder / file_name(each)).write_text(page(each), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
