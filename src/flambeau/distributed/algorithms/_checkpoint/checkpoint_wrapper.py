"""torch.distributed.algorithms._checkpoint.checkpoint_wrapper: wrap submodules so that they are checkpointed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum, auto
from functools import partial
from typing import Any

from flambeau.autograd.graph import save_on_cpu
from flambeau.core.public_names import explain_absent_names
from flambeau.distributed.fsdp.wrap import Policy, lambda_auto_wrap_policy, wrap_by_policy
from flambeau.nn.modules.module import Module
from flambeau.utils.checkpoint import checkpoint

explain_absent_names(globals(), "torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

_CHECKPOINT_WRAPPED_MODULE = "_checkpoint_wrapped_module"
_CHECKPOINT_PREFIX = _CHECKPOINT_WRAPPED_MODULE + "."


class CheckpointImpl(Enum):
    """The variant of `torch.utils.checkpoint.checkpoint` to use: reentrant or not."""

    REENTRANT = auto()
    NO_REENTRANT = auto()


class ActivationWrapper(Module):
    """A module that wraps another one without changing names of parameters or keys of state dicts.

    Args:
        mod: The wrapped module.
    """

    def __init__(self, mod: Module) -> None:
        super().__init__()
        self._checkpoint_wrapped_module = mod
        self._register_state_dict_hook(_remove_prefix)
        self.register_load_state_dict_pre_hook(_add_prefix)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ValueError, because each subclass defines its own forward."""
        raise ValueError("Subclasses should implement forward().")

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self._checkpoint_wrapped_module, name)

    def __getitem__(self, key: Any) -> Any:
        return self._checkpoint_wrapped_module[key]  # type: ignore[index]

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Any]]:
        """Yield names and parameters as the wrapped module has them."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield name.replace(_CHECKPOINT_PREFIX, ""), parameter


def _remove_prefix(module: Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    start = prefix + _CHECKPOINT_PREFIX
    for key in [key for key in state if key.startswith(start)]:
        state[prefix + key.removeprefix(start)] = state.pop(key)


def _add_prefix(module: Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
    for key in [key for key in state if key.startswith(prefix)]:
        state[prefix + _CHECKPOINT_PREFIX + key.removeprefix(prefix)] = state.pop(key)


class CheckpointWrapper(ActivationWrapper):
    """A module that recomputes its activations in the backward pass instead of keeping them.

    Args:
        mod: The wrapped module.
        checkpoint_impl: The form of the checkpoint.
        checkpoint_fn: Called as `checkpoint_fn(module, *args, **kwargs)` in place of `torch.utils.checkpoint`'s.
        checkpoint_fn_kwargs: Keyword arguments of the checkpoint function.
    """

    def __init__(
        self,
        mod: Module,
        checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
        checkpoint_fn: Callable[..., Any] | None = None,
        **checkpoint_fn_kwargs: Any,
    ) -> None:
        super().__init__(mod)
        self.checkpoint_impl = checkpoint_impl
        if checkpoint_fn is None:
            reentrant = checkpoint_impl is CheckpointImpl.REENTRANT
            self.checkpoint_fn = partial(checkpoint, use_reentrant=reentrant, **checkpoint_fn_kwargs)
        else:
            self.checkpoint_fn = partial(checkpoint_fn, **checkpoint_fn_kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped module without keeping its activations, and return its result."""
        if self.checkpoint_impl is CheckpointImpl.REENTRANT and kwargs:
            module = self._checkpoint_wrapped_module
            return self.checkpoint_fn(lambda *values: module(*values, **kwargs), *args)
        return self.checkpoint_fn(self._checkpoint_wrapped_module, *args, **kwargs)


class OffloadWrapper(ActivationWrapper):
    """A module that moves its activations to pinned host memory until the backward pass."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the wrapped module with its saved tensors on the CPU, and return its result."""
        with save_on_cpu(pin_memory=True):
            return self._checkpoint_wrapped_module(*args, **kwargs)


def offload_wrapper(module: Module) -> Module:
    """Return the module in an `OffloadWrapper`."""
    return OffloadWrapper(module)


def checkpoint_wrapper(
    module: Module,
    checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT,
    checkpoint_fn: Callable[..., Any] | None = None,
    **checkpoint_fn_kwargs: Any,
) -> Module:
    """Wrap a module in a `CheckpointWrapper` with the same arguments."""
    return CheckpointWrapper(module, checkpoint_impl, checkpoint_fn, **checkpoint_fn_kwargs)


def apply_activation_checkpointing(
    model: Module,
    checkpoint_wrapper_fn: Callable[[Module], Module] = checkpoint_wrapper,
    check_fn: Callable[[Module], bool] = lambda _: True,
    auto_wrap_policy: Policy | None = None,
) -> None:
    """Wrap submodules of `model` in place.

    Args:
        model: The module whose submodules are replaced. It is not wrapped itself.
        checkpoint_wrapper_fn: Returns a submodule in its wrapper.
        check_fn: Returns whether a submodule is wrapped.
        auto_wrap_policy: A policy of `torch.distributed.fsdp.wrap` that decides instead of `check_fn`.
    """
    policy = auto_wrap_policy or partial(lambda_auto_wrap_policy, lambda_fn=check_fn)
    for name, child in model.named_children():
        setattr(model, name, wrap_by_policy(child, policy, checkpoint_wrapper_fn))
