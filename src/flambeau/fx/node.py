"""Nodes of a graph: operations with their arguments, in a doubly linked list."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import flambeau as torch
from flambeau.core.public_names import publish
from flambeau.fx.immutable_collections import immutable_dict, immutable_list
from flambeau.fx.qualified_names import name_function, qualify_type

if TYPE_CHECKING:
    from flambeau.fx.graph import Graph

__all__ = ["Argument", "Node", "Target", "has_side_effect", "map_aggregate", "map_arg"]

Argument = Any
Target = Any
_OPS = frozenset(("placeholder", "call_method", "call_module", "call_function", "get_attr", "output", "root"))

BASE_TYPES = (str, int, float, bool, complex, torch.dtype, torch.Tensor, torch.device, torch.memory_format,
              torch.layout)  # fmt: skip

_side_effectful_functions: set[Callable[..., Any]] = {torch._assert}
_get_qualified_name = name_function
_type_repr = qualify_type


def has_side_effect(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Register a function as one that dead code elimination must keep; may be used as a decorator."""
    _side_effectful_functions.add(fn)
    return fn


def map_aggregate(a: Argument, fn: Callable[[Any], Any]) -> Argument:
    """Return `a` with `fn` applied to every leaf of its tuples, lists, dicts and slices.

    Lists and dicts of the result are immutable.
    """
    if isinstance(a, tuple):
        values = [map_aggregate(each, fn) for each in a]
        return type(a)(*values) if hasattr(a, "_fields") else tuple(values)
    if isinstance(a, list):
        return immutable_list([map_aggregate(each, fn) for each in a])
    if isinstance(a, dict):
        return immutable_dict([(key, map_aggregate(value, fn)) for key, value in a.items()])
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def map_arg(a: Argument, fn: Callable[[Node], Any]) -> Argument:
    """Return `a` with `fn` applied to every Node in it.

    Raises:
        AssertionError: If `fn` is not callable.
    """
    assert callable(fn), "torch.fx.map_arg(a, fn): fn must be a callable"
    return map_aggregate(a, lambda each: fn(each) if isinstance(each, Node) else each)


def format_arg(arg: Any, max_list_len: float = float("inf")) -> str:
    """Return the text of an argument in a listing, in which nodes begin with `%`."""
    if hasattr(arg, "_custom_fx_repr_fn"):
        return str(arg._custom_fx_repr_fn())
    if isinstance(arg, list):
        items = [format_arg(each) for at, each in enumerate(arg) if at < max_list_len]
        more = f", ...[total_len={len(arg)}]" if len(arg) > max_list_len else ""
        return f"[{', '.join(items)}{more}]"
    if isinstance(arg, tuple):
        items = [format_arg(each) for at, each in enumerate(arg) if at < max_list_len]
        more = f", ...[total_len={len(arg)}]" if len(arg) > max_list_len else ""
        return f"({', '.join(items)}{more}{',' if len(arg) == 1 else ''})"
    if isinstance(arg, dict):
        return "{" + ", ".join(f"{key}: {format_arg(value)}" for key, value in arg.items()) + "}"
    return f"%{arg}" if isinstance(arg, Node) else str(arg)


