"""A stand-in for torchvision and torchaudio, which have no build beside this torch: importable, and empty.

timm, segmentation_models_pytorch, vit-pytorch and speechbrain import names of theirs for image and sound files, which
no model of the zoo reads. A class found here can be inherited from and named in isinstance; nothing can be computed.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, spec_from_loader
from types import ModuleType

NAMES = ("torchvision", "torchaudio")


class _Named(type):
    """Any attribute of the class exists and is its own name, as those of an enumeration."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Named(name, (), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return spec_from_loader(fullname, self, is_package=True) if fullname.split(".")[0] in NAMES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        made = _Empty(spec.name)
        made.__dict__["__version__"] = "0.28.0"
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def install() -> None:
    """Put the stand-in behind everything that is installed, so that a real torchvision is found first."""
    if not any(find_spec(name) for name in NAMES) and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.append(_Finder())
