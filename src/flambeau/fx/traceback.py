"""Information that tracers attach to the nodes they create."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from flambeau.core.public_names import explain_absent_names, publish

__all__ = [
    "annotate", "annotate_fn", "format_stack", "get_current_meta", "has_preserved_node_meta", "preserve_node_meta",
    "set_current_meta", "set_stack_trace",
]  # fmt: skip


class _NodeMeta(threading.local):
    """The information to attach in this thread."""

    def __init__(self) -> None:
        self.meta: dict[str, Any] = {}
        self.is_preserving = False


_current = _NodeMeta()


@contextmanager
def preserve_node_meta(enable: bool = True) -> Iterator[None]:
    """Attach the current information to each node that is created in this context."""
    before = (_current.is_preserving, _current.meta)
    _current.is_preserving, _current.meta = enable, dict(_current.meta)
    try:
        yield
    finally:
        _current.is_preserving, _current.meta = before


def set_stack_trace(stack: list[str]) -> None:
    """Set the stack trace to attach."""
    if _current.is_preserving and stack:
        _current.meta["stack_trace"] = "".join(stack)


@contextmanager
def annotate(annotation_dict: dict[str, Any]) -> Iterator[None]:
    """Attach `meta["custom"]`, merged with that of outer contexts, to nodes created in this context."""
    before = _current.meta.get("custom")
    _current.meta["custom"] = {**(before or {}), **annotation_dict}
    try:
        yield
    finally:
        if before is None:
            _current.meta.pop("custom", None)
        else:
            _current.meta["custom"] = before


def annotate_fn(annotation_dict: dict[str, Any]) -> Callable[..., Any]:
    """Return a decorator whose function runs within `annotate(annotation_dict)`."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            with annotate(annotation_dict):
                return function(*args, **kwargs)

        return call

    return decorate


def format_stack() -> list[str]:
    """Return the stack trace to attach, or an empty list."""
    return [_current.meta["stack_trace"]] if "stack_trace" in _current.meta else []


def has_preserved_node_meta() -> bool:
    """Return True within `preserve_node_meta()`."""
    return _current.is_preserving


@contextmanager
def set_current_meta(node: Any, pass_name: str = "") -> Iterator[None]:
    """Attach copies of a node's information to nodes that are created in this context."""
    if not (_current.is_preserving and node.meta):
        yield
        return
    before = _current.meta
    _current.meta = copy.copy(node.meta)
    try:
        yield
    finally:
        _current.meta = before


def get_current_meta() -> dict[str, Any]:
    """Return the information to attach."""
    return _current.meta


explain_absent_names(globals(), "torch.fx.traceback")
publish(globals())
