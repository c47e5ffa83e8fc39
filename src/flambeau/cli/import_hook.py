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
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import FunctionType, ModuleType

import flambeau
from flambeau.core.absent_names import advice_for_module
from flambeau.core.public_names import is_inner
from flambeau.core.torch_alias import alias_spec

SHIM = str(Path(__file__).parents[1] / "shim")

# The dynamic linker's message for an extension module that needs PyTorch's C++ library.
_NEEDS_PYTORCH = re.compile(r"lib(torch|c10)\w*\.(so|dylib)|undefined symbol: \S*(c10|torch|_ZN2at|_ZNK2at)")


class TorchFinder(MetaPathFinder):
    """A finder that imports `torch` and its submodules as Flambeau's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        root, _, rest = fullname.partition(".")
        if root == "flambeau":
            return _find_spec(fullname, path, target)
        if root != "torch":
            return None
        real = f"flambeau.{rest}" if rest else "flambeau"
        spec = alias_spec(fullname, real)
        if spec is None:
            advice = advice_for_module(fullname)
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: `torch` is Flambeau in this process, and Flambeau has no {real!r}"
                f"{f'. {advice}.' if advice else ''}",
                name=fullname,
            )
        return spec


class ExtensionFinder(MetaPathFinder):
    """A finder of extension modules. For a module that needs PyTorch's C++ library it raises an error that says so."""

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
    """A loader of a module of Flambeau that is imported after `install`. The names in the module then begin with
    `torch`.
    """

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        _say_torch(module)


def _find_spec(fullname: str, path: Sequence[str] | None, target: ModuleType | None) -> ModuleSpec | None:
    spec = PathFinder.find_spec(fullname, path, target)
    if spec is not None and type(spec.loader) is SourceFileLoader:
        spec.loader = _Renamed(spec.loader.name, spec.loader.path)
    return spec


def _say_torch(module: ModuleType) -> None:
    """Set the module of the objects that a module shows to `torch`, and enter a public module under that name.

    See Note [Where a class says it is from].
    """
    if not is_inner(module.__name__):
        sys.modules.setdefault(f"torch{module.__name__.removeprefix('flambeau')}", module)
    for value in list(vars(module).values()):
        if isinstance(value, type | FunctionType):
            package, dot, rest = value.__module__.partition(".")
            if package == "flambeau" and not is_inner(value.__module__):
                value.__module__ = f"torch{dot}{rest}"


def install() -> None:
    """Map `torch` to Flambeau in this process and in its children. The call is idempotent.

    Raises:
        RuntimeError: If real PyTorch is imported already, so two would mix.
    """
    loaded = sys.modules.get("torch")
    if loaded is not None and loaded is not flambeau:
        raise RuntimeError("`torch` is imported already in this process; Flambeau cannot take its place now")
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "flambeau":
            _say_torch(module)
    sys.modules["torch.ops"] = flambeau.ops  # type: ignore[assignment]  # as in PyTorch; not the package of this name
    flambeau.__name__ = "torch"  # libraries compare this name with the first part of dotted names
    if not any(isinstance(finder, TorchFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, TorchFinder())
        sys.meta_path.insert(sys.meta_path.index(PathFinder), ExtensionFinder())
    folders = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if SHIM not in sys.path:
        sys.path.insert(1, SHIM)  # a spawned child inherits this list, whatever PYTHONPATH is
    if SHIM not in folders:
        os.environ["PYTHONPATH"] = os.pathsep.join([SHIM, *filter(None, folders)])
