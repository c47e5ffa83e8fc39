"""torch.distributed.fsdp.wrap: policies that choose the submodules to wrap, and wrapping by them.

A policy `policy(module, recurse, nonwrapped_numel)` is called twice for each module: with `recurse=True` it returns
whether to visit the children, with `recurse=False` whether to wrap the module itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.activation import MultiheadAttention
from flambeau.nn.modules.container import ModuleDict, ModuleList
from flambeau.nn.modules.module import Module

__all__ = [
    "CustomPolicy", "ModuleWrapPolicy", "always_wrap_policy", "enable_wrap", "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy", "transformer_auto_wrap_policy", "wrap",
]  # fmt: skip
explain_absent_names(globals(), "torch.distributed.fsdp.wrap")

Policy = Callable[..., bool]


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Return True: every module is wrapped."""
    return True


def lambda_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, lambda_fn: Callable[[Module], bool]
) -> bool:
    """Return whether `lambda_fn` chooses the module."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: Module, recurse: bool, nonwrapped_numel: int, transformer_layer_cls: set[type[Module]]
) -> bool:
    """Return whether the module is of one of these classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: Module,
    recurse: bool,
    nonwrapped_numel: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[Module]] | None = None,
    exclude_wrap_modules: set[type[Module]] | None = None,
) -> bool:
    """Return True if the module has at least `min_num_params` elements in parameters that are not wrapped yet.

    Args:
        module: The module.
        recurse: True if the policy decides about the children.
        nonwrapped_numel: Number of elements of its parameters that are not wrapped yet.
        min_num_params: The least number of elements.
        force_leaf_modules: Classes whose children are not visited (MultiheadAttention if None).
        exclude_wrap_modules: Classes that are not wrapped (ModuleList and ModuleDict if None).
    """
    leaves = {MultiheadAttention} if force_leaf_modules is None else force_leaf_modules
    excluded = {ModuleList, ModuleDict} if exclude_wrap_modules is None else exclude_wrap_modules
    is_large = nonwrapped_numel >= min_num_params
    return is_large and not isinstance(module, tuple(leaves if recurse else excluded))


def _or_policy(module: Module, recurse: bool, nonwrapped_numel: int, policies: Iterable[Policy]) -> bool:
    return any(
        policy(module=module, recurse=recurse, nonwrapped_numel=nonwrapped_numel) for policy in policies
    )


class ModuleWrapPolicy:
    """A policy that chooses modules by their class.

    Args:
        module_classes: The classes that are wrapped.
    """

    def __init__(self, module_classes: Iterable[type[Module]]) -> None:
        self._module_classes = set(module_classes)
        self._module_classes_str = str(self._module_classes)

    def __call__(self, module: Module, recurse: bool, *args: Any, **kwargs: Any) -> bool:
        return transformer_auto_wrap_policy(module, recurse, -1, self._module_classes)

    def __repr__(self) -> str:
        return f"{super().__repr__()}({self._module_classes_str})"


class CustomPolicy:
    """A policy that a function of the module decides.

    Args:
        lambda_fn: Returns a bool, or the keyword arguments of the wrapper as a dict.
    """

    def __init__(self, lambda_fn: Callable[[Module], bool | dict[str, Any]]) -> None:
        self._lambda_fn = lambda_fn


_active: list[tuple[Any, dict[str, Any]]] = []


@contextlib.contextmanager
def enable_wrap(*, wrapper_cls: Any, **wrapper_kwargs: Any) -> Generator[None, None, None]:
    """Let `wrap` wrap modules in `wrapper_cls(module, **wrapper_kwargs)` inside the block."""
    _active.append((wrapper_cls, wrapper_kwargs))
    try:
        yield
    finally:
        _active.pop()


def wrap(module: Module, **wrap_overrides: Any) -> Module:
    """Return the module in the wrapper of the innermost `enable_wrap`, or the module itself outside of one."""
    if not _active:
        return module
    wrapper, arguments = _active[-1]
    wrapped: Module = wrapper(module, **{**arguments, **wrap_overrides})
    return wrapped


def wrap_by_policy(module: Module, policy: Policy, wrapper: Callable[[Module], Module]) -> Module:
    """Wrap the submodules that a policy chooses, innermost first, and return the module, wrapped if it is chosen."""
    return _wrap_recursively(module, policy, wrapper)[0]


def _wrap_recursively(
    module: Module, policy: Policy, wrapper: Callable[[Module], Module]
) -> tuple[Module, int]:
    """Return the module and how many elements of its parameters were wrapped."""
    numel = sum(p.numel() for p in module.parameters())
    wrapped = 0
    if policy(module=module, recurse=True, nonwrapped_numel=numel):
        for name, child in module.named_children():
            new, count = _wrap_recursively(child, policy, wrapper)
            setattr(module, name, new)
            wrapped += count
        if policy(module=module, recurse=False, nonwrapped_numel=numel - wrapped):
            return wrapper(module), numel
    return module, wrapped
