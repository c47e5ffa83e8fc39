"""Layers between public functions and launches: forward-mode AD, and dispatch modes. Owner of that state.

# Note [Interception]
Problem: inside of a dual level or a dispatch mode each operator call must be seen; elsewhere that must cost nothing.
Rule: `call.py` and `autograd_meta.py` look up plans of calls in a table. While `count` is not 0, they look in an empty
table, as under autocast, and the slow path calls `intercept` and `intercept_view` here.
Consequences: inside of a level or mode of any thread, calls of all threads take the slow path.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from flambeau.tensor.tensor import Tensor

count = 0  # open dual levels and dispatch modes of all threads
_lock = threading.RLock()  # a finalizer of a tensor may run while it is held
_subscribers: list[Callable[[], None]] = []
_layers: list[Any] = []  # outermost first: forward mode, then dispatch


def subscribe(changed: Callable[[], None]) -> None:
    """Call `changed()` after the first level or mode opens and after the last one closes. It must take no lock."""
    _subscribers.append(changed)


def add_layer(layer: Any) -> None:
    """Register a module whose `intercept`, `intercept_into` and `intercept_view` are called for each call."""
    _layers.append(layer)


def open_one() -> None:
    """Count a level or mode that opens."""
    _add(1)


def close_one() -> None:
    """Count a level or mode that closes."""
    _add(-1)


def _add(change: int) -> None:
    global count
    with _lock:
        count += change
        if count == 0 or (change > 0 and count == change):
            # under the lock, so that of two threads the later one's choice holds
            for changed in _subscribers:
                changed()


def intercept(op: Any, args: Sequence[Any], params: tuple[Any, ...]) -> Any:
    """Return the result of an operator call that a layer intercepts; NotImplemented if none does."""
    for layer in _layers:
        result = layer.intercept(op, args, params)
        if result is not NotImplemented:
            return result
    return NotImplemented


def intercept_into(
    op: Any, outputs: Sequence[Tensor], args: Sequence[Any], params: tuple[Any, ...], resize: bool
) -> Any:
    """Return the result of a call that writes into `outputs`, if a layer handles it; see `intercept`."""
    for layer in _layers:
        result = layer.intercept_into(op, outputs, args, params, resize)
        if result is not NotImplemented:
            return result
    return NotImplemented


def intercept_view(view: Any, t: Tensor, params: tuple[Any, ...]) -> Any:
    """Return the result of a view operator, if a layer handles it; see `intercept`."""
    for layer in _layers:
        result = layer.intercept_view(view, t, params)
        if result is not NotImplemented:
            return result
    return NotImplemented


def intercept_views(kind: Any, t: Tensor, dim: int, parts: Sequence[Any]) -> Any:
    """Return the results of an operator with several views, if a layer handles it; see `intercept`."""
    for layer in _layers:
        result = layer.intercept_views(kind, t, dim, parts)
        if result is not NotImplemented:
            return result
    return NotImplemented
