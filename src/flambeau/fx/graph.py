"""Graphs: lists of nodes, with the methods that create, move, remove and check nodes."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from flambeau.core.public_names import publish
from flambeau.fx import _pytree as fx_pytree
from flambeau.fx.codegen import (
    CodeGen,
    PythonCode,
    _PyTreeCodeGen,
    _PyTreeInfo,
    inplace_methods,
    magic_methods,
)
from flambeau.fx.node import Argument, Node, Target, map_arg
from flambeau.fx.qualified_names import find_name
from flambeau.fx.value_names import Namespace, snake_case, strip_magic
from flambeau.nn.modules.module import Module
from flambeau.nn.parameter import Parameter
from flambeau.tensor.tensor import Tensor
from flambeau.utils import _pytree as pytree

if TYPE_CHECKING:
    from flambeau.fx._symbolic_trace import Tracer
    from flambeau.fx.graph_module import GraphModule

__all__ = ["CodeGen", "Graph", "PythonCode", "_PyTreeCodeGen", "_PyTreeInfo", "fx_pytree", "inplace_methods",
           "magic_methods", "pytree"]  # fmt: skip

_Namespace = Namespace


class _node_list:
    """The nodes of a graph in order. Nodes may be added and erased during iteration."""

    def __init__(self, graph: Graph, direction: str = "_next") -> None:
        self.graph, self.direction = graph, direction

    def __len__(self) -> int:
        return self.graph._len

    def __iter__(self) -> Iterator[Node]:
        current: Node = getattr(self.graph._root, self.direction)
        while current is not self.graph._root:
            if not current._erased:
                yield current
            current = getattr(current, self.direction)

    def __reversed__(self) -> _node_list:
        return _node_list(self.graph, "_prev" if self.direction == "_next" else "_next")


class _InsertPoint:
    """A context in which new nodes are inserted at another place."""

    def __init__(self, graph: Graph, new_insert: Callable[[Node], None]) -> None:
        self.graph = graph
        self.orig_insert, graph._insert = graph._insert, new_insert

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        self.graph._insert = self.orig_insert


class Graph:
    """The operations of a function, in the order in which they run.

    Args:
        owning_module: The module that the names of submodules and attributes refer to.
        tracer_cls: The class of the tracer that made the graph.
        tracer_extras: Arguments with which to make such a tracer again.
    """

    def __init__(
        self,
        owning_module: GraphModule | None = None,
        tracer_cls: type[Tracer] | None = None,
        tracer_extras: dict[str, Any] | None = None,
    ) -> None:
        self._root = Node(self, "", "root", "", (), {})
        self._used_names: dict[str, int] = {}
        self._insert: Callable[[Node], None] = self._root.prepend
        self._len = 0
        self._graph_namespace = Namespace()
        self._owning_module = owning_module
        self._tracer_cls = tracer_cls
        self._tracer_extras = tracer_extras
        self._codegen = CodeGen()
        self._co_fields: dict[str, Any] = {}
        self._positions: dict[Node, int] | None = None

    @property
    def owning_module(self) -> Any:
        """Return the module that uses the graph, or None."""
        return self._owning_module

    @owning_module.setter
    def owning_module(self, mod: Any) -> None:
        self._owning_module = mod

    @property
    def nodes(self) -> _node_list:
        """Return all nodes in order; `reversed(graph.nodes)` goes backward."""
        return _node_list(self)

    def _position(self, node: Node) -> int:
        if self._positions is None:
            self._positions = {each: at for at, each in enumerate(self.nodes)}
        return self._positions.get(node, len(self._positions))

    def output_node(self) -> Node:
        """Return the output node.

        Raises:
            AssertionError: If the last node is not an output.
        """
        last = next(iter(reversed(self.nodes)))
        assert last.op == "output", f"Expected output node, got op={last.op}"
        return last

    def find_nodes(self, *, op: str, target: Target | None = None, sort: bool = True) -> list[Node]:
        """Return the nodes with an operation and, for calls of functions, a target.

        Args:
            op: The operation.
            target: The target. Required for `call_function`.
            sort: Has no effect: the result is always in the order of the graph.
        """
        if op == "call_function":
            assert target is not None, f"target must not be None for {op} op"
        return [
            node for node in self.nodes if node.op == op and (target is None or _is_same(node.target, target))
        ]

    # -- creating nodes -----------------------------------------------------------------------------

    def create_node(
        self,
        op: str,
        target: Target,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        name: str | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Create a node and insert it at the current place.

        Args:
            op: The operation.
            target: The function, method, module or attribute that the node calls or reads.
            args: Positional arguments: nodes, and containers and constants of Python.
            kwargs: Keyword arguments.
            name: The preferred name of the node.
            type_expr: The type annotation of the value.

        Raises:
            AssertionError: If `args` is not a tuple, `kwargs` not a dict, or `op` unknown.
            ValueError: If the target does not fit the operation.
        """
        args = () if args is None else args
        kwargs = {} if kwargs is None else kwargs
        assert isinstance(args, tuple), f"args must be a tuple, got {type(args)}"
        assert isinstance(kwargs, dict), f"kwargs must be a dict, got {type(kwargs)}"
        candidate = name if name is not None else self._target_to_str(target)
        unique = self._graph_namespace.create_name(candidate, None)
        node = Node(self, unique, op, target, args, kwargs, type_expr)
        for hook in getattr(self.owning_module, "_create_node_hooks", ()):
            hook(node)
        self._graph_namespace.associate_name_with_obj(unique, node)
        self._insert(node)
        self._len += 1
        self._positions = None
        return node

    def placeholder(
        self, name: str, type_expr: Any = None, default_value: Any = inspect.Signature.empty
    ) -> Node:
        """Create an input of the function. It must precede the first use of its value."""
        args = () if default_value is inspect.Signature.empty else (default_value,)
        return self.create_node("placeholder", name, args=args, type_expr=type_expr)

    def get_attr(self, qualified_name: str, type_expr: Any = None) -> Node:
        """Create a node that reads an attribute, such as a parameter, of the owning module."""
        if self.owning_module is not None and not _leads_to_value(self.owning_module, qualified_name):
            warnings.warn(
                "Attempted to insert a get_attr Node with no underlying reference in the owning GraphModule! Call "
                "GraphModule.add_submodule to add the necessary submodule, GraphModule.add_parameter to add the "
                "necessary Parameter, or nn.Module.register_buffer to add the necessary buffer",
                stacklevel=2,
            )
        return self.create_node("get_attr", qualified_name, type_expr=type_expr)

    def call_module(
        self,
        module_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Create a call of a submodule's `forward`.

        Raises:
            AttributeError: If the owning module has no such submodule.
        """
        if self.owning_module is not None:
            self.owning_module.get_submodule(module_name)
        return self.create_node("call_module", module_name, args, kwargs, type_expr=type_expr)

    def call_method(
        self,
        method_name: str,
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any = None,
    ) -> Node:
        """Create a call of a method of the first argument."""
        return self.create_node("call_method", method_name, args, kwargs, type_expr=type_expr)

    def call_function(
        self,
        the_function: Callable[..., Any],
        args: tuple[Argument, ...] | None = None,
        kwargs: dict[str, Argument] | None = None,
        type_expr: Any = None,
        name: str | None = None,
    ) -> Node:
        """Create a call of a function."""
        return self.create_node("call_function", the_function, args, kwargs, name=name, type_expr=type_expr)

    def output(self, result: Argument, type_expr: Any = None) -> Node:
        """Create the node that returns `result` from the function."""
        return self.create_node("output", "output", args=(result,), type_expr=type_expr)

    def node_copy(self, node: Node, arg_transform: Callable[[Node], Argument] = lambda x: x) -> Node:
        """Copy a node of this or another graph to the current place.

        Args:
            node: The node.
            arg_transform: Returns the new argument for each node among the arguments.
        """
        args, kwargs = map_arg(node.args, arg_transform), map_arg(node.kwargs, arg_transform)
        copy = self.create_node(node.op, node.target, args, dict(kwargs), node.name, node.type)
        copy.meta = node.meta.copy()
        return copy

    def graph_copy(self, g: Graph, val_map: dict[Node, Node], return_output_node: bool = False) -> Any:
        """Copy all nodes of another graph to the current place.

        Args:
            g: The other graph.
            val_map: Receives node -> copy. Nodes that are in it already are not copied.
            return_output_node: Return the pair of the value and the output node.

        Returns:
            The value that the other graph returns, in terms of this graph, or None if it has no output node.
        """
        for node in g.nodes:
            if node in val_map:
                continue
            if node.op == "output":
                value = map_arg(node.args[0], lambda n: val_map[n])
                return (value, node) if return_output_node else value
            val_map[node] = self.node_copy(node, lambda n: val_map[n])
        return None

    def _target_to_str(self, target: Any) -> str:
        if callable(target):
            name = (find_name(target) or "").rpartition(".")[2] or target.__name__
            return snake_case(strip_magic(name))
        assert isinstance(target, str)
        return snake_case(strip_magic(target))

    # -- places -------------------------------------------------------------------------------------

    def inserting_before(self, n: Node | None = None) -> _InsertPoint:
        """Return a context in which new nodes are inserted before `n`, or first in the graph.

        Raises:
            AssertionError: If `n` is in another graph.
        """
        if n is None:
            return self.inserting_after(self._root)
        assert n.graph == self, "Node to insert before is not in graph."
        return _InsertPoint(self, n.prepend)

    def inserting_after(self, n: Node | None = None) -> _InsertPoint:
        """Return a context in which new nodes are inserted after `n`, or last in the graph.

        Raises:
            AssertionError: If `n` is in another graph.
        """
        if n is None:
            return self.inserting_before(self._root)
        assert n.graph == self, "Node to insert after is not in graph."
        return _InsertPoint(self, n.append)

    # -- removing -----------------------------------------------------------------------------------

    def erase_node(self, to_erase: Node) -> None:
        """Remove a node that has no users.

        Raises:
            RuntimeError: If it has users, or is in another graph.
        """
        if to_erase.users:
            raise RuntimeError(
                f"Tried to erase Node {to_erase} but it still had {len(to_erase.users)} users in the graph: "
                f"{to_erase.users}!"
            )
        if to_erase.graph != self:
            raise RuntimeError(f"Attempting to remove {to_erase} from wrong graph!")
        if to_erase._erased:
            warnings.warn(f"erase_node({to_erase}) on an already erased node", stacklevel=2)
            return
        for hook in getattr(self.owning_module, "_erase_node_hooks", ()):
            hook(to_erase)
        to_erase._remove_from_list()
        to_erase._erased = True
        self._len -= 1
        to_erase._set_arguments((), {})

    def eliminate_dead_code(self, is_impure_node: Callable[[Node], bool] | None = None) -> bool:
        """Remove nodes whose values nothing uses and that have no side effects.

        Args:
            is_impure_node: Returns True for nodes to keep. Default: `Node.is_impure`.

        Returns:
            True if a node was removed.
        """
        self.lint()
        is_impure = is_impure_node or Node.is_impure
        before = self._len
        for node in reversed(self.nodes):
            if not node.users and not is_impure(node):
                self.erase_node(node)
        return self._len < before

    def _clear_nodes(self) -> None:
        for node in reversed(self.nodes):
            node._set_arguments((), {})
            self.erase_node(node)

    def _notify_replaced(self, user: Node, old: Node, new: Node) -> None:
        for hook in getattr(self.owning_module, "_replace_hooks", ()):
            hook(old=old, new=new.name, user=user)

    # -- checking -----------------------------------------------------------------------------------

    def lint(self) -> None:
        """Check that names are unique, values are defined before their use, and targets exist.

        Raises:
            RuntimeError: If one of these does not hold.
        """
        seen_names: set[str] = set()
        seen: set[Node] = set()
        for node in self.nodes:
            if node.graph is not self:
                raise RuntimeError(f"Node '{node}' does not belong to this Graph!")
            map_arg((node.args, node.kwargs), lambda used, node=node: self._check_use(used, node, seen))  # type: ignore[misc]
            seen.add(node)
            if node.name in seen_names:
                raise RuntimeError(f"Node redefined name {node.name}!")
            seen_names.add(node.name)
        if self.owning_module is not None:
            for node in self.nodes:
                _check_reference(self.owning_module, node)

    def _check_use(self, used: Node, user: Node, seen: set[Node]) -> Node:
        if used.graph is not self:
            raise RuntimeError(
                f"Argument '{used}' of Node '{user}' does not belong to this Graph, but was used as an argument! If "
                "you are copying nodes from another graph, make sure to use ``arg_transform`` on node_copy() to remap "
                f"values\n{self}"
            )
        if used not in seen:
            raise RuntimeError(
                f"Argument '{used}' of Node '{user}' was used before it has been defined! Please check that Nodes in "
                f"the graph are topologically ordered\n{self}"
            )
        return used

    # -- code ---------------------------------------------------------------------------------------

    def python_code(self, root_module: str, **options: Any) -> PythonCode:
        """Return Python code of the graph.

        Args:
            root_module: The expression of the owning module, such as "self".
            **options: `verbose` and other options of PyTorch, which select the comments.
        """
        namespace = Namespace()

        def name_node(node: Node) -> str:
            return namespace.create_name(node.name, node)

        before = [(node, node._repr_fn) for node in self.nodes]
        try:
            for node in self.nodes:
                node._repr_fn = name_node
            return self._codegen._gen_python_code(self.nodes, root_module, namespace, **options)
        finally:
            for node, how in before:
                node._repr_fn = how

    def set_codegen(self, codegen: CodeGen) -> None:
        """Let `codegen` write the code of this graph."""
        self._codegen = codegen

    def process_inputs(self, *args: Any) -> Any:
        """Return the values of the placeholders, given the arguments of a call."""
        return self._codegen.process_inputs(*args)

    def process_outputs(self, out: Any) -> Any:
        """Return the result of a call, given the value of the output node."""
        return self._codegen.process_outputs(out)

    def on_generate_code(
        self, make_transformer: Callable[[Any], Any]
    ) -> contextlib.AbstractContextManager[None]:
        """Register a function that changes the lines of generated code.

        Args:
            make_transformer: Receives the current function, or None, and returns the new one. That one receives and
                returns a list of lines.

        Returns:
            A context at whose end the former function is in use again.
        """
        former = self._codegen._body_transformer
        self._codegen._body_transformer = make_transformer(former)

        @contextlib.contextmanager
        def restore() -> Iterator[None]:
            try:
                yield
            finally:
                self._codegen._body_transformer = former

        return restore()

    def __str__(self) -> str:
        return "graph():" + "".join([f"\n    {node.format_node()}" for node in self.nodes])

    def print_tabular(self) -> None:
        """Print the nodes as a table. The package `tabulate` must be installed."""
        try:
            from tabulate import tabulate  # type: ignore[import-untyped]
        except ImportError:
            print(
                "`print_tabular` relies on the library `tabulate`, which could not be found on this machine. Run `pip "
                "install tabulate` to install the library."
            )
            raise
        rows = [[n.op, n.name, n.target, n.args, n.kwargs] for n in self.nodes]
        print(tabulate(rows, headers=["opcode", "name", "target", "args", "kwargs"]))

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Graph:
        """Return a copy with copies of all nodes; targets and constants are shared."""
        memo = {} if memo is None else memo
        copy = Graph(tracer_cls=self._tracer_cls)
        copied: dict[Node, Node] = {}
        found = copy.graph_copy(self, copied, return_output_node=True)
        copy._codegen = self._codegen
        for node, new in copied.items():
            memo[id(node)] = new
        if found is not None:
            value, former = found
            new = copy.output(value, type_expr=getattr(former, "type", None))
            new.meta = former.meta.copy()
        return copy


def _is_same(one: Any, other: Any) -> bool:
    return one is other or bool(isinstance(one, str) and one == other)


def _leads_to_value(module: Any, path: str) -> bool:
    found: Any = module
    *folders, name = path.split(".")
    for folder in folders:
        found = getattr(found, folder, None)
        if found is None:
            return False
    return hasattr(found, name)


def _check_reference(module: Any, node: Node) -> None:
    if node.op not in ("get_attr", "call_module"):
        return
    found: Any = module
    parts = node.target.split(".")
    for at, part in enumerate(parts):
        if not hasattr(found, part):
            raise RuntimeError(
                f"Node {node} target {node.target} references nonexistent attribute {part} of "
                f"{'.'.join(parts[:at])}"
            )
        found = getattr(found, part)
        last = at == len(parts) - 1
        if node.op == "call_module" and last and not isinstance(found, Module):
            raise RuntimeError(
                f"Node {node} target {node.target} {part} of {'.'.join(parts[:at])} does not reference an nn.Module"
            )
        if node.op == "get_attr" and last and not isinstance(found, Module | Parameter | Tensor):
            warnings.warn(
                f"Node {node} target {node.target} {part} of {'.'.join(parts[:at])} does not reference an nn.Module, "
                "nn.Parameter, or buffer, which is what 'get_attr' Nodes typically target",
                stacklevel=3,
            )


for _kind in (CodeGen, PythonCode, _PyTreeCodeGen, _PyTreeInfo):
    _kind.__module__ = __name__  # where PyTorch defines them

publish(globals())
