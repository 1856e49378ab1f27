"""Check that a name is one of the known ones, and suggest the nearest one otherwise."""

from collections.abc import Iterable
from difflib import get_close_matches

from normscope.messages.short_texts import quoted


def check_choice(what: str, value: object, options: Iterable[str | None]) -> None:
    """Raise a ValueError that lists the options and the nearest one, unless `value` is among them.

    Args:
        what: name of the argument, for the message.
        value: the value that was given.
        options: the values that are allowed.

    Raises:
        ValueError: the value is not among the options.

    Example:
        >>> check_choice("standardize", "pixels", ["channel", "pixel", None])
        Traceback (most recent call last):
            ...
        ValueError: standardize must be one of 'channel', 'pixel', None; got 'pixels'. Did you mean 'pixel'?
    """
    known = list(options)
    if value in known:
        return
    lowered = {name.lower(): name for name in known if name is not None}
    near = get_close_matches(str(value)[:80].lower(), lowered, n=1)
    hint = f" Did you mean {lowered[near[0]]!r}?" if near else ""
    raise ValueError(f"{what} must be one of {', '.join(map(repr, known))}; got {quoted(value)}.{hint}")
