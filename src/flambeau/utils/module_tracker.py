"""torch.utils.module_tracker: which modules run, forward or backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from flambeau.autograd.graph import register_multi_grad_hook
from flambeau.core.public_names import lacking
from flambeau.nn.modules.module_hooks import register_module_forward_hook, register_module_forward_pre_hook
from flambeau.tape.mode import mode
from flambeau.tensor.tensor import Tensor
from flambeau.utils._pytree import tree_leaves

__all__ = ["ModuleTracker"]

__getattr__ = lacking("torch.utils.module_tracker")

_EVERYTHING = "Global"


class ModuleTracker:
    """A context that keeps the names of the modules whose forward or backward runs.

    Attributes:
        parents: Names of the running modules, such as "Net.layer1", and always "Global".

    Source: `torch.utils.module_tracker.ModuleTracker`.
    """

    def __init__(self) -> None:
        self.parents = {_EVERYTHING}
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._named_below: weakref.WeakSet[Any] = weakref.WeakSet()
        self._handles: list[Any] = []
        self._resets_after_backward = False

    @property
    def is_bw(self) -> bool:
        """Return True while backward runs."""
        return mode.engine is not None

    def name_of(self, module: Any) -> str:
        """Return the name of a module: that of its class, or of its place in the module that was called first."""
        name = self._names.setdefault(module, type(module).__name__)
        if module not in self._named_below:
            self._named_below.add(module)
            for child_name, child in module.named_children():
                self._names[child] = f"{name}.{child_name}"
                self.name_of(child)
        return name

    def _enter(self, module: Any, inputs: Any) -> None:
        name = self.name_of(module)
        self.parents.add(name)
        self._hook(inputs, lambda *_: self.parents.discard(name))

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        name = self.name_of(module)
        self.parents.discard(name)
        self._hook(output, lambda *_: self._enter_backward(name))

    def _enter_backward(self, name: str) -> None:
        if not self._resets_after_backward and mode.engine is not None:
            self._resets_after_backward = True
            mode.engine.final_callbacks.append(self._reset)
        self.parents.add(name)

    def _reset(self) -> None:
        self.parents = {_EVERYTHING}
        self._resets_after_backward = False

    def _hook(self, values: Any, hook: Callable[..., Any]) -> None:
        tensors = [t for t in tree_leaves(values) if isinstance(t, Tensor) and t.requires_grad]
        if tensors:
            self._handles.append(register_multi_grad_hook(tensors, hook))

    def __enter__(self) -> ModuleTracker:
        self._handles += [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
