"""Each verb of normscope on one entry, as a user would call it; what came of it as plain JSON."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from entries import Entry
from references import affine, far, kind_of, normalized, rayleigh
from refusals import outcome_of
from state import Kept, detached, differing, first, seed
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only
from training import batches, inputs_of, loss_of, made, optimizer_of, outputs, train

import normscope as ns

Found = dict[str, Any]
SEED = 7
# Seconds of an independent power iteration.
WITNESS = 2.0


def attempted(model: nn.Module | None, call: Callable[[], Found]) -> Found:
    """The result of `call`, or its exception by kind; and its changes to the model."""
    kept = None if model is None else Kept(model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = {"outcome": "answered"} | call()
    except Exception as error:
        found = outcome_of(error)
    if kept is not None:
        found["changed"] = kept.differences()
    return found


def predicted(entry: Entry, package: str) -> Found:
    model, batch = made(entry), batches(entry)[0]
    first = next(one for one in tree_leaves(batch) if isinstance(one, Tensor))
    loss = "cross_entropy" if entry.loss_fn is torch.nn.functional.cross_entropy else "half_mse"

    def call() -> Found:
        found = ns.predict(model, tuple(first.shape[1:]), loss, len(first))
        return {
            "lambda_max": found.lambda_max,
            "range": list(getattr(found, "calibrated_range", ())),
            "loss": loss,
        }

    return attempted(model, call)


def measured(entry: Entry, package: str) -> Found:
    """The default call on a new model; then two witnesses, and training that must not have noticed."""
    model, batch = made(entry), batches(entry)[0]
    optimizer = optimizer_of(package, model)
    vectors: list[Tensor] = []

    def call() -> Found:
        seed(SEED)
        # A tensor alone could be an iterable of batches.
        found = ns.measure(model, entry.loss_fn, [batch] if isinstance(batch, Tensor) else batch, forward=entry.forward)
        vectors.append(found.vector)
        names = (
            "lambda_max",
            "residual",
            "converged",
            "eta_star",
            "critical_rate",
            "first_guess",
            "products",
            "matrix",
        )
        told = {"notes": list(found.notes), "loss": found.loss, "loss_kind": found.loss_kind}
        return {name: getattr(found, name) for name in names} | told

    # Generators stand where `call` puts them, and must stand there after it.
    seed(SEED)
    found = attempted(model, call)
    trained = twins(entry, package, model, optimizer)
    if found["outcome"] == "answered":
        found["witness"] = attempted(None, lambda: _witnessed(entry, batch, found, vectors[0]))
    return found | {"then_trains_alike": trained}


def _witnessed(entry: Entry, batch: Any, found: Found, vector: Tensor) -> Found:
    """In float64 where the loss is the measured one there too: some draw other random numbers, some cannot."""
    if found["matrix"] == "ggn":
        with torch.no_grad():
            if entry.loss_fn is None or not isinstance(outputs(entry, made(entry), batch), Tensor):
                return {"outcome": "none", "why": "the outputs are not one tensor"}
    model, given = made(entry).double(), wide(batch)
    try:
        seed(SEED)
        with torch.no_grad():
            alike = math.isclose(float(loss_of(entry, model, given)), found["loss"], rel_tol=1e-3)
    except Exception:
        alike = False
    # New again: a forward moves running statistics, and some models change in the first one.
    model = made(entry).double() if alike else made(entry)
    given, dtype = (given, "float64") if alike else (batch, "float32")
    own, most = rayleigh(entry, model, given, SEED, found["matrix"], vector, seconds=WITNESS)
    top = found["lambda_max"]
    return {"at_its_vector": own / top, "power_iteration": most / top, "dtype": dtype}


def wide(batch: Any) -> Any:
    """The batch with its floating-point tensors in float64."""
    return tree_map_only(Tensor, lambda t: t.double() if t.is_floating_point() else t, batch)


def twins(entry: Entry, package: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Names in which `model`, trained a few steps, differs from one that normscope never saw; or the error."""
    other = made(entry)
    alone = optimizer_of(package, other)
    try:
        train(entry, model, optimizer)
        train(entry, other, alone)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"[:300]]
    return first(detached(model, optimizer) + differing((model, other), (optimizer, alone)))


