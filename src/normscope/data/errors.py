"""What goes wrong with data."""

from normscope.choices import check_choice


class DataError(RuntimeError):
    """Files of a data set are missing, damaged or cannot be fetched; the message says what to do next."""


__all__ = ["DataError", "check_choice"]
