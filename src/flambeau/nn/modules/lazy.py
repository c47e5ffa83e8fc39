"""Modules that infer a shape from their first input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import is_lazy


class LazyModuleMixin(Module if TYPE_CHECKING else object):
    """A mixin for lazy modules, whose parameters are `UninitializedParameter`s until the first call.

    A subclass creates these parameters. Its method `initialize_parameters(*args, **kwargs)` receives the arguments of
    `forward` and initializes them. Then the module's class becomes `cls_to_become`.
    """

    cls_to_become: type[Module] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._load_hook = self._register_load_state_dict_pre_hook(self._lazy_load_hook)
        self._initialize_hook = self.register_forward_pre_hook(self._infer_parameters, with_kwargs=True)

    def _lazy_load_hook(self, state_dict: Any, prefix: str, *_: Any) -> None:
        """Create the parameters with the shapes of a loaded state."""
        for name, param in (*self._parameters.items(), *self._buffers.items()):
            key = prefix + name
            if key in state_dict and is_lazy(param) and not is_lazy(state_dict[key]):
                param.materialize(state_dict[key].shape)

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Initialize the parameters, with shapes that follow from the arguments of `forward`."""
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def has_uninitialized_params(self) -> bool:
        """Return True if some parameter or buffer has no shape yet."""
        return any(is_lazy(t) for t in (*self._parameters.values(), *self._buffers.values()))

    def _infer_parameters(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        """Initialize the parameters before the first forward of `module`, which is this module or a copy."""
        module.initialize_parameters(*args, **(kwargs or {}))
        if module.has_uninitialized_params():
            raise RuntimeError(f"module {self._get_name()} has not been fully initialized")
        module._initialize_hook.remove()
        module._load_hook.remove()
        del module._initialize_hook, module._load_hook
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become

    def _replicate_for_data_parallel(self) -> Any:
        raise RuntimeError(
            "Modules with uninitialized parameters can't be used with `DataParallel`. Run a dummy forward pass to "
            "correctly initialize the modules"
        )
