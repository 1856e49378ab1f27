"""The one decoder: what fits a type comes back as it, what does not is named with its place."""

import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict

import pytest

from normscope.results.decoding import MOST_DEPTH, Count, Misfit, Positive, Range, decode, parsed


@dataclass(frozen=True)
class Point:
    x: float
    names: tuple[str, ...] = ()


class Held(TypedDict):
    points: list[Point]
    rate: Positive
    seed: Count
    note: NotRequired[str | None]


def test_what_fits_comes_back_as_its_type():
    stored = {"points": [{"x": "inf", "names": ["a"], "more": 1}, {"x": 2}], "rate": 0.5, "seed": 3, "other": [1]}
    found = decode(Held, json.loads(json.dumps(stored)))
    assert found["points"] == [Point(math.inf, ("a",)), Point(2.0)]
    assert found["other"] == [1]
    assert "note" not in found
    assert decode(dict[str, Any], {"a": {"b": 1}}) == {"a": {"b": 1}}
    assert decode(tuple[float, int], [1, 2]) == (1.0, 2)


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Held, [], "it must be a table; got a list of 0|it must be a table; got \\[\\]"),
        (Held, {"points": [], "rate": 1}, "it lacks 'seed'"),
        (Held, {"points": [{}], "rate": 1, "seed": 0}, r"points\[0\] lacks 'x'"),
        (Held, {"points": [], "rate": 0, "seed": 0}, "rate must be a number .*above 0; got 0"),
        (Held, {"points": [], "rate": "nan", "seed": 0}, "rate must be a number"),
        (Held, {"points": [], "rate": True, "seed": 0}, "rate must be a number; got True"),
        (Held, {"points": [], "rate": 1, "seed": 1.0}, "seed must be an integer; got 1.0"),
        (Held, {"points": [], "rate": 1, "seed": 1, "note": 2}, "note must be text; got 2"),
        (tuple[float, float], [1.0], "a list of 2"),
        (bool, 1, "true or false"),
        (list[str], "abc", "a list"),
        (str, ["x" * 10**6], "must be text; got "),
        (Annotated[float, Range(0, 1)], 2, "from 0 to 1; got 2"),
    ],
)
def test_what_does_not_fit_is_named_shortly(kind, value, said):
    with pytest.raises(Misfit, match=said) as raised:
        decode(kind, value)
    assert len(str(raised.value)) < 300


def test_json_is_bounded():
    assert parsed("[" * MOST_DEPTH + "]" * MOST_DEPTH)
    for text, said in (
        ("[" * 100 + "]" * 100, "nested more than 64 deep"),
        ("[" * 100_000, "nested more than 64 deep"),
        ("9" * 5000, "of 5000 digits"),
        ("-" + "9" * 20, "of 21 digits"),
    ):
        with pytest.raises(Misfit, match=said):
            parsed(text)
    assert parsed(str(-(2**62))) == -(2**62)
