"""The command line: one file per verb, each a few lines over the library. Nobody imports this.

Verbs import torch inside their functions, so that `normscope --help` answers at once.
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
from normscope.cli.doctor import doctor
from normscope.cli.measure import measure
from normscope.cli.monitor import monitor
from normscope.cli.predict import predict
from normscope.cli.report import report
from normscope.cli.reproduce import reproduce
from normscope.cli.solve import solve
from normscope.cli.stopping import stopping
from normscope.cli.sweep import sweep
from normscope.loading import place_of
from normscope.messages import brief


class Verbs(TyperGroup):
    """The verbs, with what was typed shortened where a message repeats it."""

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
        # Typer's own: what is wrong with an option or an argument.
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
for _verb in (bounds, cite, demo, doctor, measure, monitor, predict, report, reproduce, solve, sweep):
    app.command(**described(_verb))(_verb)
app.add_typer(data_app, name="data")

# Of all messages together; a plan's mistakes are a line each.
_INTERRUPTED, _MOST = 130, 4000
_ANEW = "normscope: interrupted. The same command begins anew."


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"normscope {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say it and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Runs the command; a mistake of the user's is one message and exit status 2, never a traceback."""
    # The interpreter's last search for garbage goes through all that torch has made: a quarter of its import's time.
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
        # Typer's status for Ctrl-C where a verb has nothing to keep; here 1 is whatever was begun and not finished.
        if place := place_of(ended):
            typer.echo(f"normscope: Your code ended the program with SystemExit({ended.code!r}){place}.", err=True)
            sys.exit(2)
        if ended.code != _INTERRUPTED:
            raise
        typer.echo(_ANEW, err=True)
        sys.exit(1)


def _print_any_path() -> None:
    """A path whose bytes are no text, or a terminal without Greek letters, is no reason to fail at the last line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
