"""The message for a graph that could not be traced, with the module and the line where tracing failed."""

import linecache
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import torch
from torch import nn

from normscope.prediction.refusals import WAY_OUT, UnknownOperation, integer_input

_TORCH_FOLDER = str(Path(torch.__file__).parent)
_LONGEST_REASON = 200


@dataclass(frozen=True)
class _Place:
    module: nn.Module
    path: str
    line: str


def not_traced(model: nn.Module, by_fx: Exception, by_export: Exception) -> UnknownOperation:
    """One error from both; torch.export runs further into a forward, so that its place is named."""
    places = _places(model, by_export) or _places(model, by_fx)
    kinds = (nn.Embedding, nn.EmbeddingBag)
    embeddings = [(place.path, place.module) for place in places if isinstance(place.module, kinds)]
    if not embeddings and re.search(r"[Ee]mbedding|argument #1 'indices'", str(by_export)):
        embeddings = [(path, module) for path, module in model.named_modules() if isinstance(module, kinds)]
    if embeddings:
        path, module = embeddings[-1]
        return UnknownOperation(integer_input(repr(path), type(module).__name__))
    where = ""
    if places:
        *_, last = places
        called = type(last.module).__name__
        where = f" at {last.path!r} ({called}" if last.path else f" in its own forward ({called}"
        where += f"; {last.line})" if last.line else ")"
    return UnknownOperation(
        f"The graph of {type(model).__name__} could not be read{where}: torch.fx says {_said(by_fx)!r}, torch.export "
        f"says {_said(by_export)!r}. A forward that branches on values of tensors has no one graph. " + WAY_OUT
    )


def _said(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    said = lines[0].strip() if lines else type(error).__name__
    return said if len(said) <= _LONGEST_REASON else said[:_LONGEST_REASON] + "..."


def _places(model: nn.Module, error: BaseException) -> list[_Place]:
    """The modules whose forwards the error passed through, outermost first, each with its last line."""
    paths = {id(module): path for path, module in model.named_modules()}
    places: dict[int, _Place] = {}
    for module, line in _frames(error):
        if id(module) in paths:
            # A later frame of the same module is deeper.
            places[id(module)] = _Place(module, paths[id(module)], line)
    return list(places.values())


def _frames(error: BaseException | None) -> Iterator[tuple[nn.Module, str]]:
    """Frames with a module as their `self`, of the error or else of the error that it was raised from."""
    while error is not None:
        frames = list(_walk(error.__traceback__))
        if frames:
            yield from frames
            return
        error = error.__cause__ or error.__context__


def _walk(trace: TracebackType | None) -> Iterator[tuple[nn.Module, str]]:
    while trace is not None:
        frame = trace.tb_frame
        module = frame.f_locals.get("self")
        if isinstance(module, nn.Module) and frame.f_code.co_name != "_call_impl":
            yield module, _line(frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next


def _line(file: str, number: int) -> str:
    """The file, number and text of a line of the user's own code; empty for a line of torch."""
    if file.startswith(_TORCH_FOLDER) or not (text := linecache.getline(file, number).strip()):
        return ""
    return (
        f"{Path(file).name}, line {number}: {text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + '...'}"
    )
