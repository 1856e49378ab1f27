"""The rule that draws the zoo: which models, from which package, at which size; run once, before any measurement.

    python benchmarks/zoo/draw.py          prints the list; --write stores it in benchmarks/zoo/drawn.json

Every package's pool is its own list of names, sorted, then shuffled with SEED and the package's name. Two kinds of
packages:

- Models of fixed size (timm, pytorchcv, segmentation_models_pytorch). The shuffled pool is walked; a model is built on
  the meta device and goes into the size stratum of its number of parameters, until each stratum has its quota. At most
  one model of a source file is taken (timm, pytorchcv), or of an architecture (segmentation_models_pytorch). A model
  above MOST parameters is passed over; so is one that does not build without torchvision. Both are recorded.
- Models built from a configuration (all others). The first of the shuffled pool are taken, and the sizes small, middle
  and large are dealt in turn: a width of about 32, 64 and 128 with as many layers as keep the architecture itself. From
  transformers one model is drawn for each of TASKS, from the types that its automatic classes list for that task.

To these come NAMED: models with which faults were found before this list was made.

Afterwards only a limit of resources may drop a model: `run.py` names the limits (the time of one gradient, a package
that would have to be compiled, files that would have to be fetched), and every dropped model stays in the list with its
reason.
"""

import argparse
import importlib.metadata
import inspect
import json
import pkgutil
import random
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import stand_in
import torch
from torch import nn

stand_in.install()

HERE = Path(__file__).parent
SEED = 23
MOST = 30_000_000
SIZES = ("small", "middle", "large")
# Upper ends, in parameters, for models of fixed size.
STRATA = {"small": 3_000_000, "middle": 10_000_000, "large": MOST}
QUOTA = {"timm": 3, "pytorchcv": 2, "segmentation_models_pytorch": 1}
COUNTS = {
    "diffusers": 5,
    "kornia": 1,
    "monai": 5,
    "pytorch_tabnet": 1,
    "rtdl_revisiting_models": 2,
    "speechbrain": 1,
    "torch_geometric": 4,
    "vit_pytorch": 4,
    "x_transformers": 2,
}
TASKS = (
    "AUDIO_CLASSIFICATION",
    "CAUSAL_LM",
    "IMAGE_CLASSIFICATION",
    "MASKED_LM",
    "SEMANTIC_SEGMENTATION",
    "SEQ_TO_SEQ_CAUSAL_LM",
    "SEQUENCE_CLASSIFICATION",
    "TOKEN_CLASSIFICATION",
)
NAMED = (
    ("diffusers", "UNet2DModel"),
    ("timm", "convnext_atto"),
    ("transformers", "LlamaForCausalLM"),
    ("transformers", "MambaForCausalLM"),
    ("transformers", "SegformerForSemanticSegmentation"),
    ("transformers", "T5ForConditionalGeneration"),
)
# Parts, wrappers of several networks, and names of one thing spelled twice.
NOT_NETWORKS = {
    "diffusers": r"ModelMixin|Multi.*|.*Projection.*|.*Embedder|.*Head|.*Bank|.*Adapter",
    "kornia": r"(?!(ALIKED|DISK|HardNet|HardNet8|HyNet|SOSNet|TFeat|XFeatModel)$).*",
    "monai": r"Bert.*|NetAdapter|Patch(Merging|MergingV2)|Pooler|ResNet(Block|Bottleneck|Encoder|Features)|Topology.*"
    r"|HighResBlock|EfficientNet(BNFeatures|Encoder)|TorchVision.*|MultiModal",
    "torch_geometric": r"to_.*|captum.*|.*JumpingKnowledge|.*Layer|LabelPropagation|CorrectAndSmooth|MaskLabel"
    r"|GroupAddRev|InnerProductDecoder|.*Encoder|ARLinkPredictor|TGNMemory",
    "speechbrain": r"PIQ|ESPnetVGG|convolution|beats|bsq|discrete|fairseq_wav2vec|g2p|kmeans|L2I|transformer|wav2vec",
    "vit_pytorch": r"accept_video_wrapper|distill|extractor|recorder",
    "x_transformers": r".*Norm|Attention.*|FeedForward|TransformerBlock|DPO|EntropyBasedTokenizer",
}


def pools() -> dict[str, list[str]]:
    """The names of every package whose models are built from a configuration."""
    import diffusers
    import kornia.feature
    import monai.networks.nets
    import speechbrain.lobes.models
    import torch_geometric.nn.models
    import vit_pytorch
    import x_transformers

    found = {
        "diffusers": _classes(diffusers, diffusers.ModelMixin),
        "kornia": _classes(kornia.feature),
        "monai": _classes(monai.networks.nets),
        "pytorch_tabnet": ["TabNet"],
        "rtdl_revisiting_models": ["FTTransformer", "MLP", "ResNet"],
        "speechbrain": _files(speechbrain.lobes.models),
        "torch_geometric": [*torch_geometric.nn.models.classes],
        "vit_pytorch": _files(vit_pytorch),
        "x_transformers": _classes(x_transformers),
    }
    return {
        package: [n for n in sorted(names) if not re.fullmatch(NOT_NETWORKS.get(package, "(?!)"), n)]
        for package, names in found.items()
    }


def _classes(module: Any, kind: type = nn.Module) -> list[str]:
    """One name a class: the first of several for the same one."""
    found = {}
    for name in sorted(dir(module)):
        one = getattr(module, name, None)
        if inspect.isclass(one) and issubclass(one, kind):
            found.setdefault(one, one.__name__)
    return list(found.values())


