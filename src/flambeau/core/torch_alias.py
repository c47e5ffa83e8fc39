"""The import finder that lets `torch.x` be `flambeau.x` wherever `sys.modules["torch"]` is Flambeau.

Without it, `sys.modules["torch"] = flambeau` followed by `import torch.nn` would load the files once more, and every
class would exist twice. Where `torch` is PyTorch or absent, the finder finds nothing. The classes inherit nothing of
`importlib.abc`, whose import is expensive.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, ModuleType
from typing import Any, cast

from flambeau.core.public_names import is_inner


class AliasFinder:
    """A finder that imports submodules of `torch` as those of Flambeau, if `torch` is Flambeau."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("torch.") or sys.modules.get("torch") is not sys.modules.get("flambeau"):
            return None
        return alias_spec(fullname, f"flambeau{fullname.removeprefix('torch')}")


def alias_spec(fullname: str, real: str) -> ModuleSpec | None:
    """Return the spec that imports the module `real` by another name; None if programs name no such module."""
    spec = None if is_inner(real) else find_spec(real)
    if spec is None:
        return None
    return ModuleSpec(
        fullname, cast(Any, _Alias(real)), is_package=spec.submodule_search_locations is not None
    )


class _Alias:
    """A loader of a module that returns another module, unchanged."""

    def __init__(self, real: str) -> None:
        self._real = real

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = import_module(self._real)
        self._spec = module.__spec__  # saved, because the import system overwrites it next
        return module

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the module's code, for `python -m torch.distributed.run`."""
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


class AbsentModuleFinder:
    """A finder of PyTorch's modules that can be imported and not used. It finds what no other finder has found."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("flambeau."):
            return None
        spec: ModuleSpec | None = import_module("flambeau.core.absent_modules").spec_of(fullname)
        return spec


def install_alias_finder() -> None:
    """Add the finders to `sys.meta_path`, unless they are there."""
    if not any(type(finder).__name__ == AliasFinder.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, cast(Any, AliasFinder()))
        sys.meta_path.append(cast(Any, AbsentModuleFinder()))
