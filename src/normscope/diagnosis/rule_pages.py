"""The documentation page of a rule, from the docstring of its function and what its examples print.

The docstring's first line names the fault; then follow any paragraphs and the sections of `SECTIONS`, each a heading
with a colon and indented text. "Fails" and "Passes" hold code that makes `setup`, after the lines of `PREAMBLE`.

    python -m normscope.diagnosis.rule_pages docs/reference/rules      writes all pages
"""

import inspect
import re
import sys
from pathlib import Path
from textwrap import wrap

from normscope.diagnosis.diagnose_network import diagnose
from normscope.diagnosis.registry import Rule, rules
from normscope.diagnosis.result import Diagnosis

NORMFAULTS = (
    "NormFaults is this project's benchmark for `diagnose`: small trainings, each with and without one known fault.\n"
    "Thresholds are chosen on its development half."
)
SECTIONS = ("Why it hurts", "Threshold", "Switch off", "Fails", "Passes")
PREAMBLE = """\
import torch
from torch import nn

import normscope as ns

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
    """The code of an example, without the lines that all examples share; "" if the rule lacks that section."""
    code = parts(rule).get(heading, "")
    gap = "\n\n" if code.startswith(("class", "def", "@")) else ""
    return f"torch.manual_seed(0)\n{gap}{code}\n" if code else ""


def preamble(rule: Rule) -> str:
    """The lines that come before the examples of a rule."""
    needs_copy = any("copy." in parts(rule).get(heading, "") for heading in ("Fails", "Passes"))
    return f"import copy\n\n{PREAMBLE}" if needs_copy else PREAMBLE


def diagnosed(rule: Rule, heading: str) -> Diagnosis:
    """The diagnosis of an example by its rule."""
    namespace = {"__name__": "example"}
    exec(compile(f"{preamble(rule)}\n\n{example(rule, heading)}", f"{rule.id} {heading}", "exec"), namespace)
    return diagnose(namespace["setup"], rules=rule.id)  # type: ignore[arg-type]


def page(rule: Rule) -> str:
    """The page in Markdown; the examples are run."""
    found = parts(rule)
    first, _, rest = found[""].partition("\n\n")
    lines = [f"# {rule.id} {rule.name}", "", first, ""]
    lines += [rest, ""] if rest else []
    lines += ["## Why it hurts", "", found["Why it hurts"], ""]
    lines += ["## Examples", "", "The examples share these lines:", "", "```python", preamble(rule) + "```", ""]
    if "Fails" in found:
        failing = diagnosed(rule, "Fails")
        lines += ["This training has the fault:", "", *_shown(rule, "Fails", failing)]
        lines += ["The fix:", "", "```text", failing.findings[0].fix, "```", ""]
        lines += ["This training does not have the fault:", ""]
    else:
        lines += ["The fault needs several processes. This training does not have it:", ""]
    lines += _shown(rule, "Passes", diagnosed(rule, "Passes"))
    lines += ["## Threshold", "", found["Threshold"], ""]
    if "NormFaults" in "".join(found.values()):
        lines += [NORMFAULTS, ""]
    lines += ["## When to switch it off", "", _switch_off(rule, found["Switch off"]), ""]
    return "\n".join(lines).rstrip() + "\n"


def _shown(rule: Rule, heading: str, diagnosis: Diagnosis) -> list[str]:
    """An example and what it prints."""
    code = f'{example(rule, heading)}print(ns.diagnose(setup, rules="{rule.id}"))'
    printed = [part for line in str(diagnosis).splitlines() for part in _wrapped(line)]
    return ["```python", code, "```", "", "```text", *printed, "```", ""]


def _wrapped(line: str) -> list[str]:
    return wrap(line, 120, subsequent_indent="    ", break_on_hyphens=False, break_long_words=False) or [""]


def _switch_off(rule: Rule, reason: str) -> str:
    if reason.startswith("Never"):
        return reason
    return f"The finding does no harm in this case:\n{reason}"


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
        "`warning` or a `note`: what fails, what costs, and what is worth knowing.",
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
