"""The command line: one file for each verb, a few lines over the library. No other package imports this one.

Verbs import torch inside their functions, so that `normscope --help` is fast.
"""

import atexit
import gc
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normscope._version import __version__
from normscope.cli.bounds import bounds
from normscope.cli.cite import cite
from normscope.cli.data import app as data_app
from normscope.cli.demo import demo
from normscope.cli.describing import described
from normscope.cli.diagnose import diagnose
from normscope.cli.doctor import doctor
from normscope.cli.measure import measure
from normscope.cli.monitor import monitor
from normscope.cli.predict import predict
from normscope.cli.report import report
from normscope.cli.reproduce import reproduce
from normscope.cli.solve import solve
from normscope.cli.stopping import stopping
from normscope.cli.sweep import sweep
from normscope.cli.tune import tune
from normscope.loading import place_of
from normscope.messages import brief


class Verbs(TyperGroup):
    """The group of all verbs; messages about options and arguments are shortened."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _shortened():
            return super().make_context(*args, **kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        with _shortened():
            return super().invoke(*args, **kwargs)


@contextmanager
def _shortened() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        # An error of typer's about an option or an argument repeats the text that was typed.
        if isinstance(getattr(error, "message", None), str):
            error.message = brief(error.message, 400)  # type: ignore[attr-defined]
        raise


app = typer.Typer(
    cls=Verbs,
    help="Example: normscope demo\n\nAn instrument for normalization in neural networks.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)
for _verb in (bounds, cite, demo, diagnose, doctor, measure, monitor, predict, report, reproduce, solve, sweep, tune):
    app.command(**described(_verb))(_verb)
app.add_typer(data_app, name="data")

# The exit status of Ctrl-C, and the most characters of a message: a plan has one line for each mistake.
_INTERRUPTED, _MOST = 130, 4000
_ANEW = "normscope: interrupted. The same command starts from the beginning."


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"normscope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command. A mistake of the user is one message and exit status 2, never a traceback."""
    # Skip the interpreter's last garbage collection over the objects of torch: a quarter of the time of its import.
    atexit.register(gc.freeze)
    _print_any_path()
    try:
        with stopping():
            app()
    except KeyboardInterrupt:
        typer.echo(_ANEW, err=True)
        sys.exit(1)
    except Exception as error:
        known = isinstance(error, (ValueError, OSError, MemoryError))
        if not known and not type(error).__module__.startswith("normscope."):
            raise
        typer.echo(f"normscope: {brief(str(error) or type(error).__name__, _MOST)}", err=True)
        sys.exit(2)
    except SystemExit as ended:
        if place := place_of(ended):
            typer.echo(f"normscope: Your code ended the program with SystemExit({ended.code!r}){place}.", err=True)
            sys.exit(2)
        # Typer ends with 130 after Ctrl-C where a verb has nothing to keep; here every unfinished command ends with 1.
        if ended.code != _INTERRUPTED:
            raise
        typer.echo(_ANEW, err=True)
        sys.exit(1)


def _print_any_path() -> None:
    """Escapes characters that the terminal cannot print, such as the bytes of a path or Greek letters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
