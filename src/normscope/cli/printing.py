"""Tables and sentences on the terminal, with the text of the user's printed as it is."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


def console() -> "Console":
    """One that takes no brackets for markup and no `:name:` for a picture, in sentences and in cells of tables."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False)