def _files(package: Any) -> list[str]:
    return [one.name for one in pkgutil.iter_modules(package.__path__)]


def shuffled(package: str, names: Iterable[str]) -> list[str]:
    order = sorted(names)
    random.Random(f"{SEED} {package}").shuffle(order)
    return order


def _fixed() -> dict[str, tuple[list[str], Callable[[str], str], Callable[[str], nn.Module]]]:
    """package -> names, the source of each name, and how it is built."""
    import pytorchcv.model_provider
    import segmentation_models_pytorch as smp
    import timm

    cv = pytorchcv.model_provider._models
    pairs = [
        f"{arch}/{encoder}" for arch in smp.MODEL_ARCHITECTURES_MAPPING for encoder in smp.encoders.get_encoder_names()
    ]
    return {
        "timm": (timm.list_models(), lambda name: timm.models._registry._model_to_module[name], timm.create_model),
        "pytorchcv": (list(cv), lambda name: cv[name].__module__.rsplit(".", 1)[1], lambda name: cv[name]()),
        "segmentation_models_pytorch": (
            pairs,
            lambda name: name.split("/")[0],
            lambda name: smp.create_model(*name.split("/"), encoder_weights=None),
        ),
    }


def fixed(package: str) -> tuple[list[dict[str, Any]], dict[str, list[str]]]:
    """The models drawn from a package of fixed sizes; the names passed over by their reason."""
    names, source, build = _fixed()[package]
    room = dict.fromkeys(SIZES, QUOTA[package])
    taken: list[dict[str, Any]] = []
    passed: dict[str, list[str]] = {}
    used: set[str] = set()
    for name in shuffled(package, names):
        if not any(room.values()):
            break
        if source(name) in used:
            continue
        count, why = _parameters(build, name)
        if why:
            passed.setdefault(why, []).append(name)
            continue
        size = next(size for size in SIZES if count < STRATA[size])
        if room[size]:
            room[size] -= 1
            used.add(source(name))
            taken.append({"package": package, "name": name, "size": size, "parameters": count})
    return taken, passed


def _parameters(build: Callable[[str], nn.Module], name: str) -> tuple[int, str]:
    """How many a model has, and why it is passed over, if it is."""
    for device in ("meta", "cpu"):
        try:
            with torch.device(device):
                count = sum(p.numel() for p in build(name).parameters())
        except Exception as error:
            why = f"does not build: {str(error).splitlines()[0][:120]}"
        else:
            return count, f"more than {MOST:,} parameters" if count > MOST else ""
    return 0, why


def by_task() -> list[dict[str, Any]]:
    from transformers.models.auto import modeling_auto

    found: list[dict[str, Any]] = []
    used: set[str] = set()
    for number, task in enumerate(TASKS):
        mapping = getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")
        for kind in shuffled(f"transformers {task}", mapping):
            named = mapping[kind] if isinstance(mapping[kind], str) else mapping[kind][0]
            if kind not in used and named not in {name for _, name in NAMED}:
                used.add(kind)
                found.append({"package": "transformers", "name": named, "task": task, "size": SIZES[number % 3]})
                break
    return found


def draw() -> dict[str, Any]:
    models: list[dict[str, Any]] = []
    passed: dict[str, dict[str, list[str]]] = {}
    for package in QUOTA:
        taken, passed[package] = fixed(package)
        models += taken
    models += by_task()
    pool = pools()
    for package, count in COUNTS.items():
        drawn = shuffled(package, pool[package])[:count]
        models += [{"package": package, "name": n, "size": SIZES[i % 3]} for i, n in enumerate(drawn)]
    models = [one | {"why": "drawn"} for one in models]
    models += [{"package": p, "name": n, "size": "small", "why": "named"} for p, n in NAMED]
    sizes = {package: len(names) for package, (names, _, _) in _fixed().items()}
    sizes |= {package: len(names) for package, names in pool.items()}
    versions = {
        one: importlib.metadata.version(one.replace("_", "-")) for one in sorted({*sizes, "transformers", "torch"})
    }
    return {"schema": 1, "seed": SEED, "pools": sizes, "versions": versions, "models": models, "passed": passed}


def as_text(found: dict[str, Any]) -> str:
    """JSON with a model, or the names passed over for one reason, on a line."""
    models = ",\n".join(f"  {json.dumps(one)}" for one in found["models"])
    passed = ",\n".join(
        f"  {json.dumps(package)}: {{\n"
        + ",\n".join(f"   {json.dumps(why)}: {json.dumps(names)}" for why, names in reasons.items())
        + "\n  }"
        for package, reasons in found["passed"].items()
    )
    head = json.dumps({key: found[key] for key in ("schema", "seed", "pools", "versions")}, indent=1)[:-2]
    return f'{head},\n "models": [\n{models}\n ],\n "passed": {{\n{passed}\n }}\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    found = draw()
    for one in found["models"]:
        print(one["package"], one["name"], one["size"], one.get("parameters", ""), one["why"])
    print(
        len(found["models"]),
        "models from",
        len({one["package"] for one in found["models"]}),
        "packages",
        file=sys.stderr,
    )
    if parser.parse_args().write:
        (HERE / "drawn.json").write_text(as_text(found))


if __name__ == "__main__":
    main()
