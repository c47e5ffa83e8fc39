"""torch.distributed._composable.contract: a decorator of functions that change modules and keep their names."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from flambeau.core.public_names import explain_absent_names
from flambeau.distributed._composable_state import _State
from flambeau.distributed.utils import _get_root_modules
from flambeau.nn.modules.module import Module

__all__ = ["REGISTRY_KEY", "STATE_KEY", "RegistryItem", "contract"]

STATE_KEY = "__composable_api_state_key"
REGISTRY_KEY = "__composable_api_registry_key"


class RegistryItem:
    """The entry of a function in the registry of a module that it has changed."""


def contract(state_cls: type[Any] = _State) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator of functions whose first argument is a module or a sequence of modules.

    The decorated function can be applied to a module once, and has a method `state(module)` that returns the state.

    Args:
        state_cls: The class of the state, of which each call makes one object.

    Raises:
        AssertionError: If a function is applied to a module again. The decorated function raises it.
        RuntimeError: If a function changes names of parameters, buffers or modules. The decorated function raises it.
    """

    def decorate(func: Callable[..., Any]) -> Any:
        @wraps(func)
        def apply(module: Any, *args: Any, **kwargs: Any) -> Any:
            modules = _list_modules(module)
            _register(modules, func, state_cls())
            names = [_read_names(each) for each in modules]
            updated = func(module, *args, **kwargs)
            updated = module if updated is None else updated
            changed = _list_modules(updated if isinstance(updated, Module) else module)
            if len(changed) != len(modules):
                raise AssertionError(
                    f"{func.__name__} should return the same number of modules as input modules"
                    f"Inputs: {len(modules)} modules\nOutputs: {len(changed)} modules"
                )
            for before, after in zip(names, map(_read_names, changed), strict=True):
                _check_names(before, after)
            return updated

        def state(module: Module) -> Any:
            """Return the state that the function has attached to a module; None if it has attached none."""
            return module.__dict__.setdefault(STATE_KEY, {}).get(func)

        apply.state = state  # type: ignore[attr-defined]
        return apply

    return decorate


def _list_modules(module: Any) -> list[Module]:
    return [module] if isinstance(module, Module) else _get_root_modules(list(module))


def _register(modules: list[Module], func: Callable[..., Any], state: Any) -> None:
    """Attach a state and a new entry of the registry to modules; change none if one has them."""
    item = RegistryItem()
    for each in modules:
        states = each.__dict__.setdefault(STATE_KEY, {})
        if func in states or func.__name__ in each.__dict__.setdefault(REGISTRY_KEY, {}):
            raise AssertionError(
                "Each distinct composable distributed API can only be applied to a module once. "
                f"{func.__name__} has already been applied to the following module:\n{each}"
            )
    for each in modules:
        each.__dict__[STATE_KEY][func] = state
        each.__dict__[REGISTRY_KEY][func.__name__] = item


def _read_names(module: Module) -> dict[str, list[str]]:
    return {
        "Checking parameters: ": [name for name, _ in module.named_parameters()],
        "Checking buffers: ": [name for name, _ in module.named_buffers()],
        "Checking modules: ": [name for name, _ in module.named_modules()],
    }


def _check_names(before: dict[str, list[str]], after: dict[str, list[str]]) -> None:
    for kind, old in before.items():
        new = after[kind]
        if set(old) != set(new):
            raise RuntimeError(
                f"{kind}Composable distributed API implementations cannot modify FQNs.\n"
                f"FQNs only in original: {set(old) - set(new)}\nFQNs only in new: {set(new) - set(old)}"
            )
        if old != new:
            raise RuntimeError(
                f"{kind}Composable distributed API implementations cannot modify the order of FQNs.\n"
                f"Original FQNs: {old}\nNew FQNs: {new}"
            )


def _get_registry(module: Module) -> dict[str, RegistryItem] | None:
    """Return the functions that were applied to a module, by name; None if none was."""
    registry: dict[str, RegistryItem] | None = getattr(module, REGISTRY_KEY, None)
    return registry


explain_absent_names(globals(), "torch.distributed._composable.contract")