def watched(entry: Entry, package: str) -> Found:
    """A Monitor in a training of few steps, with a look at the first and the last; against an unwatched twin."""
    other = made(entry)
    alone = optimizer_of(package, other)
    plain = train(entry, other, alone)
    model = made(entry)
    optimizer = optimizer_of(package, model)
    found = attempted(None, lambda: _watch(entry, model, optimizer, "warn"))
    found["detached"] = first(detached(model, optimizer))
    found["differing"] = first(differing((model, other), (optimizer, alone)))
    found["bit_exact"] = not found["differing"] and not found["detached"] and found.pop("losses", None) == plain
    if found.get("errors"):
        # Once more with the errors themselves, to see where they come from.
        again = made(entry)
        raised = attempted(None, lambda: _watch(entry, again, optimizer_of(package, again), "raise"))
        found["raised"] = raised
        if not found["measured"] or raised["outcome"] == "crash":
            found |= raised
    return found


def _watch(entry: Entry, model: nn.Module, optimizer: torch.optim.Optimizer, on_error: str) -> Found:
    options: dict[str, Any] = {"every": [0, 3], "budget": None, "measure": "full", "on_error": on_error}
    monitor = ns.Monitor(model, entry.loss_fn, forward=entry.forward, **options)

    def look(batch: Any, optimizer: torch.optim.Optimizer) -> None:
        monitor.step(batch, optimizer=optimizer)

    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        losses = train(entry, model, optimizer, look)
    records = monitor.records
    return {
        "looks": len(records),
        "measured": sorted({name for record in records for name in record.results}),
        "errors": {name: text[:1000] for record in records for name, text in record.errors.items()},
        "losses": losses,
    }


def swapped(entry: Entry, package: str) -> Found:
    """Swaps to the model's own kind of normalizer, to RMSNorm and to BatchNorm, each layer against a reference."""
    batch = batches(entry)[0]
    seen = _normalizers(entry, batch)
    kinds = [one.kind for one in seen.values()]
    own = max(dict.fromkeys(kinds), key=kinds.count) if kinds else "layer"
    tried = {
        to: attempted(None, lambda to=to: _swap(entry, batch, seen, to)) for to in dict.fromkeys((own, "rms", "batch"))
    }
    said = {key: tried[own][key] for key in ("outcome", "type", "message", "where", "ours") if key in tried[own]}
    if "message" in said:
        said["named"] = any(name in said["message"] for name in seen)
    return said | {"normalizers": len(seen), "own": own, "to": tried}


@dataclass(frozen=True)
class Seen:
    """A layer that computes a normalizer: its kind, the dimension of its channels, one input and its output."""

    kind: str
    dim: int
    x: Tensor
    out: Tensor


def _normalizers(entry: Entry, batch: Any) -> dict[str, Seen]:
    """Layers of a new model that compute a normalizer, by name."""
    model = made(entry)
    calls: dict[str, tuple[nn.Module, Tensor, Tensor]] = {}

    def keep(name: str, layer: nn.Module) -> Callable[..., None]:
        def hook(_: Any, args: Any, kwargs: Any, out: Any) -> None:
            given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
            if name in inputs and isinstance(out, Tensor) and len(given) == 1:
                calls.setdefault(name, (layer, inputs[name], out.detach().clone()))

        return hook

    inputs: dict[str, Tensor] = {}

    def before(name: str) -> Callable[..., None]:
        def hook(_: Any, args: Any, kwargs: Any) -> None:
            given = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
            if len(given) == 1:
                inputs.setdefault(name, given[0].detach().clone())

        return hook

    for name, layer in model.named_modules():
        own = list(layer.parameters())
        if name and len(own) <= 2 and all(p.ndim == 1 for p in own):
            layer.register_forward_pre_hook(before(name), with_kwargs=True)
            layer.register_forward_hook(keep(name, layer), with_kwargs=True)
    seed(SEED)
    with torch.no_grad():
        loss_of(entry, model, batch)
    found: dict[str, Seen] = {}
    for name, (layer, x, out) in calls.items():
        kind = kind_of(layer, x, out)
        # The layer inside a wrapper that does nothing else is the one to exchange.
        if kind is not None:
            found[name] = Seen(*kind, x, out)
    return {name: one for name, one in found.items() if not any(other.startswith(f"{name}.") for other in found)}


