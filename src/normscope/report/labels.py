"""Names of the user's as labels of matplotlib's."""


def literal(label: str) -> str:
    """A label as it is: a dollar sign would start a formula, and a surrogate has no glyph.

    Example:
        >>> literal("cost in $")
        'cost in \\\\$'
    """
    return label.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
