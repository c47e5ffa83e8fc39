"""`import torch` as `import flambeau`: under `flambeau run` and in the interpreters that it starts; never otherwise.

The finder maps `torch[.x]` to the same module objects as `flambeau[.x]`. Child interpreters find the folder
`flambeau/shim` on their path, whose `torch` package installs this finder and gives way to it. That folder also holds
the metadata that `importlib.metadata` reads of the distribution "torch".
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

import flambeau
from flambeau.core.names import is_inner

SHIM = str(Path(__file__).parents[1] / "shim")

# What the dynamic linker says of an extension module that needs PyTorch's C++ library.
_NEEDS_PYTORCH = re.compile(r"lib(torch|c10)\w*\.(so|dylib)|undefined symbol: \S*(c10|torch|_ZN2at|_ZNK2at)")
_CPP = "torch.utils.cpp_extension"


class TorchFinder(MetaPathFinder):
    """Finds `torch` and its submodules as Flambeau's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if fullname == _CPP:
            raise ImportError(_needs_pytorch(fullname), name=fullname)
        if root == "flambeau":
            return _find_spec(fullname, path, target)
        if root != "torch":
            return None
        real = f"flambeau.{rest}" if rest else "flambeau"
        found = find_spec(real)
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: `torch` is Flambeau in this process, and Flambeau has no {real!r}",
                name=fullname,
            )
        return ModuleSpec(fullname, _Alias(real), is_package=found.submodule_search_locations is not None)


class ExtensionFinder(MetaPathFinder):
    """Finds extension modules as `PathFinder` does; one that needs PyTorch's C++ library fails with that reason."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is ExtensionFileLoader:
            spec.loader = _Extension(spec.loader.name, spec.loader.path)
        return spec


class _Extension(ExtensionFileLoader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        try:
            return super().create_module(spec)
        except ImportError as error:
            if _NEEDS_PYTORCH.search(str(error)) is None:
                raise
            raise ImportError(_needs_pytorch(spec.name), name=spec.name, path=spec.origin) from error


def _needs_pytorch(name: str) -> str:
    return (
        f"{name} is built on PyTorch's C++ library, which is not here: `torch` is Flambeau in this process. "
        "Run the program with plain Python and PyTorch, or without this import."
    )


class _Renamed(SourceFileLoader):
    """Loads a module of Flambeau's that is imported later than `install`, and lets it say `torch`."""

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _say_torch(module)


def _find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    spec = PathFinder.find_spec(fullname, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _Renamed(spec.loader.name, spec.loader.path)
    return spec


def _say_torch(module: ModuleType) -> None:
    """Let what a module shows say that it is `torch`'s, as in PyTorch: here, and here alone, that name leads back.

    See Note [Where a class says it is from].
    """
    for value in list(vars(module).values()):
        if isinstance(value, type | FunctionType):
            package, dot, rest = value.__module__.partition(".")
            if package == "flambeau" and not is_inner(value.__module__):
                value.__module__ = f"torch{dot}{rest}"


class _Alias(Loader):
    """Loads a module by handing out another one, unchanged."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._real)
        self._spec = module.__spec__  # the import system is about to overwrite it
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """For `python -m torch.distributed.run`."""
        spec = find_spec(self._real)
        code: CodeType | None = spec.loader.get_code(self._real)  # type: ignore[union-attr]
        return code

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec
        for name, child in list(sys.modules.items()):
            package, _, last = name.rpartition(".")
            if package == self._real and getattr(module, last, child) is not child:
                # The package shows something else by this name (`nn.parallel.data_parallel`, a function): the import
                # system would put the module there, were it to load it once more as torch's.
                sys.modules[f"torch{name.removeprefix('flambeau')}"] = child


def install() -> None:
    """Map `torch` to Flambeau in this process and in its children. Again is allowed.

    Raises RuntimeError: real PyTorch is imported already, so two would mix.
    """
    loaded = sys.modules.get("torch")
    if loaded is not None and loaded is not flambeau:
        raise RuntimeError("`torch` is imported already in this process; Flambeau cannot take its place now")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flambeau":
            _say_torch(module)
    if not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
        sys.meta_path.insert(sys.meta_path.index(PathFinder), ExtensionFinder())
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if SHIM not in sys.path:
        sys.path.insert(1, SHIM)  # a spawned child takes over this list, whatever PYTHONPATH says
    if SHIM not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join([SHIM, *filter(None, folders)])
