"""Refusals: messages that name what predict cannot answer and the way out, and checks of a model before tracing."""

import inspect

import torch
from torch import fx, nn
from torch.nn.utils import parametrize

from normscope.prediction.kernels.field import INPUTS, Field

WAY_OUT = (
    "Measure this network instead (ns.measure), or replace the operation; an elementwise one of your own can be "
    "declared with normscope.prediction.elementwise_module."
)


class UnknownOperation(ValueError):
    """Raised for an operation without a map of second moments; the message names the operation."""


def check_model(model: nn.Module) -> None:
    """Refuse a model with parts that a graph of its operations does not show: hooks, parametrizations."""
    for name, module in model.named_modules():
        module_type = type(module)
        said = f"{name!r} ({module_type.__name__})" if name else f"The model ({module_type.__name__})"
        if parametrize.is_parametrized(module):
            raise UnknownOperation(
                f"{said} computes its weights from other parameters (a parametrization, such as weight_norm), which "
                "has no map here: what those add to lambda differs from what weights add. Remove it with "
                "torch.nn.utils.parametrize.remove_parametrizations, or measure this network instead (ns.measure)."
            )
        if module._forward_hooks or module._forward_pre_hooks:
            raise UnknownOperation(
                f"{said} has forward hooks, which may change what it gives and are not in the graph (the older "
                "weight_norm and spectral_norm are hooks too). Remove them while predicting, or measure this network "
                "instead (ns.measure)."
            )
        if module_type.__module__.startswith(("torch.ao.", "torchao.", "bitsandbytes.")):
            raise UnknownOperation(_quantized(said, module_type))
    _check_inputs(model)
    for name, tensor in model.named_parameters():
        if tensor.device.type == "meta":
            raise ValueError(
                f"{name!r} is on the meta device and has no values to read variances off. Materialize the model with "
                "model.to_empty(device=...) and initialize it first."
            )
        if tensor.is_complex():
            raise UnknownOperation(
                f"{name!r} holds complex values; predict knows real ones. Measure this network instead (ns.measure)."
            )
        if type(tensor) is not nn.Parameter:
            raise UnknownOperation(_quantized(repr(name), type(tensor)))


def check_wrapper(model: nn.Module) -> None:
    """Refuse models that cannot be looked into, before anything is read off them: DataParallel, TorchScript."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a torch.nn.Module; got {type(model).__name__}.")
    for name, module in model.named_modules():
        where = f" at {name!r}" if name else ""
        if isinstance(module, nn.DataParallel):
            raise UnknownOperation(
                f"DataParallel{where} cuts each batch into parts, whose own statistics BatchNorm takes. Predict the "
                "network inside it, ns.predict(model.module, ...), with batch_size= the samples of one part."
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise UnknownOperation(
                f"TorchScript{where} ({type(module).__name__}) cannot be looked into. Predict the module that it was "
                "made from."
            )


def _quantized(said: str, layer: type) -> str:
    return (
        f"{said} is of {layer.__module__}.{layer.__name__}: its values are quantized, sharded or otherwise not those "
        "of a plain parameter. Predict the network before it is converted, or measure this network instead "
        "(ns.measure)."
    )


def _check_inputs(model: nn.Module) -> None:
    try:
        accepted = list(inspect.signature(type(model).forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return
    named = [p for p in accepted if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = [p.name for p in named if p.default is p.empty]
    if len(needed) > 1:
        raise UnknownOperation(more_inputs(*needed[1:]))
    if not accepted:
        raise UnknownOperation(f"The forward of {type(model).__name__} takes no input; predict needs one. {WAY_OUT}")


def more_inputs(*names: str) -> str:
    """The message for a forward that takes further inputs beside its first."""
    return (
        f"The network takes more than one input ({', '.join(map(repr, names))} beside the first); predict knows one "
        "tensor of samples. Give the others defaults, or measure this network on one batch instead (ns.measure)."
    )


def integer_input(path: str, layer: str) -> str:
    """The message for a model whose input is an integer index."""
    return (
        f"predict needs one float input; this model's first input is an integer index ({path}, {layer}). Measure it "
        "on one batch instead: ns.measure(model, loss_fn, batch)."
    )


def place(node: fx.Node) -> str:
    """The path of the module whose forward makes the call, for messages."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [entry[0] for entry in stack.values() if entry[0]]
    return repr(names[-1]) if names else "the model's forward"


def misfit(x: Field, takes: int, what: str) -> ValueError:
    """The error for a layer whose size does not fit its input, with the input_shape that would."""
    said = f"takes {takes} {what} and gets {x.shape[0] if x.flat else x.channels}. "
    if x.roots != {INPUTS}:
        mend = (
            "How many depends on input_shape: pass the shape that the network was built for"
            if what == "features" or (x.flat and x.sites.count > 1)
            else "The layers before it give as many whatever input_shape is: make the two agree in the model"
        )
        return ValueError(said + mend)
    shape = (takes,) if x.flat else (takes, *x.shape[1:])
    last = not x.flat and x.shape[-1] == takes
    shape = (takes, *x.shape[:-1]) if last else shape
    arguments = f"input_shape={shape} (--input {','.join(map(str, shape))})"
    return ValueError(f"{said}Pass {arguments}, the shape of one sample{' with its channels first' * last}")


def check_gradients_on(name: str, where: str = "") -> None:
    """Refuse an operation in a block of the forward that has turned gradients off; they are on around the forward."""
    if not torch.is_grad_enabled():
        raise UnknownOperation(
            f"{name!r}{f' in {where}' if where else ''} is called where the forward has turned gradients off "
            "(torch.no_grad; an autograd function of your own is such a place too), so that its weights are not "
            "trained, nor what lies before it. Freeze those with "
            "requires_grad_(False) or parameters= and take the block away, or measure this network instead "
            "(ns.measure)."
        )


def check_channels(channels: int, x: Field) -> None:
    """Refuse a layer that holds numbers for another count of channels than x has."""
    if x.flat and channels == x.shape[0] != x.channels:
        way = f"pass input_shape={x.shape}" if x.roots == {INPUTS} else "put it before the flattening"
        raise UnknownOperation(f"has numbers for each of the {channels} values of an image, no map here: {way}")
    if channels != x.channels:
        raise misfit(x, channels, "channels")
