"""Read stored files safely: size and depth are bounded, and every value is checked against its type before use.

A type is `float`, `int`, `str`, `bool`, `None`, `Any`, `list[T]`, `tuple[T, ...]`, `tuple[A, B]`, `dict[str, T]`, a
union of these, a dataclass, or a `TypedDict`; `Annotated[float, Range(...)]` bounds a number. Code that a file names is
neither imported nor run.
"""

import json
import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from normscope.messages import brief, quoted

MOST_BYTES, MOST_DEPTH, MOST_DIGITS = 2**28, 64, 19
_WORDS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_NAMES = {float: "a number", int: "an integer", str: "text", bool: "true or false", type(None): "null"}


class Misfit(ValueError):
    """A stored value has the wrong type, range or length."""


@dataclass(frozen=True)
class Range:
    """A range of numbers from `low` to `high`, both included; `above` excludes a lower bound. nan is in no range."""

    low: float = -math.inf
    high: float = math.inf
    above: float | None = None

    def __contains__(self, number: float) -> bool:
        return self.low <= number <= self.high and (self.above is None or number > self.above)

    def __str__(self) -> str:
        above = "" if self.above is None else f" above {self.above:g}"
        return f"a number{above}" if math.isinf(self.low) else f"a number from {self.low:g} to {self.high:g}{above}"


Positive = Annotated[float, Range(above=0.0, high=1e300)]
Count = Annotated[int, Range(low=0, high=2**62)]


def check_file(path: str | Path, most: float = MOST_BYTES) -> None:
    """Raise a ValueError for a path that is not a plain file, or for a file of more than `most` bytes.

    Devices, pipes and sockets are refused, since reading them may never end.
    """
    file = Path(path)
    if not file.is_file():
        what = "is a folder" if file.is_dir() else "is not a plain file" if file.exists() else "is not there"
        raise ValueError(f"{brief(str(path))} {what}. Name a file.")
    if (size := file.stat().st_size) > most:
        raise ValueError(
            f"{brief(str(path))} has {size / 1e6:,.0f} MB; files up to {most / 1e6:,.0f} MB are read. Split it."
        )


def read_json(path: str | Path) -> Any:
    """The content of a JSON file; a ValueError for text that is not JSON does not name the file."""
    check_file(path)
    return parsed(Path(path).read_bytes())


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text, with integers of at most 19 digits and at most 64 levels."""
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise Misfit(f"it is nested more than {MOST_DEPTH} deep") from None
    check_depth(value)
    return value


def decode(wanted: Any, value: Any, where: str = "") -> Any:
    """`value` converted to the type `wanted`: lists to tuples, "nan" and "inf" to numbers, tables to dataclasses.

    Further keys are left out for a dataclass, and kept for a `TypedDict`; keys with a default may be missing.

    Args:
        wanted: the type.
        value: a value from JSON.
        where: name of the value, for the message.

    Raises:
        Misfit: a value of another type, range or length.

    Example:
        >>> decode(tuple[float, ...], [1, "nan"])
        (1.0, nan)
        >>> decode(dict[str, list[int]], {"a": [1, "x"]})
        Traceback (most recent call last):
            ...
        normscope.results.decoding.Misfit: a[1] must be an integer; got 'x'
    """
    origin = get_origin(wanted)
    if wanted is Any:
        return value
    if origin is Annotated:
        return _ranged(wanted, value, where)
    if origin in (Union, types.UnionType):
        return _either(get_args(wanted), value, where)
    if origin in (tuple, list):
        return _listed(origin, get_args(wanted), value, where)
    if origin in (dict, Mapping) or wanted is dict:
        return _table(wanted, value, where)
    if is_dataclass(wanted) or is_typeddict(wanted):
        return _record(wanted, value, where)
    return _plain(wanted, value, where)


def _integer(digits: str) -> int:
    if len(digits) > MOST_DIGITS + digits.startswith("-"):
        raise Misfit(f"it holds an integer of {len(digits)} digits, {brief(digits, 40)}")
    return int(digits)


def check_depth(value: Any, depth: int = 0) -> None:
    """Raise a Misfit for tables and lists that are nested more than 64 deep."""
    if depth > MOST_DEPTH:
        raise Misfit(f"it is nested more than {MOST_DEPTH} deep")
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inside:
        if isinstance(item, (dict, list)):
            check_depth(item, depth + 1)


def _misfit(where: str, wanted: str, value: Any) -> Misfit:
    return Misfit(f"{brief(where, 120) or 'it'} must be {wanted}; got {brief(quoted(value), 60)}")


def _plain(wanted: Any, value: Any, where: str) -> Any:
    if wanted is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if wanted is float and isinstance(value, str) and value in _WORDS:
        return _WORDS[value]
    if wanted is type(None) or wanted is None:
        fits = value is None
    else:
        fits = isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool)
    if not fits:
        raise _misfit(where, _NAMES.get(wanted, str(wanted)), value)
    return value


def _ranged(wanted: Any, value: Any, where: str) -> Any:
    inner, allowed = get_args(wanted)
    number = decode(inner, value, where)
    if number not in allowed:
        raise _misfit(where, str(allowed), value)
    return number


def _either(kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    misfits: list[Misfit] = []
    for wanted in kinds:
        try:
            return decode(wanted, value, where)
        except Misfit as error:
            misfits.append(error)
    # Most unions are "T or null": the message for T is the useful one.
    raise misfits[0]


def _listed(origin: Any, kinds: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _misfit(where, "a list", value)
    if origin is tuple and kinds[-1] is not ...:
        if len(value) != len(kinds):
            raise _misfit(where, f"a list of {len(kinds)}", value)
        typed = enumerate(zip(kinds, value, strict=True))
        return tuple(decode(wanted, item, f"{where}[{i}]") for i, (wanted, item) in typed)
    return origin(decode(kinds[0], item, f"{where}[{i}]") for i, item in enumerate(value))


def _table(wanted: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _misfit(where, "a table", value)
    entry_kind = get_args(wanted)[1] if get_args(wanted) else Any
    return {key: decode(entry_kind, entry, f"{where}.{key}" if where else key) for key, entry in value.items()}


@cache
def _hints(wanted: Any) -> dict[str, Any]:
    return get_type_hints(wanted, include_extras=True)


def _record(wanted: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _misfit(where, "a table", value)
    if is_dataclass(wanted):
        optional = {f.name for f in fields(wanted) if f.default is not MISSING or f.default_factory is not MISSING}
    else:
        optional = set(wanted.__optional_keys__)
    decoded = {}
    for name, hint in _hints(wanted).items():
        if name in value:
            decoded[name] = decode(_without_marks(hint), value[name], f"{where}.{name}" if where else name)
        elif name not in optional:
            raise Misfit(f"{brief(where, 120) if where else 'it'} lacks {name!r}")
    return wanted(**decoded) if is_dataclass(wanted) else {**value, **decoded}  # type: ignore[operator]


def _without_marks(hint: Any) -> Any:
    """T for the hint `NotRequired[T]`; other hints as they are."""
    return get_args(hint)[0] if str(hint).startswith("typing.NotRequired") else hint
