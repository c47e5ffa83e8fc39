"""Classes of nodes. Each operator definition has one or more, so that nodes have PyTorch's names."""

from __future__ import annotations

import functools
from typing import Any

from flambeau.core.meta import Meta
from flambeau.ops.op import Op
from flambeau.ops.view import View
from flambeau.tape.autograd_node import Edge, Node


class RecordedShape(Node):
    """A node of a view: `meta` is the meta of the input, `saved` the parameters of the view. It saves no tensor, so it
    can run again.
    """

    __slots__ = ("meta", "saved")

    record: Any
    saved: Any

    def __init__(self, edge: Edge, meta: Meta, saved: Any, outputs: tuple[Meta, ...]) -> None:
        self.edges = (edge,)
        self.meta = meta
        self.saved = saved
        self.node_hooks = None
        self.set_outputs(outputs)


_classes: dict[Any, Any] = {}  # (operator, name) -> class, created when it is first recorded


def node_class(base: type, record: Op | View, metas: tuple[Meta | None, ...], params: tuple[Any, ...]) -> Any:
    """Return the class of the nodes of an operator's calls, derived from `base`."""
    found = _classes.get(record)
    if found is None:
        found = _classes[record] = _make_class(base, record)
    return found if isinstance(found, type) else found(metas, params)


def _make_class(base: type, record: Op | View) -> Any:
    """Return the class, or a function that chooses among several by the call."""
    named = record.node if isinstance(record, View) else record.derivative.name
    if not callable(named):
        return _class_of(base, record, named or _node_name(record.name))
    make_class = functools.cache(_class_of)
    return lambda metas, params: make_class(base, record, named(metas, params))


def _class_of(base: type, record: Op | View, name: str) -> Any:
    return type(name, (base,), {"__slots__": (), "record": record})


def _node_name(name: str) -> str:
    """Return a node's name by PyTorch's rule: words, and letters after digits, begin with a capital."""
    return "".join([word.title() for word in name.replace(".", "_").split("_")]) + "Backward0"
