"""`import torch` as `import flambeau`: under `flambeau run` and in the interpreters that it starts; never otherwise.

The finder maps `torch[.x]` to the same module objects as `flambeau[.x]`. Child interpreters find the folder
`flambeau/shim` on their path, whose `torch` package installs this finder and gives way to it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import flambeau

SHIM = str(Path(__file__).parents[1] / "shim")

# Packages whose compiled half links PyTorch's C++ libraries: they cannot work over another runtime.
_EXTENSIONS = {
    "torchvision", "torchaudio", "torchtext", "torch_geometric", "torch_scatter", "torch_sparse",
    "triton", "xformers", "flash_attn", "apex", "bitsandbytes", "deepspeed",
}  # fmt: skip


class TorchFinder(MetaPathFinder):
    """Finds `torch` and its submodules as Flambeau's, and refuses extensions of PyTorch's C++ library."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root in _EXTENSIONS and not rest:
            raise ImportError(
                f"{fullname} is built on PyTorch's C++ library, which is not here: `torch` is Flambeau in this "
                "process. Run the program with plain Python and PyTorch, or without this import.",
                name=fullname,
            )
        if root != "torch":
            return None
        real = f"flambeau.{rest}" if rest else "flambeau"
        if find_spec(real) is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: `torch` is Flambeau in this process, and Flambeau has no {real!r}",
                name=fullname,
            )
        return ModuleSpec(fullname, _Alias(real), is_package=True)


class _Alias(Loader):
    """Loads a module by handing out another one, unchanged."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._real)
        self._spec = module.__spec__  # the import system is about to overwrite it
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def install() -> None:
    """Map `torch` to Flambeau in this process and in its children. Again is allowed.

    Raises RuntimeError: real PyTorch is imported already, so two would mix.
    """
    loaded = sys.modules.get("torch")
    if loaded is not None and loaded is not flambeau:
        raise RuntimeError("`torch` is imported already in this process; Flambeau cannot take its place now")
    for value in vars(flambeau).values():
        if isinstance(value, type) and value.__module__ == "flambeau":
            value.__module__ = (
                "torch"  # what reprs and pickles say: here, and here alone, that name leads back
            )
    if not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if SHIM not in sys.path:
        sys.path.insert(1, SHIM)  # a spawned child takes over this list, whatever PYTHONPATH says
    if SHIM not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join([SHIM, *filter(None, folders)])
