"""Dispatch below autograd: the modes that a thread entered, and the calls that their handlers receive.

# Note [Dispatch below autograd]
Problem: programs see operators as PyTorch's ATen overloads, below autograd and after composite functions were
decomposed. Flambeau's own operators differ, and programs without handlers must not pay for this.
Rule: while a mode is entered or a tensor of a class with `__torch_dispatch__` lives, calls are intercepted (see Note
[Interception]). `_aten/lowering.py` translates each into calls of overloads. `run_handlers` passes these to the
innermost mode, without recording; then the call is recorded with its results. An overload that a handler calls goes to
the next mode, or to the class of an argument, or runs.
Consequences: handlers see backward formulas like other code. Functions that do more than call operators (creations,
copies, detach) are decorated by `shows`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flambeau.tape.mode import recording
from flambeau.tensor import interception
from flambeau.tensor.tensor import Tensor


class _Entered(threading.local):
    """The dispatch modes that a thread has entered, outermost first.

    Attributes:
        classes: True if classes with `__torch_dispatch__` are called.
        enabled: False where handlers see nothing: in `_disable_current_modes`, and in kernels of operators.
        depth: Number of nested handlers that are running.
    """

    enabled = True
    classes = True
    depth = 0

    def __init__(self) -> None:
        self.modes: list[Any] = []


local = _Entered()
classes: set[type] = set()  # subclasses with `__torch_dispatch__` that have had instances


def enter_mode(mode: Any) -> None:
    """Make a mode the innermost one of this thread."""
    _load[0]()
    local.modes.append(mode)
    interception.open_one()


def leave_mode() -> Any:
    """Remove and return the innermost mode of this thread."""
    mode = local.modes.pop()
    interception.close_one()
    return mode


_load: list[Callable[[], Any]] = []


def load_lowering_with(load: Callable[[], Any]) -> None:
    """Register `load()`, which imports the module that translates calls before the first mode is entered."""
    _load[:] = [load]


@contextmanager
def without_modes(keep: Sequence[Any] = ()) -> Iterator[list[Any]]:
    """Remove all modes of this thread for a block, except those in `keep`."""
    before, local.modes = local.modes, list(keep)
    try:
        yield before
    finally:
        local.modes = before


@contextmanager
def without_classes() -> Iterator[None]:
    """Call no class's `__torch_dispatch__` within a block."""
    before, local.classes = local.classes, False
    try:
        yield
    finally:
        local.classes = before


def add_class(cls: type) -> None:
    """Register a class, so that its instances are found among arguments."""
    _load[0]()
    classes.add(cls)


def is_shown(values: Iterable[Any] = ()) -> bool:
    """Return True if `__torch_dispatch__` of a mode or of an argument's class must handle a call."""
    if local.modes:
        return local.enabled
    return local.enabled and local.classes and bool(classes) and bool(find_overriding(values))


def find_overriding(values: Iterable[Any]) -> list[Any]:
    """Return one argument of each class with `__torch_dispatch__`, derived classes before their bases."""
    found: list[Any] = []
    for value in values:
        if value.__class__ in (list, tuple):
            for each in find_overriding(value):
                _add(each, found)
        elif value.__class__ in classes:
            _add(value, found)
    return found


def _add(value: Any, found: list[Any]) -> None:
    kind = value.__class__
    if any(other.__class__ is kind for other in found):
        return
    places = [i for i, other in enumerate(found) if issubclass(kind, other.__class__)]
    found.insert(places[0] if places else len(found), value)


def run_handlers(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the innermost mode, then the classes of arguments, until one returns a result.

    Args:
        func: The overload.
        args: Its positional arguments.
        kwargs: Its keyword arguments.

    Raises:
        TypeError: If each returns NotImplemented.
    """
    asked = find_overriding((*args, *kwargs.values())) if classes and local.classes else []
    types = tuple([each.__class__ for each in asked])
    local.depth += 1
    try:
        with recording(False):
            if local.modes:
                mode = local.modes.pop()
                try:
                    result = mode.__torch_dispatch__(func, types, args, kwargs)
                finally:
                    local.modes.append(mode)
                if result is not NotImplemented:
                    return result
            for each in asked:
                result = each.__class__.__torch_dispatch__(func, types, args, kwargs)
                if result is not NotImplemented:
                    return result
    finally:
        local.depth -= 1
    tried = "".join([f"\n\n  - tensor subclass {kind}" for kind in types])
    tried = (f"\n\n  - mode object {local.modes[-1]}" if local.modes else "") + tried
    raise TypeError(
        f"Multiple dispatch failed for 'torch.ops.{func}'; all __torch_dispatch__ handlers returned NotImplemented:"
        f"{tried}\n\nFor more information, try re-running with TORCH_LOGS=not_implemented"
    )


def show(name: str, *args: Any, **kwargs: Any) -> Any:
    """Pass a call of an overload, such as "add.Tensor", to the handlers, and return their result."""
    with recording(False):
        return _lowering["show"](name, args, kwargs)


def create(define: Callable[..., Tensor], args: tuple[Any, ...], given: dict[str, Any]) -> Tensor:
    """Show a call of a function that creates a tensor, and return its result.

    Args:
        define: The function.
        args: Its positional arguments.
        given: Its keyword arguments.
    """
    wanted = given.pop("requires_grad", False)
    with recording(False):
        made: Tensor = _lowering["create"](define, args, given)
    return made.requires_grad_() if wanted else made


def find_packet(name: str) -> Any:
    """Return the operator `torch.ops.aten.<name>`; None if Flambeau has none."""
    _load[0]()
    return _lowering["find_packet"](name)


composed: dict[str, Callable[..., Any]] = {}  # filled by `_aten/composed.py`


def compose(name: str, *args: Any) -> Any:
    """Return the result of a public function whose handlers see the operators of which PyTorch composes it."""
    return composed[name](*args)


_lowering: dict[str, Callable[..., Any]] = {}  # filled by `_aten/lowering.py`


def lower_with(**functions: Callable[..., Any]) -> None:
    """Register the functions that `show(name, args, kwargs)`, `create(...)` and `find_packet(name)` call."""
    _lowering.update(functions)