def _swap(entry: Entry, batch: Any, seen: dict[str, Seen], to: str) -> Found:
    model, untouched = made(entry), made(entry)
    seed(SEED)
    before = tree_leaves(outputs(entry, untouched, batch))
    result = ns.swap_norms(model, to)
    changed = {one.name for one in result}
    left = dict(getattr(result, "left", {}) or {})
    wrong = {}
    for name, one in seen.items():
        if name not in changed:
            continue
        off = _layer_off(model.get_submodule(name), one, to)
        if off > 2e-3:
            wrong[name] = off
    told = set(left) | changed
    silent = [name for name in seen if not any(name == one or name.startswith(f"{one}.") for one in told)]
    found: Found = {
        "swapped": len(changed),
        "left": left,
        "wrong": wrong,
        "skipped_in_silence": silent,
        "not_known_to_the_reference": sorted(changed - set(seen)),
    }
    seed(SEED)
    try:
        after = tree_leaves(outputs(entry, model, batch))
    except Exception as error:
        return found | {"forward": f"{type(error).__name__}: {error}"[:600]}
    off = _apart(before, after)
    alike = bool(changed) and all(name in seen and seen[name].kind == to for name in changed)
    return found | {"forward": "", "outputs_off": off, "same_kind": alike, "equal": off < 1e-4}


def _layer_off(new: nn.Module, old: Seen, to: str) -> float:
    """How far the new layer is from the old one's output if that is of its kind, else from its kind's formula."""
    inner = getattr(new, "norm", new)
    eps = next((e for e in (getattr(inner, name, None) for name in ("eps", "epsilon")) if isinstance(e, float)), 1e-5)
    groups = getattr(inner, "num_groups", 1)
    try:
        with torch.no_grad():
            out = new(old.x.clone())
    except Exception:
        # The whole model's forward raises the informative error.
        return math.inf
    if old.kind == to:
        return far(out, old.out)
    meant = [to]
    if old.dim == 1 and old.x.ndim > 2:
        meant += {"layer": ["whole"], "rms": ["whole rms"]}.get(to, [])
    expected = [affine(inner, normalized(one, old.x, old.dim, eps, groups), old.dim) for one in meant]
    after = getattr(new, "act", None)
    if isinstance(after, nn.Module):
        expected = [after(one.to(old.x.dtype)) for one in expected]
    return min(far(out, one) for one in expected)


def folded(entry: Entry, package: str) -> Found:
    """In eval mode, with running statistics, scales and shifts that are not those of a new layer."""
    model, batch = made(entry), batches(entry)[0]
    with torch.no_grad():
        for _ in range(2):
            loss_of(entry, model, batch)
    seed(3)
    for layer in model.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.running_mean is not None:
                layer.running_mean += 0.1 * torch.randn_like(layer.running_mean)
            if layer.weight is not None:
                layer.weight.data.uniform_(0.5, 1.5)
                layer.bias.data.normal_(0, 0.1)
    model.eval()
    norms = sum(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())

    results: list[Any] = []
    example: dict[str, Any] = {}

    def call() -> Found:
        results.append(ns.fold_norms(model, **example))
        return {"folded": len(results[0].folded), "left": dict(results[0].left)}

    found = attempted(model, call) | {"batch_norms": norms}
    if "example=" in found.get("message", "") and entry.forward is None:
        # The way that the refusal names.
        example["example"] = inputs_of(entry, batch)
        found = attempted(model, call) | {"batch_norms": norms, "first_refused": found["message"]}
    if not results:
        return found
    before, after = (_eval(entry, one, batch) for one in (model, results[0].model))
    found["outputs_off"] = off = _apart(before, after)
    found["equal"] = off <= 1e-5
    if not found["equal"]:
        # Rounding of a deep network, or another function: float64 tells.
        double = model.double()
        try:
            before = _eval(entry, double, wide(batch))
            after = _eval(entry, ns.fold_norms(double, **wide(example)).model, wide(batch))
        except Exception as error:
            return found | {"in_float64": f"{type(error).__name__}: {error}"[:300]}
        found["in_float64"] = off = _apart(before, after)
        found["equal"] = off <= 1e-5
    return found


def _apart(before: list[Any], after: list[Any]) -> float:
    """The largest relative difference between outputs."""
    pairs = zip(before, after, strict=True)
    return max((far(b, a) for a, b in pairs if isinstance(a, Tensor) and a.is_floating_point()), default=0.0)


def _eval(entry: Entry, model: nn.Module, batch: Any) -> list[Any]:
    seed(SEED)
    with torch.no_grad():
        found = outputs(entry, model, batch)
    # In eval mode some give caches too.
    return tree_leaves(
        [one for one in found.values() if isinstance(one, Tensor)] if isinstance(found, Mapping) else found
    )


VERBS = {"predict": predicted, "measure": measured, "monitor": watched, "swap": swapped, "fold": folded}