class Node:
    """One operation of a graph.

    Attributes:
        graph: The graph that contains the node.
        name: The unique name of the node's value; generated code uses it.
        op: placeholder, get_attr, call_function, call_module, call_method or output.
        target: What is called or read: a function, or the name of a method, module or attribute.
        users: The nodes that use the value, in the order in which they began to.
        type: The type annotation of the value, or None.
        meta: Information that passes attach.
    """

    def __init__(
        self,
        graph: Graph,
        name: str,
        op: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        return_type: Any = None,
    ) -> None:
        _check_target(graph, name, op, target)
        self.graph, self.name, self.op, self.target = graph, name, op, target
        self.type = return_type
        self.meta: dict[str, Any] = {}
        self.users: dict[Node, None] = {}
        self._input_nodes: dict[Node, None] = {}
        self._repr_fn: Callable[[Node], str] | None = None
        self._erased = False
        self._prev: Node = self
        self._next: Node = self
        self._args: tuple[Argument, ...] = ()
        self._kwargs: dict[str, Argument] = {}
        self._set_arguments(args, kwargs)

    # -- position -------------------------------------------------------------------------------------

    @property
    def next(self) -> Node:
        """Return the following node, or the graph's root after the last."""
        return self._next

    @property
    def prev(self) -> Node:
        """Return the preceding node, or the graph's root before the first."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Move `x` to the place before this node."""
        assert self.graph == x.graph, "Attempting to move a Node into a different Graph"
        if self is x:
            return
        x._remove_from_list()
        before = self._prev
        before._next, x._prev = x, before
        x._next, self._prev = self, x
        self.graph._positions = None

    def append(self, x: Node) -> None:
        """Move `x` to the place after this node."""
        self._next.prepend(x)

    def _remove_from_list(self) -> None:
        before, after = self._prev, self._next
        before._next, after._prev = after, before
        self.graph._positions = None

    def __lt__(self, other: Node) -> bool:
        return self.graph._position(self) < self.graph._position(other)

    def __gt__(self, other: Node) -> bool:
        return self.graph._position(self) > self.graph._position(other)

    def __le__(self, other: Node) -> bool:
        return self is other or self < other

    def __ge__(self, other: Node) -> bool:
        return self is other or self > other

    # -- arguments ------------------------------------------------------------------------------------

    @property
    def args(self) -> tuple[Argument, ...]:
        """Return the positional arguments, as a tuple of nodes and immutable values."""
        return self._args

    @args.setter
    def args(self, a: tuple[Argument, ...]) -> None:
        self._set_arguments(a, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Argument]:
        """Return the keyword arguments, as an immutable dict."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, k: dict[str, Argument]) -> None:
        self._set_arguments(self._args, k)

    @property
    def all_input_nodes(self) -> list[Node]:
        """Return the nodes whose values this node uses, each once."""
        return list(self._input_nodes)

    def _set_arguments(self, args: Any, kwargs: Any) -> None:
        for used in self._input_nodes:
            used.users.pop(self, None)
        self._input_nodes = {}
        self._args = map_aggregate(tuple(args), self._use)
        self._kwargs = map_aggregate(dict(kwargs), self._use)

    def _use(self, value: Any) -> Any:
        if isinstance(value, Node):
            self._input_nodes.setdefault(value)
            value.users.setdefault(self)
        return value

    def update_arg(self, idx: int, arg: Argument) -> None:
        """Replace one positional argument."""
        args = list(self.args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: Argument) -> None:
        """Insert a positional argument before the one at `idx`."""
        assert 0 <= idx <= len(self.args), (
            f"insert_args index must be between 0 and len(self.args), got {idx}"
        )
        self.args = (*self.args[:idx], arg, *self.args[idx:])

    def update_kwarg(self, key: str, arg: Argument) -> None:
        """Replace or add one keyword argument."""
        self.kwargs = {**self.kwargs, key: arg}

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Use the value of `new_input` wherever the arguments contain `old_input`."""
        change = lambda used: new_input if used is old_input else used  # noqa: E731
        self.graph._notify_replaced(self, old_input, new_input)
        self._set_arguments(map_arg(self.args, change), map_arg(self.kwargs, change))

    def replace_all_uses_with(
        self,
        replace_with: Node,
        delete_user_cb: Callable[[Node], bool] | None = None,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Let all users of this node use `replace_with`, and return these users.

        Args:
            replace_with: The node to use instead.
            delete_user_cb: Returns False for users to leave as they are.
            propagate_meta: Copies this node's `meta` to `replace_with`, whose own must be empty.
        """
        if propagate_meta:
            assert not replace_with.meta, (
                "Called node.replace_all_uses_with(replace_with, propagate_meta=True), but replace_with already has "
                ".meta keys"
            )
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb is None or delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    # -- properties -----------------------------------------------------------------------------------

    @property
    def stack_trace(self) -> str | None:
        """Return the Python stack at the time of tracing, if the tracer recorded it."""
        return self.meta.get("stack_trace")

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        self.meta["stack_trace"] = trace

    def is_impure(self, impure_random: bool = True) -> bool:
        """Return True if the node must be kept although nothing uses its value."""
        if self.op in ("placeholder", "output"):
            return True
        if self.op == "call_function":
            if impure_random and getattr(self.target, "_nondeterministic_seeded", False):
                return True
            return self.target in _side_effectful_functions
        if self.op == "call_module":
            owner = self.graph.owning_module
            assert owner is not None, "self.graph.owning_module not set for purity check"
            module = owner.get_submodule(self.target)
            return bool(getattr(module, "_is_impure", False))
        return False

    def normalized_arguments(
        self,
        root: Any,
        arg_types: Any = None,
        kwarg_types: Any = None,
        normalize_to_only_use_kwargs: bool = False,
    ) -> Any:
        """Return the arguments by the signature of the target, or None if it has no known signature."""
        schemas = import_module("flambeau.fx.operator_schemas")
        if self.op == "call_function":
            return schemas.normalize_function(
                self.target, self.args, self.kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs
            )
        if self.op == "call_module":
            return schemas.normalize_module(
                root, self.target, self.args, self.kwargs, normalize_to_only_use_kwargs
            )
        return None

    # -- text -----------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        return self._repr_fn(self) if self._repr_fn else self.name

    @staticmethod
    def _pretty_print_target(target: Any) -> str:
        if isinstance(target, str):
            return target
        if getattr(target, "__module__", None) == "_operator":
            return f"operator.{target.__name__}"
        return name_function(target)

    def format_node(
        self,
        placeholder_names: list[str] | None = None,
        maybe_return_typename: list[str] | None = None,
        *,
        include_tensor_metadata: bool = False,
    ) -> str | None:
        """Return the node's line in a listing.

        Args:
            placeholder_names: If given, placeholders are appended to it, and None is returned for them.
            maybe_return_typename: If given, an output's type annotation is stored in its first element.
            include_tensor_metadata: Adds dtype and shape of values that have them in `meta`.
        """
        if self.op == "placeholder":
            assert isinstance(self.target, str)
            if placeholder_names is not None:
                placeholder_names.append(self.target + (f": {qualify_type(self.type)}" if self.type else ""))
                return None
            default = f"(default={self.args[0]})" if self.args else ""
            return f"{self._format_head(include_tensor_metadata)}{self.op}[target={self.target}]{default}"
        if self.op == "get_attr":
            target = self._pretty_print_target(self.target)
            return f"{self._format_head(include_tensor_metadata)}{self.op}[target={target}]"
        if self.op == "output":
            if self.type and maybe_return_typename:
                maybe_return_typename[0] = f" -> {qualify_type(self.type)}"
            return f"return {self.args[0]}"
        return (
            f"{self._format_head(include_tensor_metadata)}{self.op}"
            f"[target={self._pretty_print_target(self.target)}](args = {format_arg(self.args)}, "
            f"kwargs = {format_arg(self.kwargs)})"
        )

    def _format_head(self, with_metadata: bool) -> str:
        kind = f"{qualify_type(self.type)} " if self.type else ""
        meta = self.meta.get("val", self.meta.get("tensor_meta")) if with_metadata else None
        if meta is not None and hasattr(meta, "dtype"):
            kind += f"{meta.dtype}{list(meta.shape)} "
        return f"%{self.name} : {kind}[num_users={len(self.users)}] = "

    def _rename(self, candidate: str) -> None:
        if candidate == self.name:
            return
        self.name = self.graph._graph_namespace.create_name(candidate, None)

    def __reduce__(self) -> Any:
        raise TypeError(
            f"node {self.name} cannot be pickled alone. Pickle the GraphModule that has its graph."
        )

    def __deepcopy__(self, memo: Any) -> Node:
        found: Node = memo.get(id(self), self)
        return found


def _check_target(graph: Graph, name: str, op: str, target: Any) -> None:
    assert op in _OPS, f"op '{op}' is not in _legal_ops"
    if op == "call_function":
        if not callable(target):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target} has type {_name_type(target)} but a Callable "
                "is expected"
            )
    elif not isinstance(target, str):
        raise ValueError(
            f"Node [graph = {graph}, name = '{name}'] target {target} has type {_name_type(target)} but a str is "
            "expected"
        )


def _name_type(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _find_module_of_method(orig_method: Callable[..., Any]) -> str:
    return name_function(orig_method).rpartition(".")[0]


publish(globals())
