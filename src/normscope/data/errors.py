"""The errors of data sets."""

from normscope.messages.choices import check_choice


class DataError(RuntimeError):
    """Files of a data set are missing, damaged or cannot be fetched; the message gives the next step."""


__all__ = ["DataError", "check_choice"]
