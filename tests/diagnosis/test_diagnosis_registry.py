"""Rules are registered under an id of their own."""

import pytest

from normscope.diagnosis.registry import chosen, rule, rules


def test_ids_and_names_differ():
    known = rules()
    assert len({each.name for each in known.values()}) == len(known) >= 15


def test_an_id_is_taken_once():
    def check(look):
        yield from ()

    with pytest.raises(ValueError, match="NS101 is the id of momentum-inverted"):
        rule("NS101", "mine")(check)
    with pytest.raises(ValueError, match="three digits"):
        rule("NS9", "mine")(check)


def test_rules_are_chosen_by_id_or_name():
    assert [each.id for each in chosen("momentum-inverted")] == ["NS101"]
    assert len(chosen(None)) == len(rules())
