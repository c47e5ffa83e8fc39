"""torch.distributed._composable_state: states that functions such as `checkpoint` attach to modules."""

from __future__ import annotations

import weakref
from weakref import WeakKeyDictionary

from flambeau.core.public_names import explain_absent_names
from flambeau.nn.modules.module import Module


class _State:
    """The state of a module that a function of `torch.distributed._composable` has changed."""


_states: WeakKeyDictionary[Module, weakref.ref[_State]] = WeakKeyDictionary()


def _insert_module_state(module: Module, state: _State) -> None:
    """Attach a state to a module, which does not keep it alive.

    Raises:
        AssertionError: If the module has one.
    """
    if module in _states:
        raise AssertionError(f"Inserting {module} more than once.")
    _states[module] = weakref.ref(state)


def _get_module_state(module: Module) -> _State | None:
    """Return the state of a module, which may be a `_State` itself; None if it has none."""
    if isinstance(module, _State):
        return module
    if module not in _states:
        return None
    state = _states[module]()
    if state is None:
        raise AssertionError("State has already been garbage collected")
    return state


explain_absent_names(globals(), "torch.distributed._composable_state")
