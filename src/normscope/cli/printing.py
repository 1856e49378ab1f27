"""A terminal that prints tables and sentences with the user's own text unchanged."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    """A console that takes no brackets for markup and no `:name:` for an emoji, in sentences and in cells of tables."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)
