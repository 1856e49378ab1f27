"""The registry of rules by id and name.

To add a rule, write a file in `rules/` with one function under `@rule`. Its docstring is its page in the documentation,
with the sections that `rule_pages.py` lists; its examples are run by the tests.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from normscope.diagnosis.finding import Cost, Evidence, Finding
from normscope.diagnosis.look.look import Look
from normscope.messages.choices import check_choice

# Things that a rule may need beside the model, with the reason to give where one is missing.
NEEDS = {
    "batches": "there are no batches",
    "optimizer": "there is no optimizer",
    "eval_batches": "there are no evaluation batches",
}
_ID = re.compile(r"NS[123]\d\d")


@dataclass(frozen=True)
class Found:
    """A finding as its rule gives it: without id and name."""

    severity: str
    text: str
    evidence: Evidence
    fix: str
    layers: Sequence[str] = ()
    cost: Cost = field(default_factory=Cost)
    source: str = ""


Check = Callable[[Look], Iterator[Found]]


@dataclass(frozen=True)
class Rule:
    """A rule. id: "NS" and three digits. needs: keys of `NEEDS`. check: the function that judges."""

    id: str
    name: str
    needs: tuple[str, ...]
    check: Check

    def findings(self, look: Look) -> list[Finding]:
        """The findings of this rule."""
        return [
            Finding(
                self.id, self.name, each.severity, tuple(each.layers), _sentence(each.text), each.evidence, each.cost,
                each.fix, each.source,
            )
            for each in self.check(look)
        ]  # fmt: skip


def _sentence(text: str) -> str:
    """The text with a capital letter, unless it begins with a layer's own name."""
    return text[0].upper() + text[1:] if text.startswith(("layer ", "the ")) else text


_RULES: dict[str, Rule] = {}


def rule(id: str, name: str, *, needs: Sequence[str] = ()) -> Callable[[Check], Check]:
    """Register the decorated function as a rule.

    Args:
        id: "NS1.." for configuration, "NS2.." for statistics and data, "NS3.." for training and rates.
        name: words joined by hyphens.
        needs: keys of `NEEDS`: the rule is left out where one of them is missing.

    Raises:
        ValueError: an id of another form, or one that another rule has.
    """
    if not _ID.fullmatch(id):
        raise ValueError(f"A rule's id is NS and three digits, the first of them 1 to 3; got {id!r}.")

    def register(check: Check) -> Check:
        known = _RULES.get(id)
        if known is not None and known.check.__module__ != check.__module__:
            raise ValueError(f"{id} is the id of {known.name}; give {name} another one.")
        _RULES[id] = Rule(id, name, tuple(needs), check)
        return check

    return register


def rules() -> dict[str, Rule]:
    """All rules by id."""
    import_module("normscope.diagnosis.rules")
    return dict(sorted(_RULES.items()))


def chosen(names: Sequence[str] | str | None) -> list[Rule]:
    """The rules with these ids or names; all of them for None.

    Raises:
        ValueError: no rule has that id or name; the message offers the nearest.

    Example:
        >>> [each.name for each in chosen(["NS101", "momentum-inverted"])]
        ['momentum-inverted']
    """
    known = rules()
    if names is None:
        return list(known.values())
    by_name: dict[str, Rule] = {key: each for each in known.values() for key in (each.id, each.name)}
    asked: dict[str, Any] = {}
    for name in [names] if isinstance(names, str) else names:
        if name not in by_name:
            _refuse(name, by_name)
        asked[by_name[name].id] = by_name[name]
    return list(asked.values())


def _refuse(name: object, by_name: dict[str, Rule]) -> None:
    kind = "id" if str(name)[:2].upper() == "NS" else "name"
    check_choice(f"the {kind} of a rule", name, [getattr(each, kind) for each in dict.fromkeys(by_name.values())])
